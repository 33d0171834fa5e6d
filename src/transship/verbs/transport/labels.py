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

    Classes meet by name where both sides have names, whatever their order, and by number otherwise.
    """
    if draws.validation is None or draws.labels is None:
        return None
    if tuned.task == "values":
        if draws.labels.dtype.is_floating_point:
            return draws.labels
        return "the fine-tune gives values, and the data has classes"
    if tuned.task != "classes":
        return "the fine-tune has no head" if tuned.task == "features" else "the fine-tune answers per token"
    if draws.labels.dtype.is_floating_point:
        return "the fine-tune tells classes apart, and the data has values"
    names, outputs = draws.label_names, tuned.label_names
    if _unnamed(names) or _unnamed(outputs):
        if len(names) == tuned.width:
            return draws.labels
        return f"the data has {len(names)} classes and the fine-tune {tuned.width}"
    places = {_plain(name): number for number, name in enumerate(outputs)}
    missing = [name for name in names if _plain(name) not in places]
    if missing:
        return f"the fine-tune has no class '{missing[0]}'"
    return torch.tensor([places[_plain(name)] for name in names])[draws.labels]


def _unnamed(names: tuple[str, ...]) -> bool:
    return all(_UNNAMED.fullmatch(name) for name in names)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name.strip().casefold())
