"""What a model says about an input: the features that its head reads, and the head's outputs.

A headed model's features are what enters its last Linear; a bare encoder's are its pooled token states.
Outputs per input make the task `classes` or `values`, outputs per token `tokens` or `language`; a bare
model has `features` only.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from transship import parallel
from transship.activations.models import Batch, LoadedModel
from transship.activations.record import Tap, watching
from transship.activations.sites import Site
from transship.errors import DataError
from transship.numerics import chunks

Task = Literal["classes", "values", "tokens", "language", "features"]
_LANGUAGE = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForMaskedLM")


@dataclass(frozen=True, eq=False)
class Reading:
    """One batch as a model reads it.

    Attributes:
        features: [inputs, width], or [inputs · tokens, width] for tasks per token.
        outputs: the head's, rows as above; None for a bare model.
        tokens: tokens per input; 0 where rows are inputs.
    """

    features: Float[Tensor, "rows width"]
    outputs: Float[Tensor, "rows classes"] | None
    tokens: int = 0


class Readout:
    """Reads features and outputs of one model; differentiable where gradients are enabled."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded

    @cached_property
    def head(self) -> Site | None:
        """The Linear that makes the outputs, or None for a bare model."""
        found = [site for site in self.loaded.sites if site.role == "head" and site.kind == "linear"]
        return found[-1] if found else None

    @cached_property
    def task(self) -> Task:
        """What the outputs are."""
        if self.head is None:
            return "features"
        config = self.loaded.config
        name = type(self.loaded.model).__name__
        if name.endswith(_LANGUAGE):
            return "language"
        if "TokenClassification" in name or "QuestionAnswering" in name:
            return "tokens"
        regression = getattr(config, "problem_type", None) == "regression"
        return "values" if regression or self.head.out_width == 1 else "classes"

    @property
    def width(self) -> int:
        """The number of outputs; 0 for a bare model."""
        return 0 if self.head is None else self.head.out_width

    @cached_property
    def label_names(self) -> tuple[str, ...]:
        """The classes' names, where the config says them."""
        names = getattr(self.loaded.config, "id2label", None) or {}
        return (
            tuple(str(names[key]) for key in sorted(names, key=int))
            if self.task in ("classes", "tokens")
            else ()
        )

    def shares_outputs(self, other: "Readout") -> bool:
        """Return whether both heads speak of the same classes or values, in the same order."""
        if self.task != other.task or self.width != other.width or self.head is None:
            return False
        names = self.label_names, other.label_names
        return not all(names) or names[0] == names[1]

    def __call__(self, batch: Batch) -> Reading:
        """Run the model and read it."""
        caught: list[Tensor] = []
        taps = [] if self.head is None else [Tap(self.head.path, "input")]
        with watching(self.loaded.model, taps, lambda tap, tensor: caught.append(tensor)):
            made = self.loaded.run(batch)
        if self.head is None:
            return Reading(self._pooled(made, batch), None)
        outputs = made if isinstance(made, Tensor) else made["logits"] if "logits" in made else made[0]
        features = caught[-1]
        if self.task in ("tokens", "language"):
            length = outputs.shape[1]
            return Reading(features.flatten(0, 1), outputs.flatten(0, 1), length)
        if features.dim() == 3:  # the head ran on every token, and one of them was taken
            features = _last(features, batch)
        return Reading(features, outputs.reshape(batch.size, -1))

    def batches(self, inputs: Sequence[Any], size: int) -> Iterator[tuple[slice, Reading]]:
        """Yield the readings of this process's batches of `inputs` in order, without gradients."""
        with torch.no_grad():
            for number, part in enumerate(chunks(len(inputs), size)):
                if not parallel.mine(number):
                    continue
                chosen = [inputs[row] for row in range(part.start, part.stop)]
                yield part, self(self.loaded.preprocess(chosen))

    def all(self, inputs: Sequence[Any], size: int = 64) -> Reading:
        """Return the readings of all inputs, in their order; for tasks whose rows are inputs.

        Texts run beside texts of their length, so that little padding is computed. Processes share the
        batches.
        """
        if self.task in ("tokens", "language"):
            raise DataError(
                "its outputs are per token, and cannot be listed per input",
                where=self.loaded.name,
                fix="give a strength as a number",
            )
        order = list(range(len(inputs)))
        if self.loaded.tokenizer is not None:
            order.sort(key=lambda row: -self.loaded.length(inputs[row]))
        features, outputs = [], []
        for part, reading in self.batches(_Reordered(inputs, order), size):
            features.append((order[part], reading.features))
            if reading.outputs is not None:
                outputs.append((order[part], reading.outputs))
        return Reading(
            parallel.rows_of_all(len(order), features),
            None if self.head is None else parallel.rows_of_all(len(order), outputs),
        )

    @cached_property
    def pooling(self) -> str:
        """How a bare model's token states become one row: `cls`, `mean` or `last`, as its own files say."""
        folder = self.loaded.folder
        file = folder / "1_Pooling" / "config.json" if folder is not None else None
        if file is not None and file.is_file():
            settings = json.loads(file.read_text(encoding="utf-8"))
            for key, name in (("pooling_mode_cls_token", "cls"), ("pooling_mode_lasttoken", "last")):
                if settings.get(key):
                    return name
            return "mean"
        if self.loaded.causal:
            return "last"
        return "mean" if self.loaded.tokenizer is not None else "cls"

    def _pooled(self, made: Any, batch: Batch) -> Tensor:
        if isinstance(made, Tensor):
            states = made
        else:
            states = next(
                (
                    made[name]
                    for name in ("image_embeds", "last_hidden_state")
                    if name in made and made[name] is not None
                ),
                made[0],
            )
        if states.dim() == 4:
            return states.mean((2, 3))
        if states.dim() == 2:
            return states
        if self.pooling == "last":
            return _last(states, batch)
        if self.pooling == "cls":
            return states[:, 0]
        mask = _mask(states, batch)
        return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


class _Reordered(Sequence[Any]):
    """Inputs in another order; a row is read when it is asked for, so that no process decodes all images."""

    def __init__(self, inputs: Sequence[Any], order: Sequence[int]) -> None:
        self.inputs, self.order = inputs, order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: Any) -> Any:
        return self.inputs[self.order[place]]


def _mask(states: Tensor, batch: Batch) -> Tensor:
    mask = batch.inputs.get("attention_mask")
    if mask is None or mask.shape[1] != states.shape[1]:
        return torch.ones(states.shape[:2], dtype=states.dtype, device=states.device)
    return torch.as_tensor(mask, dtype=states.dtype, device=states.device)


def _last(states: Tensor, batch: Batch) -> Tensor:
    """The last token that is no padding."""
    last = _mask(states, batch).sum(1).long() - 1
    return states[torch.arange(len(states), device=states.device), last]
