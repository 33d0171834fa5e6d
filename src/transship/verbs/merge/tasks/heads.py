"""Heads for the merged model: the task's own, tuned on labels, or carried by ridge from its own answers.

A head is the last Linear of a task's model: features [inputs, width] → outputs [inputs, classes].
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from transship.activations import heads
from transship.activations.heads import LinearHead
from transship.errors import OptionError
from transship.finish.descent import Adam
from transship.registry import unknown

HeadKind = Literal["own", "tuned", "tuned-fresh", "carried-once", "carried", "carried-polished", "finished"]
HEAD_KINDS: tuple[HeadKind, ...] = get_args(HeadKind)
# learnt with the backbone, by a finish: nothing that --heads can ask for
FINISHED: HeadKind = "finished"
# refitted after every model, so that inputs of every task have to stay
FRESH: frozenset[HeadKind] = frozenset({"tuned-fresh", "carried", "carried-polished"})
LABELLED: frozenset[HeadKind] = frozenset({"tuned", "tuned-fresh"})

__all__ = [
    "FINISHED",
    "FRESH",
    "HEAD_KINDS",
    "LABELLED",
    "HeadKind",
    "HeadSettings",
    "LinearHead",
    "accuracy",
    "carry",
    "head_kinds",
    "polish",
    "tune",
]


@dataclass(frozen=True, kw_only=True)
class HeadSettings:
    """How heads are fitted.

    Attributes:
        penalty: λ of the ridge, as a share of the features' mean variance; `auto`: by exact leave-one-out.
        prior: what the ridge shrinks to: the task's `own` head, or `zero`.
        label_share: the share of a task's labelled rows that `tuned` sees (§4.3 of OTMF: 25 %).
        tuning_rate: of Adam, for `tuned`.
        tuning_steps: over all rows at once.
        polishing_rate: of Adam, for `carried-polished`.
        polishing_steps: against the task model's own probabilities.
        final_head: tune the last task's head too, which the paper leaves as it came.
    """

    penalty: float | Literal["auto"] = "auto"
    prior: Literal["zero", "own"] = "own"
    label_share: float = 0.25
    tuning_rate: float = 0.01
    tuning_steps: int = 100
    polishing_rate: float = 0.01
    polishing_steps: int = 100
    final_head: bool = False


def accuracy(outputs: Float[Tensor, "inputs classes"], labels: Int[Tensor, " inputs"]) -> float:
    """Return how often the largest output is the label."""
    return float((outputs.argmax(1).cpu() == labels.cpu()).double().mean())


def carry(
    features: Float[Tensor, "inputs width"],
    outputs: Float[Tensor, "inputs classes"],
    own: LinearHead,
    settings: HeadSettings,
) -> LinearHead:
    """Return the ridge from merged features onto the task model's own outputs, about the means.

    Ridge is linear in its target, so going through the task's own features and its head gives the same. With
    the prior `own` it is fitted onto what the own head leaves over, so that few inputs, or features that did
    not move, leave that head.
    """
    wanted = outputs.double()
    if settings.prior == "own":
        wanted = wanted - own(features.to(own.weight)).double()
    strength = None if isinstance(settings.penalty, str) else settings.penalty
    fitted = heads.carry(features.double(), wanted, strength, centre=own.bias is not None)
    weight, bias = fitted.matrix.T, fitted.bias
    if settings.prior == "own":
        weight = weight + own.weight
        bias = None if bias is None or own.bias is None else bias + own.bias
    return LinearHead(weight.float().contiguous(), None if own.bias is None or bias is None else bias.float())


def polish(
    head: LinearHead,
    features: Float[Tensor, "inputs width"],
    outputs: Float[Tensor, "inputs classes"],
    settings: HeadSettings,
) -> LinearHead:
    """Return the head after steps of cross-entropy against the task model's own probabilities."""
    return _trained(head, features, outputs.softmax(1), settings.polishing_rate, settings.polishing_steps)


def tune(
    head: LinearHead,
    features: Float[Tensor, "inputs width"],
    labels: Int[Tensor, " inputs"],
    settings: HeadSettings,
) -> LinearHead:
    """Return the head after steps of cross-entropy against labels, the backbone frozen (Eq. 5 of OTMF)."""
    return _trained(head, features, labels, settings.tuning_rate, settings.tuning_steps)


def _trained(head: LinearHead, features: Tensor, wanted: Tensor, rate: float, steps: int) -> LinearHead:
    weight = head.weight.detach().clone().requires_grad_()
    bias = None if head.bias is None else head.bias.detach().clone().requires_grad_()
    leaves = [tensor for tensor in (weight, bias) if tensor is not None]
    optimiser = Adam(leaves, rate)
    features = features.detach().to(weight)
    with torch.enable_grad():
        for _ in range(steps):
            loss = functional.cross_entropy(functional.linear(features, weight, bias), wanted)
            optimiser.step(torch.autograd.grad(loss, leaves))
    return LinearHead(weight.detach(), None if bias is None else bias.detach())


def head_kinds(asked: str | Sequence[str], *, kept: bool) -> tuple[HeadKind, ...]:
    """Return the kinds asked for, checked; `auto` polishes carried heads where inputs are kept."""
    names: Iterable[Any] = [asked] if isinstance(asked, str) else asked
    kinds: list[HeadKind] = []
    for name in names:
        kind = ("carried-polished" if kept else "carried-once") if name == "auto" else name
        if kind not in HEAD_KINDS or kind == FINISHED:
            known = [other for other in HEAD_KINDS if other != FINISHED]
            raise unknown(str(name), ("auto", *known), kind="kind of head", where="--heads")
        if kind in FRESH and not kept:
            raise OptionError(
                f"heads of kind '{kind}' are fitted again with every model, which needs inputs of all tasks",
                where="--heads",
                fix="allow inputs to be kept with --keep-inputs, or choose carried-once",
            )
        if kind not in kinds:
            kinds.append(kind)
    if not kinds:
        raise OptionError("no kind of head is asked for", where="--heads", fix="choose auto")
    return tuple(kinds)
