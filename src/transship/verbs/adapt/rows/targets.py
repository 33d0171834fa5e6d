"""Raw targets become what the loss wants and come back as what the user gave; and the classes of FLD."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transship.errors import DataError, OptionError
from transship.verbs.adapt.rows.metrics import TASKS, Task, as_numpy

CODES = 10  # k-means classes that stand for the labels of regression, dense and multi-label tasks
MANY = 10_000  # targets from which mini-batch k-means is used
WIDE = 64  # numbers per target from which principal components are clustered instead


@dataclass(frozen=True, eq=False)
class Targets:
    """How targets are read; fitted on the training rows.

    Attributes:
        task: what is predicted.
        classes: the labels of a classification in the user's own values, sorted.
        shape: of one target, as the user gave it: () for a number, (labels,), (length,), (channels, length),
            …
        mean: of numeric targets, per channel.
        std: the same.
        codes: arrays of the k-means classes: `centres`, and `mean` and `axes` of the components where wide.
        plane: axes of space of a dense target: 1 for signals, 2 for fields.
    """

    task: Task
    classes: NDArray[Any] | None = None
    shape: tuple[int, ...] = ()
    mean: NDArray[np.float32] = field(default_factory=lambda: np.zeros(1, np.float32))
    std: NDArray[np.float32] = field(default_factory=lambda: np.ones(1, np.float32))
    codes: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    plane: int = 1

    @classmethod
    def fit(cls, values: Any, *, task: str = "auto", plane: int = 1, seed: int = 0) -> Targets:
        """Read the training targets; `auto` finds the task from their type and shape.

        `plane` says whether the inputs are series (1) or fields (2), and with it which axis of a dense target
        holds channels.
        """
        array = _array(values)
        chosen = find_task(array, task)
        if chosen == "classification":
            return cls._fit_classes(array)
        numbers = _numbers(array, chosen)
        if chosen == "multilabel":
            if not np.isin(numbers, (0.0, 1.0)).all() or numbers.ndim != 2:
                raise DataError(
                    "multi-label targets are not 0 and 1 in [rows, labels]",
                    where="y",
                    fix="give one column per label",
                )
            return cls("multilabel", None, numbers.shape[1:], codes=_clusters(numbers, seed))
        if chosen == "regression" and numbers.ndim == 2 and numbers.shape[1] == 1:
            numbers = numbers[:, 0]
        if numbers.std() == 0:
            raise DataError("all targets are the same number", where="y", fix="give targets that differ")
        if chosen == "regression" and numbers.ndim > 2:
            raise DataError(
                f"targets of shape {list(numbers.shape)} are fields", where="y", fix='choose task="dense"'
            )
        if chosen == "dense" and numbers.ndim - 1 not in (plane, plane + 1):
            space = "[rows, (channels,) length]" if plane == 1 else "[rows, (channels,) height, width]"
            raise DataError(
                f"targets of shape {list(numbers.shape)} do not fit inputs of {plane} axes",
                where="y",
                fix=f"give {space} for a dense task",
            )
        wide = numbers.reshape(len(numbers), -1) if chosen == "regression" else numbers
        wide = numbers[:, None] if chosen == "dense" and numbers.ndim - 1 == plane else wide
        axes = (0,) if chosen == "regression" else tuple(axis for axis in range(wide.ndim) if axis != 1)
        mean, std = wide.mean(axis=axes), wide.std(axis=axes)
        tail = (1,) * (wide.ndim - 2)
        return cls(
            chosen,
            None,
            numbers.shape[1:],
            mean.reshape(-1, *tail).astype(np.float32),
            np.where(std > 0, std, 1.0).reshape(-1, *tail).astype(np.float32),
            _clusters(numbers.reshape(len(numbers), -1), seed),
            plane,
        )

    @classmethod
    def _fit_classes(cls, array: NDArray[Any]) -> Targets:
        classes = np.unique(array)
        if len(classes) < 2:
            raise DataError(
                f"all {len(array)} targets are {classes[0]}, and one class leaves nothing to learn",
                where="y",
                fix="give targets of two classes or more",
            )
        if len(classes) > 0.5 * len(array) and len(classes) > 20:
            raise DataError(
                f"{len(array)} rows have {len(classes)} different targets, too many for classes",
                where="y",
                fix='choose task="regression"',
            )
        return cls("classification", classes)

    @property
    def outputs(self) -> int:
        """How many numbers the head gives per input, or per place of a dense target."""
        if self.classes is not None:
            return len(self.classes)
        if self.task == "dense":
            return self.shape[0] if self._has_channels else 1
        return self.shape[0] if self.shape else 1

    @property
    def size(self) -> tuple[int, ...]:
        """(length,) or (height, width) of a dense target; empty otherwise."""
        return () if self.task != "dense" else self.shape[1:] if self._has_channels else self.shape

    @property
    def _has_channels(self) -> bool:
        return len(self.shape) > self.plane

    def encode(self, values: Any) -> NDArray[Any]:
        """Return int64 codes, 0/1 floats, or scaled floats [rows, outputs, …] for the loss."""
        array = _array(values)
        if self.classes is not None:
            return self._encode_classes(array)
        numbers = self._shaped(array)
        if self.task == "multilabel":
            return numbers.astype(np.float32)
        scaled = (self._with_channel(numbers) - self.mean) / self.std
        return scaled.astype(np.float32)

    def _shaped(self, array: NDArray[Any]) -> NDArray[np.float64]:
        """Return numeric targets [rows, …]; another shape than that of the training targets is refused."""
        numbers = _numbers(array, self.task)
        if self.task == "regression" and numbers.shape[1:] == (1,) and not self.shape:
            numbers = numbers[:, 0]
        if numbers.shape[1:] != self.shape:
            raise DataError(
                f"targets are {list(numbers.shape[1:])} and the model was trained on {list(self.shape)}",
                where="y",
                fix="give targets of that shape",
            )
        return numbers

    def _encode_classes(self, array: NDArray[Any]) -> NDArray[np.int64]:
        assert self.classes is not None
        if array.ndim != 1:
            raise DataError(
                f"targets of shape {list(array.shape)} are no classes",
                where="y",
                fix="give one label per row",
            )
        if array.dtype.kind != self.classes.dtype.kind and {array.dtype.kind, self.classes.dtype.kind} & set(
            "UO"
        ):
            array = array.astype(str)
        places = np.searchsorted(self.classes, array).clip(max=len(self.classes) - 1)
        strange = self.classes[places] != array
        if strange.any():
            known = ", ".join(map(str, self.classes[:8])) + (", …" if len(self.classes) > 8 else "")
            raise DataError(
                f"class {array[strange][0]} does not occur in training ({known} do)",
                where="y",
                fix="train on data that has every class, or leave those rows out",
            )
        return places.astype(np.int64)

    def decode(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """Return predictions in the user's own values and shape from the head's outputs."""
        if self.classes is not None:
            return np.asarray(self.classes[outputs.argmax(1)])
        if self.task == "multilabel":
            return (outputs > 0).astype(np.int64)
        return self.unscaled(outputs)

    def prediction(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """Return predictions as metrics take them: int codes, 0/1, or floats."""
        if self.classes is not None:
            return np.asarray(outputs.argmax(1), dtype=np.int64)
        return self.decode(outputs)

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON holds of it; mean, std and codes are arrays of their own."""
        classes = self.classes
        return {
            "task": self.task,
            "classes": None if classes is None else classes.tolist(),
            "dtype": None if classes is None else classes.dtype.str,
            "shape": list(self.shape),
            "plane": self.plane,
        }

    @classmethod
    def from_dict(
        cls,
        facts: Mapping[str, Any],
        mean: NDArray[Any],
        std: NDArray[Any],
        codes: Mapping[str, NDArray[Any]],
    ) -> Targets:
        """Return what `to_dict` and the arrays gave."""
        classes = facts["classes"]
        if classes is not None:
            classes = np.array(classes, dtype=np.dtype(facts["dtype"]))
        return cls(facts["task"], classes, tuple(facts["shape"]), mean, std, codes, facts["plane"])

    def unscaled(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """Return numeric outputs in the target's own units and shape."""
        numbers = outputs * self.std + self.mean
        return np.asarray(numbers.reshape(len(numbers), *self.shape), dtype=np.float64)

    def scores(self, outputs: NDArray[Any]) -> NDArray[Any] | None:
        """Return probabilities, or None for numeric targets."""
        wide = outputs.astype(np.float64)
        if self.classes is not None:
            powers = np.exp(wide - wide.max(1, keepdims=True))
            return np.asarray(powers / powers.sum(1, keepdims=True))
        return 1.0 / (1.0 + np.exp(-wide)) if self.task == "multilabel" else None

    def truth(self, values: Any) -> NDArray[Any]:
        """Return targets as metrics take them: int codes, 0/1, or floats in their own units."""
        if self.classes is not None:
            return self._encode_classes(_array(values))
        numbers = self._shaped(_array(values))
        return numbers.astype(np.int64) if self.task == "multilabel" else numbers

    def label_codes(self, values: Any) -> NDArray[np.int64]:
        """Return the classes z' of FLD: the labels themselves, or the nearest k-means centre."""
        if self.classes is not None:
            return self._encode_classes(_array(values))
        numbers = self._shaped(_array(values))
        flat = numbers.reshape(len(numbers), -1)
        if "axes" in self.codes:
            flat = (flat - self.codes["mean"]) @ self.codes["axes"].T
        centres = self.codes["centres"]
        squares = (centres**2).sum(1) - 2.0 * flat @ centres.T
        return np.asarray(squares.argmin(1), dtype=np.int64)

    @property
    def code_count(self) -> int:
        """How many classes FLD works with."""
        return len(self.classes) if self.classes is not None else len(self.codes["centres"])

    def _with_channel(self, numbers: NDArray[Any]) -> NDArray[Any]:
        if self.task == "regression":
            return numbers.reshape(len(numbers), -1)
        return numbers if self._has_channels else numbers[:, None]


def _array(values: Any) -> NDArray[Any]:
    try:
        array = plain_labels(as_numpy(values), "y")
    except ValueError as error:
        raise DataError("targets are ragged", where="y", fix="give targets of one shape") from error
    if not array.size:
        raise DataError("there are no targets", where="y", fix="give at least one row")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.argmin(np.isfinite(array).reshape(len(array), -1).all(1)))
        raise DataError(f"target {row + 1} is NaN or infinite", where="y", fix="fill in or drop those rows")
    return array


def plain_labels(values: Any, where: str) -> NDArray[Any]:
    """Return targets as an array of text or numbers; a missing one (None, NaN) among text is refused by row.

    NumPy would make the texts 'None' and 'nan' of them, which are classes like any other.
    """
    array = np.asarray(values)
    if array.dtype != object and (array.dtype.kind != "U" or isinstance(values, np.ndarray)):
        return array
    objects = np.asarray(values, dtype=object)
    missing = [place for place, value in enumerate(objects.flat) if _is_missing(value)]
    if missing:
        row = missing[0] // max(1, objects.size // len(objects))
        raise DataError(
            f"target {row + 1} is missing ({len(missing)} such)",
            where=where,
            fix="fill in or drop those rows",
        )
    if any(isinstance(value, str) for value in objects.flat):
        return objects.astype(str)
    try:
        return objects.astype(float)
    except (TypeError, ValueError) as error:
        kind = type(objects.flat[0]).__name__
        raise DataError(
            f"targets are neither text nor numbers but {kind}", where=where, fix="give one of them"
        ) from error


def _is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, or pandas' NA or NaT."""
    is_nan = isinstance(value, float | np.floating) and bool(np.isnan(value))
    return value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")


def find_task(array: NDArray[Any], task: str) -> Task:
    """Return the task of targets: the one that is named, when they fit it; `auto` reads it off them."""
    if task == "auto":
        whole = array.dtype.kind != "f" or bool((array == np.floor(array)).all())
        if array.ndim == 1:
            few = len(np.unique(array)) <= max(20, len(array) // 4)
            return "classification" if array.dtype.kind not in "f" or (whole and few) else "regression"
        binary = array.ndim == 2 and bool(np.isin(array, (0, 1)).all())
        return "multilabel" if binary else "dense"
    if task not in TASKS:
        raise OptionError(f"there is no task '{task}'", where="task", fix=f"choose {', '.join(TASKS)}")
    if task == "classification" and array.ndim == 2 and array.shape[1] == 1:
        raise DataError("classes come as a column [rows, 1]", where="y", fix="give y.ravel()")
    if task == "classification" and array.ndim != 1:
        raise DataError(
            f"targets of shape {list(array.shape)} are no classes",
            where="y",
            fix="give one label per row, or another task",
        )
    return task


def _numbers(array: NDArray[Any], task: str) -> NDArray[np.float64]:
    if array.dtype.kind not in "fiub":
        raise DataError(
            f"{task} needs numbers and the targets are text such as {str(array.flat[0])!r}",
            where="y",
            fix='give numbers, or choose task="classification"',
        )
    return array.astype(np.float64)


def _clusters(numbers: NDArray[Any], seed: int) -> dict[str, NDArray[np.float32]]:
    """Return the centres of k-means over the flattened targets, and the components where they are wide."""
    from sklearn.cluster import KMeans, MiniBatchKMeans

    flat = numbers.reshape(len(numbers), -1).astype(np.float64)
    arrays: dict[str, NDArray[np.float32]] = {}
    if flat.shape[1] > WIDE:
        mean = flat.mean(0)
        _, _, axes = np.linalg.svd(flat[:2000] - mean, full_matrices=False)
        axes = axes[: min(16, len(axes))]
        # float32 throughout, so that a model from disk finds the same codes
        arrays = {"mean": mean.astype(np.float32), "axes": axes.astype(np.float32)}
        flat = (flat - arrays["mean"]) @ arrays["axes"].T
    count = min(CODES, len(np.unique(flat, axis=0)))
    kind = MiniBatchKMeans if len(flat) > MANY else KMeans
    model = kind(count, n_init=4, random_state=seed % 2**32).fit(flat)
    return arrays | {"centres": model.cluster_centers_.astype(np.float32)}
