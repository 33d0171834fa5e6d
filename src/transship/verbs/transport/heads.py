"""Heads for the target in closed form: ridge from its features onto what the fine-tuned source says."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transship import parallel
from transship.activations.heads import HeadRows, LinearHead
from transship.activations.readout import Readout, Task
from transship.activations.tokens import align_tokens
from transship.errors import OptionError
from transship.geometry import LinearMap
from transship.numerics import chunks
from transship.verbs.transport.teacher import AnyTeacher


@dataclass(frozen=True, eq=False)
class CarriedHead:
    """A fitted head.

    Attributes:
        map: features → outputs.
        task: of the outputs.
        label_names: of the classes.
        inputs: how many inputs it was fitted on.
        kept: how many inputs were added to keep what the target could do.
    """

    map: LinearMap
    task: Task
    label_names: tuple[str, ...] = ()
    inputs: int = 0
    kept: int = 0
    details: dict[str, float] = field(default_factory=dict)

    @property
    def weight(self) -> Float[Tensor, "outputs width"]:
        return LinearHead.of(self.map).weight

    @property
    def bias(self) -> Float[Tensor, " outputs"]:
        bias = LinearHead.of(self.map).bias
        return torch.zeros(self.map.width_target) if bias is None else bias

    def linear(self) -> nn.Linear:
        return LinearHead.of(self.map).linear()


def require_carriable(task: Task) -> None:
    """Refuse a fine-tune without a head of its own."""
    if task in ("features", "language"):
        raise OptionError(
            "the fine-tune has no head to carry"
            if task == "features"
            else "a language model's head is its vocabulary",
            where="carry",
            fix="transport the weights alone, with theseus or gradient",
        )


def carry_head(
    target: Readout,
    tuned: Readout,
    teacher: AnyTeacher,
    penalty: float | None = None,
    *,
    keep: Sequence[Any] | None = None,
) -> CarriedHead:
    """Fit a head for the target as it stands, onto the fine-tuned source's outputs on the same inputs.

    Args:
        target: the (transported) target.
        tuned: what the fine-tuned source's outputs are.
        teacher: what it says about inputs.
        penalty: λ relative to the mean variance of the features; None chooses it.
        keep: raw inputs of the target's own domain. Its own outputs there become further regression targets;
            both sets of outputs are centred per row and scaled to unit deviation, so that neither drowns
            the other.
    """
    require_carriable(tuned.task)
    rows = HeadRows(f"{target.loaded.name} features")
    kept = 0
    with torch.no_grad():
        for features, outputs in teacher.pairs(target):
            rows.add(features, outputs if keep is None else _standard(outputs))
        for part in chunks(0 if keep is None else len(keep), teacher.batch_size):
            if keep is not None and parallel.mine(part.start // teacher.batch_size):
                own = [keep[row] for row in range(part.start, part.stop)]
                rows.add(*_own_rows(target, own))
                kept += len(own)
    intercept = target.head is None or target.head.bias is not None
    kept, fitted = sum(parallel.gather(kept)), rows.fit(penalty, centre=intercept)
    return CarriedHead(fitted, tuned.task, tuned.label_names, len(teacher.inputs), kept, dict(fitted.details))


def _own_rows(target: Readout, rows: list[Any]) -> tuple[Tensor, Tensor]:
    """Return the target's features and its own outputs, scaled; padding is left out."""
    batch = target.loaded.preprocess(rows)
    reading = target(batch)
    assert reading.outputs is not None
    features, outputs = reading.features, reading.outputs
    if reading.tokens:
        layout = batch.layout(target.head.stack if target.head else "")
        real = align_tokens(layout, layout, reading.tokens, reading.tokens).target
        features, outputs = real.apply(features), real.apply(outputs)
    return features, _standard(outputs)


def _standard(outputs: Tensor) -> Tensor:
    centred = outputs - outputs.mean(1, keepdim=True)
    return centred / centred.std().clamp_min(1e-12)
