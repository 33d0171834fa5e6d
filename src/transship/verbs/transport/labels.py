"""Whether the labels of the user's data are the fine-tune's own answers, and which is which."""

import re

import torch
from torch import Tensor

from transship.activations.readout import Readout
from transship.verbs.transport.calibrate import Draws

# names that a config has when nobody gave any
_UNNAMED = re.compile(r"(LABEL_)?\d+")


def validation_labels(draws: Draws, tuned: Readout) -> Tensor | str | None:
    """Return the validation labels as the fine-tuned source numbers its outputs, or why they cannot be used;
    None where the data has none.
    """
    if draws.validation is None or draws.labels is None:
        return None
    return as_outputs(draws.labels, draws.label_names, tuned, "fine-tune")


def as_outputs(
    labels: Tensor,
    names: tuple[str, ...],
    head: Readout,
    who: str,
    *,
    partly: bool = False,
    per_word: bool = False,
) -> Tensor | str:
    """Return labels as a model numbers its outputs, or why they are none of them.

    Classes meet by name where both sides have names, whatever their order, and by number otherwise; with
    `partly`, numbers may stand for the first of the model's classes. Labels `per_word` are for heads that
    answer for every token.
    """
    if head.task == "values" and not per_word:
        return (
            labels if labels.dtype.is_floating_point else f"the {who} gives values, and the data has classes"
        )
    if head.task != ("tokens" if per_word else "classes"):
        unit = "token" if head.task in ("tokens", "language") else "text"
        return f"the {who} has no head" if head.task == "features" else f"the {who} answers per {unit}"
    if labels.dtype.is_floating_point:
        return f"the {who} tells classes apart, and the data has values"
    if _unnamed(names) or _unnamed(head.label_names):
        if len(names) == head.width or (partly and _unnamed(names) and len(names) < head.width):
            return labels
        return f"the data has {len(names)} classes and the {who} {head.width}"
    found = by_name(labels, names, head.label_names)
    return f"the {who} has no class '{found}'" if isinstance(found, str) else found


def as_classes(labels: Tensor, names: tuple[str, ...], others: tuple[str, ...]) -> Tensor | str:
    """Return labels as other data numbers its classes, or the name of a class that it does not have."""
    if not names or (_unnamed(names) and _unnamed(others) and len(names) <= len(others)):
        return labels
    return by_name(labels, names, others)


def by_name(labels: Tensor, names: tuple[str, ...], others: tuple[str, ...]) -> Tensor | str:
    """Return labels numbered as `others` are, or the first name that is none of them."""
    places = {_plain(name): number for number, name in enumerate(others)}
    missing = [name for name in names if _plain(name) not in places]
    if missing:
        return missing[0]
    return torch.tensor([places[_plain(name)] for name in names])[labels]


def _unnamed(names: tuple[str, ...]) -> bool:
    return all(_UNNAMED.fullmatch(name) for name in names)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name.strip().casefold())
