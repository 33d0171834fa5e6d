"""Which rows of the user's data are used for what (test rows never), and whether their labels are the
fine-tune's own answers.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transship.activations.models import is_text_pair
from transship.activations.readout import Readout
from transship.data import Dataset, load, wrap
from transship.data.use import match_labels, rows_to_choose, rows_to_fit, unnamed
from transship.errors import DataError, OptionError
from transship.numerics import derive_seed

MOST_VALIDATION = 400
# fewer tell methods apart no better than chance
LEAST_HELD_OUT = 16


@dataclass(frozen=True, eq=False)
class Draws:
    """Rows by purpose; no row is both calibration and validation.

    Attributes:
        calibration: raw inputs that maps are fitted on.
        head: raw inputs that a head is fitted on; the calibration inputs are among them.
        held_out: raw inputs for comparing methods without labels.
        validation: raw inputs with labels, or None.
        labels: of the validation inputs.
        calibration_labels: of the calibration inputs, where the data has labels.
        name: of the data.
        fingerprint: of the data.
        held_out_fitted: whether the held-out inputs are calibration inputs after all, because too few rows
            were left over.
    """

    calibration: Sequence[Any]
    head: Sequence[Any]
    held_out: Sequence[Any]
    validation: Sequence[Any] | None
    labels: Tensor | None
    calibration_labels: Tensor | None
    label_names: tuple[str, ...]
    name: str
    fingerprint: str
    held_out_fitted: bool = False


def as_dataset(data: Any) -> Dataset:
    """Return a Dataset from a reference, a Dataset, or inputs in memory."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, str) or hasattr(data, "__fspath__"):
        return load(str(data))
    if isinstance(data, np.ndarray | Tensor):
        return wrap(np.asarray(data), kind="array", name="arrays in memory")
    if data is None:
        raise DataError("there is none", where="data", fix="give inputs of the task")
    rows = list(data)
    if rows and isinstance(rows[0], str):
        return wrap(rows, kind="text", name="texts in memory")
    if rows and is_text_pair(rows[0]):
        return wrap(rows, kind="pair", name="pairs of texts in memory")
    if rows and isinstance(rows[0], np.ndarray | Tensor):
        shapes = {tuple(np.shape(row)) for row in rows}
        if len(shapes) > 1:
            named = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2])
            raise DataError(
                f"its arrays have shapes {named}", where="arrays in memory", fix="give arrays of one shape"
            )
        return wrap(np.stack([np.asarray(row) for row in rows]), kind="array", name="arrays in memory")
    return wrap(rows, kind="image", name="images in memory")


def draw(
    data: Any,
    *,
    batches: int = 10,
    batch_size: int = 32,
    shots: int | None = None,
    head_inputs: int = 1000,
    seed: int = 0,
) -> Draws:
    """Draw rows of the training part: B batches, or K labelled examples per class."""
    dataset = as_dataset(data)
    if batches < 1 or batch_size < 1:
        raise OptionError(
            f"{batches} batches of {batch_size}", where="--batches", fix="take at least one of each"
        )
    train = rows_to_fit(dataset)
    count = batches * batch_size
    rows = _order(len(train), seed)[:count] if shots is None else _per_class(train, shots, seed)
    left = np.setdiff1d(np.arange(len(train)), rows)
    left = left[np.random.default_rng(derive_seed(seed, "rest")).permutation(len(left))]
    validation = rows_to_choose(dataset)
    classes = bool(dataset.label_names) or (dataset.labels is not None)
    if validation is None and classes and len(left) >= 20:
        size = min(MOST_VALIDATION, len(left) // 2)
        validation, left = train.subset(np.sort(left[:size])), left[size:]
    elif validation is not None and len(validation) > MOST_VALIDATION:
        validation = validation.take(MOST_VALIDATION, seed=seed)
    size = min(max(64, count), len(left) // 3)
    held, left = left[:size], left[size:]
    fitted = len(held) < LEAST_HELD_OUT
    if fitted:
        held = rows[: max(1, len(rows) // 4)]
    more = left[: max(0, head_inputs - len(rows))]
    calibration = train.subset(rows)
    if validation is not None and validation.labels is None:
        validation = None
    return Draws(
        _listed(calibration),
        _listed(train.subset(np.concatenate([rows, more]).astype(np.int64))),
        _listed(train.subset(held)),
        None if validation is None else _listed(validation),
        None if validation is None else torch.as_tensor(validation.labels),
        None if calibration.labels is None else torch.as_tensor(calibration.labels),
        dataset.label_names,
        dataset.name,
        dataset.fingerprint(),
        fitted,
    )


def draw_kept(keep: Any, head_inputs: int, batch_size: int, seed: int) -> Sequence[Any]:
    """Return the raw inputs of the target's own domain on which a carried head keeps its answers."""
    batches = max(1, head_inputs // batch_size)
    return draw(keep, batches=batches, batch_size=batch_size, seed=seed).calibration


def _per_class(train: Dataset, shots: int, seed: int) -> Any:
    # by place: ids of the data need not tell rows apart
    places = dataclasses.replace(train, ids=np.arange(len(train)), has_ids=False)
    return places.per_class(shots, seed=seed, allow_fewer=True).ids


def _order(count: int, seed: int) -> Any:
    return np.random.default_rng(derive_seed(seed, "calibration")).permutation(count)


def _listed(dataset: Dataset) -> Sequence[Any]:
    rows: Sequence[Any] = dataset.inputs  # type: ignore[assignment]
    return rows


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
