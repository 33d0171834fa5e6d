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
from transship.verbs.transport.methods.carry import Carry
from transship.verbs.transport.token_judge import read_tokens


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
        """As a Linear holds it."""
        return LinearHead.of(self.map).weight

    @property
    def bias(self) -> Float[Tensor, " outputs"]:
        """As a Linear holds it."""
        bias = LinearHead.of(self.map).bias
        return torch.zeros(self.map.width_target) if bias is None else bias

    def linear(self) -> nn.Linear:
        """Return it as a module."""
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
    inputs: Sequence[Any],
    method: Carry,
    *,
    keep: Sequence[Any] | None = None,
    intercept: bool = True,
    batch_size: int = 32,
    outputs: Tensor | None = None,
) -> CarriedHead:
    """Fit a head for the target as it stands, onto the fine-tuned source's outputs on the same inputs.

    Args:
        target: the (transported) target.
        tuned: the fine-tuned source.
        inputs: raw, unlabelled.
        method: holds the penalty.
        keep: raw inputs of the target's own domain. Its own outputs there become further regression targets;
            both sets of outputs are centred per row and scaled to unit deviation, so that neither drowns
            the other.
        intercept: whether the head that receives it has a bias.
        batch_size: inputs per forward pass.
        outputs: the fine-tuned source's outputs on `inputs`, where they are known already.
    """
    require_carriable(tuned.task)
    rows_of_both = HeadRows(f"{target.loaded.name} features")
    scale = keep is not None
    with torch.no_grad():
        for number, start in enumerate(range(0, len(inputs), batch_size)):
            if not parallel.mine(number):
                continue
            rows = [inputs[row] for row in range(start, min(start + batch_size, len(inputs)))]
            known = None if outputs is None else outputs[start : start + len(rows)]
            features, wanted = _rows(target, tuned, rows, known)
            rows_of_both.add(features, _standard(wanted) if scale else wanted)
        kept = 0
        if keep is not None:
            if target.head is None or target.width != tuned.width:
                raise OptionError(
                    "the target has no head with the same outputs to keep",
                    where="--keep",
                    fix="leave --keep out",
                )
            for part in chunks(len(keep), batch_size):
                if parallel.mine(part.start // batch_size):
                    rows = [keep[row] for row in range(part.start, part.stop)]
                    rows_of_both.add(*_own_rows(target, rows))
                    kept += len(rows)
    kept, fitted = sum(parallel.gather(kept)), rows_of_both.fit(method.penalty, centre=intercept)
    return CarriedHead(fitted, tuned.task, tuned.label_names, len(inputs), kept, dict(fitted.details))


def _rows(target: Readout, tuned: Readout, rows: list[Any], known: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the target's features and the fine-tuned source's outputs, row by row (token by token where
    aligned).
    """
    batch = target.loaded.preprocess(rows)
    if tuned.task != "tokens":
        features = target(batch).features
        if known is None:
            known = tuned(tuned.loaded.preprocess(rows)).outputs
        assert known is not None
        return features, known
    there = tuned.loaded.preprocess(rows)
    taught = tuned(there)
    features, _, tokens = read_tokens(target, batch)
    assert taught.outputs is not None
    stack = tuned.head.stack if tuned.head else ""
    aligned = align_tokens(there.layout(stack), batch.layout(stack), taught.tokens, tokens)
    return aligned.target.apply(features), aligned.source.apply(taught.outputs)


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
