"""A fitted raw baseline: a linear model of features that need no training, kept as plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from transship.errors import DataError
from transship.numerics import chunks
from transship.verbs.adapt.raw.convolutions import RandomConvolutions
from transship.verbs.adapt.rows.metrics import log_softmax

if TYPE_CHECKING:
    from torch import Tensor

Array = npt.NDArray[Any]
BUCKETS = 4096  # tokens are counted by their id modulo this
FEATURE_ROWS = 512  # whose features are held at once


@dataclass(frozen=True, eq=False)
class RawModel:
    """A linear model of features that need no training.

    Attributes:
        name: constant, logistic, ridge or rocket.
        task: classification, multilabel, regression or dense.
        sees: values, counts (of tokens), convolutions (pooled), fields (unpooled), or nothing.
        target: the shape of one target ([classes] for classification).
        weight: [features, outputs].
        bias: [outputs].
        sharpness: what linear outputs are multiplied by before softmax or the logistic function.
        fill: what stands for a missing value, at every place of a row.
        centre: of every feature; `scale` likewise.
        convolutions: the random kernels, where they are used.
        details: the penalty, its leave-one-out error and the like.
        left_out: outputs of the rows it was fitted on, each by the model without that row, in the shape of
            `outputs`; None where they are not at hand. They are not part of `state`.
        fitted_on: which of the training rows these are; None for all. Not part of `state` either.
    """

    name: str
    task: str
    sees: str
    target: tuple[int, ...]
    weight: Array
    bias: Array
    sharpness: float = 1.0
    fill: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    centre: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    scale: Array = field(default_factory=lambda: np.ones(0, np.float32))
    convolutions: RandomConvolutions | None = None
    details: Mapping[str, float] = field(default_factory=dict)
    left_out: Array | None = None
    fitted_on: Array | None = None

    def unseen(self, inputs: Any) -> Array | None:
        """Return outputs of all training rows, each by a model that has not seen it; None without `left_out`.

        Rows beyond those it was fitted on are new to the model itself.
        """
        if self.left_out is None or self.fitted_on is None:
            return self.left_out
        rest = np.setdiff1d(np.arange(len(inputs)), self.fitted_on)
        made = np.empty((len(inputs), *self.left_out.shape[1:]), self.left_out.dtype)
        made[self.fitted_on], made[rest] = self.left_out, self.outputs(inputs[rest])
        return made

    def outputs(self, inputs: Any) -> Array:
        """Return linear outputs: [rows, classes], [rows, labels] or values of the targets' shape."""
        rows = filled(plain_rows(inputs), self.fill)
        if self.sees == "fields":
            return self._fields(rows)
        # convolutions give thousands of features of a row: never those of all rows at once
        made = [self._linear(rows[part]) for part in chunks(len(rows), FEATURE_ROWS)]
        result: Array = np.concatenate(made or [self._linear(rows)]).reshape(len(rows), *self.target)
        return result

    def _linear(self, rows: Array) -> Array:
        made = features(rows, self.sees, self.convolutions)
        result: Array = (made - self.centre) / self.scale @ self.weight + self.bias
        return result

    def scores(self, inputs: Any) -> Array | None:
        """Return probabilities [rows, classes] or [rows, labels]; None for values."""
        if self.task == "classification":
            return np.exp(log_softmax(self.sharpness * self.outputs(inputs)))
        if self.task == "multilabel":
            result: Array = 1.0 / (1.0 + np.exp(-np.clip(self.sharpness * self.outputs(inputs), -50, 50)))
            return result
        return None

    def predict(self, inputs: Any) -> Array:
        """Return classes [rows], 0/1 labels [rows, labels] or values of the targets' shape."""
        made = self.outputs(inputs)
        if self.task == "classification":
            classes: Array = made.argmax(1)
            return classes
        return (made > 0).astype(np.int64) if self.task == "multilabel" else made

    def state(self) -> dict[str, Array]:
        """Return everything as named arrays, text as bytes: no pickle is needed to keep a model."""
        words = "\x1f".join([self.name, self.task, self.sees])
        arrays = {
            "words": np.frombuffer(words.encode(), np.uint8),
            "target": np.array(self.target, np.int64),
            "sharpness": np.array([self.sharpness]),
            **{name: getattr(self, name) for name in ("weight", "bias", "fill", "centre", "scale")},
        }
        if self.convolutions is not None:
            arrays |= {f"kernels.{name}": array for name, array in self.convolutions.state().items()}
        return arrays

    @classmethod
    def from_state(cls, arrays: Mapping[str, Any]) -> RawModel:
        """Return what `state` described."""
        name, task, sees = bytes(np.asarray(arrays["words"])).decode().split("\x1f")
        kernels = {
            key.removeprefix("kernels."): array for key, array in arrays.items() if key.startswith("kernels.")
        }
        return cls(
            name,
            task,
            sees,
            tuple(map(int, arrays["target"])),
            np.asarray(arrays["weight"]),
            np.asarray(arrays["bias"]),
            float(np.asarray(arrays["sharpness"])[0]),
            np.asarray(arrays["fill"]),
            np.asarray(arrays["centre"]),
            np.asarray(arrays["scale"]),
            RandomConvolutions.from_state(kernels) if kernels else None,
        )

    def _fields(self, rows: Array) -> Array:
        import torch

        assert self.convolutions is not None, "fields are made of convolutions"
        weight, bias = torch.from_numpy(self.weight), torch.from_numpy(self.bias)
        found = []
        for _, fields in self.convolutions.fields(placed(torch.from_numpy(rows))):
            found.append(
                torch.einsum("rk...,ko->ro...", fields, weight) + bias.view(1, -1, *(1,) * (rows.ndim - 2))
            )
        result: Array = torch.cat(found).reshape(len(rows), *self.target).numpy()
        return result


def features(rows: Array, sees: str, convolutions: RandomConvolutions | None) -> Array:
    """Return the features [rows, features] in float32."""
    import torch

    if sees == "nothing":
        return np.zeros((len(rows), 0), np.float32)
    if convolutions is not None:
        made: Array = convolutions.features(
            torch.from_numpy(rows[:, None] if rows.ndim == 2 else rows)
        ).numpy()
        return made
    flat = rows.reshape(len(rows), -1)
    if sees == "values":
        return flat
    counts = np.zeros((len(flat), BUCKETS), np.float32)
    np.add.at(counts, (np.arange(len(flat))[:, None], flat.astype(np.int64) % BUCKETS), 1.0)
    logs: Array = np.log1p(counts)
    return logs


def placed(rows: Tensor) -> Tensor:
    """Return the rows with one more channel per axis of space: the place, from −1 to 1."""
    import torch

    lines = [torch.linspace(-1, 1, side) for side in rows.shape[2:]]
    grids = torch.stack(torch.meshgrid(*lines, indexing="ij"))
    return torch.cat([rows, grids.expand(len(rows), *grids.shape)], 1)


def plain_rows(inputs: Any) -> Array:
    """Return inputs as a contiguous float32 array."""
    if hasattr(inputs, "detach"):
        inputs = inputs.detach().cpu().numpy()
    return np.ascontiguousarray(inputs, dtype=np.float32)


def filled(rows: Array, fill: Array) -> Array:
    """Return the rows with `fill` where they are NaN; infinite values are refused."""
    if np.isinf(rows).any():
        raise DataError("the inputs hold infinite values", where="raw baselines", fix="clip them first")
    missing = np.isnan(rows)
    if not missing.any() or not fill.size:
        return rows
    whole: Array = np.where(missing, np.broadcast_to(fill, rows.shape), rows)
    return whole
