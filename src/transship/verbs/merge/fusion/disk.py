"""A base on disk, the fine-tunes that it admits, and saved tasks: modules without weights of their own.

A task's module is built on the meta device; its backbone's parameters and buffers are the base's own tensors,
and only its head has memory. It runs with any backbone through `functional_call`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transship.activations import FunctionalModel, LoadedModel, Readout, load_model, parameter_names
from transship.activations.finding import skeleton
from transship.activations.loading import has_head, preprocessors, require_in_memory
from transship.checkpoints import Adapter, Checkpoint, Update, check_finite
from transship.checkpoints import open as open_checkpoint
from transship.checkpoints.pairing import translation
from transship.errors import CheckpointError
from transship.verbs.merge.fusion.origin import FineTune, FusionOrigin
from transship.verbs.merge.fusion.task import TaskFiles
from transship.verbs.merge.maths.states import Vector
from transship.verbs.merge.recipe.plan.lineage import check_adapter
from transship.verbs.merge.recipe.plan.models import StoredModel
from transship.verbs.merge.recipe.plan.words import TokenizerWords
from transship.verbs.merge.tasks.folder import whole_model
from transship.verbs.merge.tasks.heads import LinearHead
from transship.verbs.merge.tasks.model import TaskModel

_READERS = (
    "tokenizer.json",
    "vocab.txt",
    "spiece.model",
    "preprocessor_config.json",
    "tokenizer_config.json",
)
_SPEAKING = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


class CheckpointOrigin(FusionOrigin):
    """A base in a folder or on the hub.

    A language model keeps its head in the backbone: all its fine-tunes speak the same vocabulary. Any other
    base is read without a head.
    """

    def __init__(
        self,
        base: Any,
        *,
        device: str = "auto",
        device_map: Any = None,
        trust_remote_code: bool = False,
        allow_pickle: bool = False,
    ) -> None:
        self.reading: dict[str, Any] = {"trust_remote_code": trust_remote_code}
        self.running: dict[str, Any] = {"device": device, "device_map": device_map, **self.reading}
        self.allow_pickle = allow_pickle
        self.checkpoint = self._open(base)
        self.name = self.checkpoint.name
        if isinstance(self.checkpoint, Adapter):
            raise CheckpointError(
                "it is an adapter, not a model", where=self.name, fix="give the adapter's base model"
            )
        self.loaded = load_model(
            self.checkpoint,
            head=_speaks(self.checkpoint.config),
            name=self.name,
            **self.running,
        )
        what = "a fusion runs it with other weights"
        require_in_memory(self.loaded.model, self.name, what, one_device=True)
        self.model = FunctionalModel(self.loaded)

    @property
    def weights(self) -> Vector:
        """The base's float parameters."""
        return self.model.parameters

    def fingerprint(self) -> str:
        return self.checkpoint.fingerprint()

    def admit(self, tuned: Any, name: str, names: Sequence[str] = ()) -> FineTune:
        """Return a fine-tune or an adapter as an update of this base."""
        checkpoint = self._open(tuned)
        self._check_words(checkpoint)
        if isinstance(checkpoint, Adapter):
            check_adapter(checkpoint, self.checkpoint)
            return self._admit_adapter(checkpoint, name, names)
        self._check_shapes(checkpoint)
        check_finite(checkpoint)
        loaded = load_model(
            checkpoint, head=has_head(checkpoint.config), name=checkpoint.name, **self.running
        )
        parameters = dict(loaded.model.named_parameters())
        meant = translation(list(self.weights), list(parameters))
        own = {key: parameters[other] for key, other in meant.items()}
        update = self._update(own, checkpoint.name, names)
        inside = {key: meant[key] for key in update}
        files = _files(loaded, checkpoint, inside)
        model = self._task_model(name, loaded, inside)
        return FineTune(
            checkpoint.name,
            checkpoint.fingerprint(),
            update,
            model,
            Readout(model.model.loaded).label_names if model.head is not None else (),
            files if files.head else None,
        )

    def restore(self, name: str, folder: Path, own: LinearHead | None, names: Sequence[str]) -> TaskModel:
        """Return the model of a task that was saved; `folder` holds its config and head."""
        checkpoint = self._open(folder)
        module = skeleton(checkpoint)
        loaded = LoadedModel(name, module, getattr(module, "config", None), device=self.loaded.device)
        inside = self._places(module, names)
        stored = parameter_names(loaded, checkpoint)
        head = [other for other, _ in module.named_parameters() if other not in set(inside.values())]
        self._share(module, inside)
        for other in head:
            tensor = checkpoint.tensor(stored[other]).float().to(self.loaded.device)
            _place(module, other, nn.Parameter(tensor, requires_grad=False))
        if any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers())):
            # the head has buffers of its own, which only its class can make
            loaded = load_model(checkpoint, head=True, name=name, **self.running)
            self._share(loaded.model, inside)
        self._lend_readers(loaded, folder)
        return TaskModel(name, FunctionalModel(loaded), inside, own)

    def bare(self, name: str, own: LinearHead | None, names: Sequence[str]) -> TaskModel:
        """Return the model of a task that has no folder of its own: the base's."""
        return TaskModel(name, self.model, {key: key for key in names}, own)

    def files(self, folder: Path, names: Sequence[str]) -> TaskFiles:
        """Return what a saved task's folder holds."""
        checkpoint = self._open(folder)
        module = skeleton(checkpoint)
        loaded = LoadedModel(str(folder), module, getattr(module, "config", None))
        return _files(loaded, checkpoint, self._places(module, names))

    def _places(self, module: nn.Module, names: Sequence[str]) -> dict[str, str]:
        """Return settled tensor → parameter of a task's module."""
        meant = translation(list(self.weights), [key for key, _ in module.named_parameters()])
        return {key: other for key, other in meant.items() if key in set(names)}

    def _check_words(self, tuned: Checkpoint) -> None:
        """Refuse a fine-tune whose tokenizer has words of the base in other rows.

        Words that only one of the two has are no harm: many fine-tunes add some, or rename unused rows.
        """
        difference = TokenizerWords(self.checkpoint.folder).difference(TokenizerWords(tuned.folder))
        if difference is not None and difference.moved:
            raise CheckpointError(
                f"its vocabulary differs from that of {self.name}: {difference}",
                where=tuned.name,
                fix="give one with the base's tokenizer, or use a recipe with tokenizer_source: union",
            )

    def _check_shapes(self, tuned: Checkpoint) -> None:
        """Refuse a tensor of another shape by the files' headers, before anything is read."""
        backbone = set(parameter_names(self.loaded, self.checkpoint).values())
        for name, other in translation(list(self.checkpoint.tensors), [*tuned.tensors, *tuned.tied]).items():
            shapes = self.checkpoint.info(name).shape, tuned.info(other).shape
            if name in backbone and shapes[0] != shapes[1]:
                raise CheckpointError(
                    f"'{other}' has shape {list(shapes[1])}, and {list(shapes[0])} in {self.name}",
                    where=tuned.name,
                    fix="give a fine-tune of that base",
                )

    def _open(self, reference: Any) -> Checkpoint:
        if isinstance(reference, Checkpoint):
            return reference
        return open_checkpoint(reference, allow_pickle=self.allow_pickle, **self.reading)

    def _task_model(self, name: str, loaded: LoadedModel, names: Mapping[str, str]) -> TaskModel:
        model = FunctionalModel(loaded)
        head = None
        if model.per_input and model.readout.head is not None:
            linear = loaded.model.get_submodule(model.readout.head.path)
            if isinstance(linear, nn.Linear):
                bias = linear.bias
                head = LinearHead(
                    linear.weight.detach().float(), None if bias is None else bias.detach().float()
                )
        self._share(loaded.model, names)
        return TaskModel(name, FunctionalModel(loaded), names, head)

    def _share(self, module: nn.Module, names: Mapping[str, str]) -> None:
        """Put the base's own tensors in the place of a task's backbone; aliases and buffers too."""
        own = dict(self.loaded.model.named_parameters(remove_duplicate=False))
        theirs = [name for name, _ in module.named_parameters(remove_duplicate=False)]
        wanted, ties = set(names.values()), {id(own[name]) for name in names}
        for name, other in translation(list(own), theirs).items():
            if other in wanted or id(own[name]) in ties:
                _place(module, other, own[name])
        buffers = dict(self.loaded.model.named_buffers())
        empty = [name for name, tensor in module.named_buffers() if tensor.is_meta]
        for name, other in translation(list(buffers), empty).items():
            _place(module, other, buffers[name])

    def _lend_readers(self, loaded: LoadedModel, folder: Path) -> None:
        """Give a restored task its tokenizer or image processor: the base's, where the files are the same."""
        base = self.loaded
        loaded.max_length, loaded.folder = base.max_length, folder
        if _same_readers(folder, self.checkpoint.folder):
            loaded.tokenizer, loaded.image_processor = base.tokenizer, base.image_processor
            return
        loaded.tokenizer, loaded.image_processor = preprocessors(str(folder), {"local_files_only": True})

    def _admit_adapter(self, adapter: Adapter, name: str, names: Sequence[str]) -> FineTune:
        change = Update.from_adapter(adapter, self.checkpoint)
        if change.added:  # it brings a head: the model that it makes of the base joins
            whole = whole_model(StoredModel(adapter.name, self.checkpoint, change, adapter), owner=self)
            own = self.admit(whole, name, names)
            return replace(own, source=adapter.name, fingerprint=adapter.fingerprint())
        stored = parameter_names(self.loaded, self.checkpoint)
        tuned = {}
        for key, tensor in self.weights.items():
            other = stored.get(key)
            dense = None if other is None or other not in change else torch.from_numpy(change.dense(other))
            tuned[key] = tensor if dense is None else tensor + dense.view(tensor.shape)
        update = self._update(tuned, adapter.name, names)
        model = self.bare(name, None, tuple(update))
        return FineTune(adapter.name, adapter.fingerprint(), update, model)


def _files(loaded: LoadedModel, checkpoint: Checkpoint, names: Mapping[str, str]) -> TaskFiles:
    """Return what a task's folder holds beside the backbone; call it while the module has its own weights."""
    stored = parameter_names(loaded, checkpoint)
    backbone = {key: stored[other] for key, other in names.items() if other in stored}
    inside = set(backbone.values())
    head = {
        name: checkpoint.tensor(name).clone()
        for name, info in checkpoint.tensors.items()
        if name not in inside and info.floating
    }
    readout = Readout(loaded)
    linear = None
    if readout.head is not None and readout.task in ("classes", "values") and readout.head.weight in stored:
        bias = readout.head.bias
        linear = (stored[readout.head.weight], stored.get(bias) if bias is not None else None)
    dtypes = {name: checkpoint.info(name).dtype for name in head}
    return TaskFiles(checkpoint, backbone, head, dtypes, linear)


def _place(module: nn.Module, name: str, tensor: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    if leaf in owner._parameters:
        owner._parameters[leaf] = tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor)
    else:
        owner._buffers[leaf] = tensor


def _speaks(config: Mapping[str, Any]) -> bool:
    return str((config.get("architectures") or [""])[0]).endswith(_SPEAKING)


def _same_readers(folder: Path, base: Path | None) -> bool:
    def content(place: Path) -> list[bytes | None]:
        return [(place / name).read_bytes() if (place / name).is_file() else None for name in _READERS]

    return base is not None and content(folder) == content(base)
