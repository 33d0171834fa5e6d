"""Whether the labels of the user's data are the fine-tune's own answers, and which is which."""

import torch
from torch import Tensor

from transship.activations.readout import Readout
from transship.data.use import match_labels, unnamed
from transship.verbs.transport.calibrate import Draws


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
    places = match_labels(names, head.label_names, f"the {who}", width=head.width, partly=partly)
    return places if isinstance(places, str) else torch.as_tensor(places)[labels]


def as_classes(labels: Tensor, names: tuple[str, ...], others: tuple[str, ...], who: str) -> Tensor | str:
    """Return labels as other data, `who`, numbers its classes, or why it has none of them."""
    if not names:
        return labels
    if unnamed(names) != unnamed(others):
        return f"{who} has no class '{names[0]}'"
    places = match_labels(names, others, who, partly=True)
    return places if isinstance(places, str) else torch.as_tensor(places)[labels]
