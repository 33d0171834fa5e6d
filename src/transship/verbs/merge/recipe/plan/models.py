"""The models of a recipe, opened: checkpoints, checkpoints with adapters, and what other recipes make."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from transship import checkpoints
from transship.checkpoints import Adapter, Checkpoint, TensorInfo, Update, widen
from transship.checkpoints.dtypes import stored
from transship.checkpoints.pairing import translation
from transship.errors import CheckpointError, OptionError
from transship.verbs.merge.maths.operands import Floats, Reader
from transship.verbs.merge.recipe.plan.layout import is_head
from transship.verbs.merge.recipe.read.sources import Location, ModelReference

_SAMPLE = 4096  # bytes that a fingerprint reads in each of three places of a tensor
_ELEMENTS = 4096  # of a matrix that are held against those of another model
SAMPLED = (
    "A fingerprint that starts with `sampled:` is SHA-256 over names, shapes, dtypes and 4096 bytes from the "
    "start, the middle and the end of every tensor: it tells models apart and does not vouch for every byte."
)


_CLASSES = {
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
}
_ARCHITECTURE = re.compile(r"(.+?)(LMHeadModel|Model|For[A-Z]\w*)")
_LAST = re.compile(r"(^|\.)(out_proj|classifier|score|qa_outputs)\.weight$")


class Model(Protocol):
    """What is known of a model before it is read."""

    @property
    def label(self) -> str:
        """Return what the recipe calls it."""

    @property
    def config(self) -> dict[str, Any]:
        """Return its `config.json`."""

    @property
    def folder(self) -> Path | None:
        """Return where its tokenizer and other files lie."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Return its independent tensors."""

    @property
    def tied(self) -> Mapping[str, str]:
        """Return alias → the tensor whose data it shares."""

    def fingerprint(self) -> str:
        """Return what tells this model from others."""


class Readable(Model, Protocol):
    """A model whose tensors can be read."""

    def reader(self, name: str) -> Reader:
        """Return a function that reads parts of one flattened tensor in float32."""

    def raw(self, name: str) -> memoryview | None:
        """Return the bytes of a tensor where they lie in a file as they are."""


Kind = TypeVar("Kind", bound=Model, covariant=True)


@dataclass(frozen=True)
class StoredModel:
    """A checkpoint, with an adapter's update added where there is one."""

    label: str
    checkpoint: Checkpoint
    update: Update | None = None
    adapter: Checkpoint | None = None

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """Return its `config.json`, with the labels of a head that the adapter adds."""
        if self.update is None or self.adapter is None or not self.update.added:
            return self.checkpoint.config
        shapes = {name: self.tensors[name].shape for name in self.update.added}
        return headed_config(self.checkpoint.config, shapes, self.adapter.config)

    @property
    def folder(self) -> Path | None:
        return self.checkpoint.folder

    @functools.cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Return the checkpoint's tensors, and those that the adapter adds."""
        if self.update is None or not self.update.added:
            return self.checkpoint.tensors
        added = {}
        for name, read in self.update.added.items():
            array = read()
            added[name] = TensorInfo(name, array.shape, "float32", array.size * 4)
        return {**self.checkpoint.tensors, **added}

    @property
    def tied(self) -> Mapping[str, str]:
        return self.checkpoint.tied

    def reader(self, name: str) -> Reader:
        """Return W, or W + s B A made of whole rows, read by parts."""
        name = self.tied.get(name, name)
        if self.update is not None and name in self.update.added:
            flat = np.asarray(self.update.added[name](), np.float32).reshape(-1)
            return lambda start, stop: flat[start:stop]
        checkpoint = self.checkpoint
        if self.update is None or name not in self.update:
            return _scratch_reader(checkpoint, name)
        change = self.update.reader(name)

        def read(start: int, stop: int) -> Floats:
            total: Floats = checkpoint.floats(name, start, stop) + change(start, stop)
            return total

        return read

    def raw(self, name: str) -> memoryview | None:
        """Return the stored bytes where no adapter changes them."""
        name = self.tied.get(name, name)
        if self.update is not None and (name in self.update or name in self.update.added):
            return None
        return self.checkpoint.raw(name)

    def fingerprint(self) -> str:
        """Return a hash of names, shapes and samples of every tensor."""
        files = [self.checkpoint] + ([self.adapter] if self.adapter is not None else [])
        return "+".join(sampled_fingerprint(file) for file in files)


def _scratch_reader(checkpoint: Checkpoint, name: str) -> Reader:
    """Return a reader that widens into one array of its own, so that no part costs new memory."""
    if checkpoint.info(name).dtype == "float32":
        return lambda start, stop: checkpoint.floats(name, start, stop)  # looks into the file
    dtype, scratch = checkpoint.info(name).dtype, np.empty(0, np.float32)
    values = stored(checkpoint.raw(name), dtype)

    def read(start: int, stop: int) -> Floats:
        nonlocal scratch
        if scratch.size < stop - start:
            scratch = np.empty(stop - start, np.float32)
        return widen(values[start:stop], dtype, scratch[: stop - start])

    return read


def sampled_fingerprint(checkpoint: Checkpoint) -> str:
    """Return `sampled:` and 32 hex digits of SHA-256 over names, shapes, dtypes and samples of every tensor.

    Hashing all bytes would cost as much as the merge, and the word before the digits says that they are not
    all covered. `Checkpoint.fingerprint` is the hash of everything.
    """
    digest = hashlib.sha256()
    for name in sorted(checkpoint.tensors):
        info = checkpoint.tensors[name]
        digest.update(json.dumps([name, info.dtype, info.shape]).encode())
        data = checkpoint.raw(name)
        middle = max(0, len(data) - _SAMPLE) // 2
        for start in (0, middle, max(0, len(data) - _SAMPLE)):
            digest.update(data[start : start + _SAMPLE])
    return f"sampled:{digest.hexdigest()[:32]}"


def middle_part(size: int) -> tuple[int, int]:
    """Return the part of a flattened matrix that shows whether two models are kin."""
    return max(0, size // 2 - _ELEMENTS), size // 2


def open_model(reference: ModelReference, *, allow_pickle: bool = False) -> StoredModel | Adapter:
    """Open one reference; a lone adapter folder is returned as it is, to be merged with others."""
    stored = _open(reference.model, allow_pickle)
    if reference.lora is None:
        return stored if isinstance(stored, Adapter) else StoredModel(str(reference), stored)
    adapter = _open(reference.lora, allow_pickle)
    if not isinstance(adapter, Adapter):
        raise CheckpointError(
            "it is no LoRA adapter", where=str(reference.lora), fix="give a folder with adapter_config.json"
        )
    if isinstance(stored, Adapter):
        raise CheckpointError(
            "an adapter cannot be added to an adapter", where=str(reference), fix="write base+adapter"
        )
    return StoredModel(str(reference), stored, Update.from_adapter(adapter, stored), adapter)


def _open(place: Location, allow_pickle: bool) -> Checkpoint:
    text = str(place) if not Path(place.path).exists() else place.path
    if Path(place.path).exists() and place.revision is not None:
        raise OptionError(
            "a local folder has no revisions", where=str(place), fix=f"write {place.path}, or a hub id"
        )
    return checkpoints.open(text, allow_pickle=allow_pickle)


@dataclass(frozen=True)
class Aligned(Generic[Kind]):
    """A model whose tensors are called as in the model that gives the config.

    Attributes:
        names: the config donor's name → the model's own name, aliases included.
    """

    model: Kind
    names: dict[str, str] = field(default_factory=dict)

    def info(self, name: str) -> TensorInfo | None:
        """Return shape and dtype of a tensor, or None where the model has it not."""
        own = self.names.get(name)
        if own is None:
            return None
        return self.model.tensors[self.model.tied.get(own, own)]

    def stored(self, name: str) -> bool:
        """Say whether the model has a tensor of this name of its own, not as an alias."""
        return self.names.get(name) in self.model.tensors

    def reader(self: Aligned[Readable], name: str) -> Reader:
        return self.model.reader(self.names[name])

    def raw(self: Aligned[Readable], name: str) -> memoryview | None:
        """Return a tensor's bytes where they lie in a file as they are."""
        return self.model.raw(self.names[name])


Models = Mapping[ModelReference, Aligned[Model]]


def align(model: Model, donor: Model) -> Aligned[Model]:
    """Give a model's tensors the donor's names: equal, or different by one prefix such as `bert.`."""
    own = [*model.tensors, *model.tied]
    wanted = [*donor.tensors, *donor.tied]
    renamed = translation(own, wanted)
    change = _prefix_change(renamed)
    names = {}
    for name in own:
        names[renamed.get(name) or change(name)] = name
    return Aligned(model, names)


def _prefix_change(renamed: Mapping[str, str]) -> Callable[[str], str]:
    """Return what the renaming did, for tensors that the donor has not."""
    for name, other in renamed.items():
        if name != other and other.endswith(name):
            prefix = other.removesuffix(name)
            return lambda text: prefix + text
        if name != other and name.endswith(other):
            prefix = name.removesuffix(other)
            return lambda text: text.removeprefix(prefix)
    return lambda text: text


def headed_config(
    config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], adapter: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the base's config for the model that its adapter's head makes of it.

    Args:
        shapes: of the tensors that the adapter adds.
        adapter: its own config, which names the task or the class that it was trained on.
    """
    headed = copy.deepcopy(dict(config))
    matrices = [name for name, shape in shapes.items() if is_head(name) and len(shape) == 2]
    last = next((name for name in matrices if _LAST.search(name)), None)
    if last is None:
        return headed
    labels = shapes[last][0]
    if len(config.get("id2label") or {}) != labels:
        names = [f"LABEL_{number}" for number in range(labels)]
        headed["id2label"] = {str(number): name for number, name in enumerate(names)}
        headed["label2id"] = {name: number for number, name in enumerate(names)}
        headed.pop("num_labels", None)
    if architecture := _class(config.get("architectures"), adapter):
        headed["architectures"] = [architecture]
    return headed


def _class(named: Any, adapter: Mapping[str, Any]) -> str | None:
    """Return the class that the adapter was trained on; PEFT keeps it where there is no name for the task."""
    mapping = adapter.get("auto_mapping")
    if isinstance(mapping, Mapping) and isinstance(mapping.get("base_model_class"), str):
        return str(mapping["base_model_class"])
    ending = _CLASSES.get(str(adapter.get("task_type")))
    match = _ARCHITECTURE.fullmatch(str(named[0])) if isinstance(named, list) and named else None
    return None if ending is None or match is None else match[1] + ending
