"""How good a transported fine-tune is: its own head, a probe, the source's head, and the old domain.

Nothing here chooses anything: what is measured on test rows stays a measurement.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from transship.activations import LoadedModel
from transship.activations.readout import Readout
from transship.errors import OptionError
from transship.geometry import Moments, procrustes, ridge_of
from transship.verbs.transport.zero_shot import ZeroShotClassifier, zero_shot, zero_shot_head

__all__ = [
    "Evaluation",
    "ZeroShotClassifier",
    "evaluate",
    "probe",
    "reuse_head",
    "zero_shot",
    "zero_shot_head",
]


@dataclass(frozen=True)
class Evaluation:
    """Accuracies of one model; None where a measure does not apply.

    Attributes:
        own_head: with the model's own (or carried) head.
        probe: a ridge probe on frozen features, fitted on labelled training rows.
        reused_head: the fine-tuned source's head on features turned into the source's space.
        original: with its own head on data of the target's original domain.
    """

    own_head: float | None = None
    probe: float | None = None
    reused_head: float | None = None
    original: float | None = None


def evaluate(
    model: LoadedModel,
    test: tuple[Sequence[Any], Tensor],
    *,
    train: tuple[Sequence[Any], Tensor] | None = None,
    tuned: LoadedModel | None = None,
    original: tuple[Sequence[Any], Tensor] | None = None,
) -> Evaluation:
    """Measure a model on labelled test rows.

    Args:
        model: untouched, transported or fine-tuned.
        test: inputs and classes.
        train: labelled rows for the probe; its inputs, unlabelled, also fit the rotation for the reused head.
        tuned: the fine-tuned source, whose head is reused.
        original: rows of the domain that the target knew before.
    """
    readout = Readout(model)
    reading = readout.all(test[0])
    own = None
    if reading.outputs is not None and reading.outputs.shape[1] > int(test[1].max()):
        own = _accuracy(reading.outputs, test[1])
    probed = reused = None
    if train is not None:
        known = readout.all(train[0]).features
        probed = _accuracy(probe(known, train[1], reading.features), test[1])
        if tuned is not None:
            reused = _accuracy(
                reuse_head(tuned, known, Readout(tuned).all(train[0]).features, reading.features), test[1]
            )
    old = None
    if original is not None:
        outputs = readout.all(original[0]).outputs
        old = None if outputs is None else _accuracy(outputs, original[1])
    return Evaluation(own, probed, reused, old)


def reuse_head(tuned: LoadedModel, known: Tensor, theirs: Tensor, features: Tensor) -> Tensor:
    """Return the source's fine-tuned head on the target's features (Table 9).

    The features are turned into the source's space by the Procrustes map of `known` onto `theirs`: with equal
    widths and a target that already works in that space this is the paper's direct reuse, up to a rotation.
    """
    readout = Readout(tuned)
    if readout.head is None:
        raise OptionError("it has no head to reuse", where=tuned.name, fix="give a fine-tune with a head")
    turn = procrustes(Moments.of(known.double(), theirs.double()), centre=True, scale=True)
    head = tuned.model.get_submodule(readout.head.path)
    with torch.no_grad():
        made: Tensor = head(turn.apply(features.double()).to(next(head.parameters()).dtype))
    return made


def probe(known: Tensor, labels: Tensor, features: Tensor, classes: int | None = None) -> Tensor:
    """Return the outputs of a ridge probe on frozen features.

    Args:
        known: features [rows, width] of labelled rows.
        labels: of these rows: classes [rows], or values [rows] or [rows, outputs].
        features: [inputs, width] that it answers for.
        classes: how many there are; otherwise those up to the largest label.
    """
    if labels.dtype.is_floating_point:
        wanted = labels.reshape(len(labels), -1).double()
    else:
        wanted = nn.functional.one_hot(labels.long(), classes or int(labels.max()) + 1).double()
    return ridge_of(known.double(), wanted.to(known.device), name="probe").apply(features.double())


def _accuracy(outputs: Tensor, labels: Tensor) -> float:
    return float((outputs.argmax(1).cpu() == labels.cpu()).double().mean())
