"""Raw models: linear maps of what needs no training to be seen in raw values, and a random forest of it.

Values are seen as they are, through random convolutions, through MiniRocket's kernels, or, of symbols, as the
n-grams that occur. Symbols come as one-hot channels [rows, symbols, length], so that "as they are" means
which symbol stands where.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transship.errors import DataError
from transship.numerics import chunks
from transship.types import Array
from transship.verbs.adapt.raw.convolutions import RandomConvolutions
from transship.verbs.adapt.raw.forest import Forest, linear
from transship.verbs.adapt.raw.minirocket import MiniRocket
from transship.verbs.adapt.rows.metrics import as_numpy, log_softmax
from transship.verbs.adapt.rows.targets import Targets

BUCKETS, LONGEST = (
    4096,
    4,
)  # n-grams of one length are counted by their number modulo this, up to four symbols
FEATURE_ROWS = 512  # whose features are held at once
Drawn = RandomConvolutions | MiniRocket
_DRAWN: dict[str, type[Drawn]] = {"kernels": RandomConvolutions, "minirocket": MiniRocket}


@dataclass(frozen=True, eq=False)
class RawModel:
    """A linear model, or a forest, of features that need no training.

    Attributes:
        name: constant, logistic, ridge, ngrams, rocket, minirocket or forest.
        task: classification, multilabel, regression or dense.
        sees: values, ngrams (of symbols), convolutions (pooled), fields (unpooled), or nothing.
        target: the shape of one target ([classes] for classification).
        weight: [features, outputs]; empty for a forest.
        bias: [outputs]; likewise.
        sharpness: what linear outputs are multiplied by before softmax or the logistic function.
        fill: what stands for a missing value, at every place of a row.
        centre: of every feature; `scale` likewise.
        convolutions: the random kernels, or MiniRocket's, where they are used.
        forest: the trees of a forest.
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
    convolutions: Drawn | None = None
    forest: Forest | None = None
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
        outputs = np.empty((len(inputs), *self.left_out.shape[1:]), self.left_out.dtype)
        outputs[self.fitted_on], outputs[rest] = self.left_out, self.outputs(inputs[rest])
        return outputs

    def outputs(self, inputs: Any) -> Array:
        """Return linear outputs: [rows, classes], [rows, labels] or values of the targets' shape."""
        rows = filled(plain_rows(inputs), self.fill)
        if self.sees == "fields":
            return self._fields(rows)
        # convolutions give thousands of features of a row: never those of all rows at once
        parts = [self._linear(rows[part]) for part in chunks(len(rows), FEATURE_ROWS)]
        result: Array = np.concatenate(parts or [self._linear(rows)]).reshape(len(rows), *self.target)
        return result

    def _linear(self, rows: Array) -> Array:
        seen = features(rows, self.sees, self.convolutions)
        if self.forest is not None:
            return linear(self.forest.mean(seen), self.task)
        result: Array = (seen - self.centre) / self.scale @ self.weight + self.bias
        return result

    def scores(self, inputs: Any) -> Array | None:
        """Return probabilities [rows, classes] or [rows, labels]; None for values."""
        return self.answers(inputs)[1]

    def predict(self, inputs: Any) -> Array:
        """Return classes [rows], 0/1 labels [rows, labels] or values of the targets' shape."""
        return self.answers(inputs)[0]

    def answers(self, inputs: Any) -> tuple[Array, Array | None]:
        """Return what `predict` and `scores` do; the features are made once."""
        outputs = self.outputs(inputs)
        if self.task == "classification":
            return outputs.argmax(1), np.exp(log_softmax(self.sharpness * outputs))
        if self.task == "multilabel":
            shares: Array = 1.0 / (1.0 + np.exp(-np.clip(self.sharpness * outputs, -50, 50)))
            return (outputs > 0).astype(np.int64), shares
        return outputs, None

    def state(self) -> dict[str, Array]:
        """Return everything as named arrays, text as bytes: no pickle is needed to keep a model."""
        words = "\x1f".join([self.name, self.task, self.sees])
        arrays = {
            "words": np.frombuffer(words.encode(), np.uint8),
            "target": np.array(self.target, np.int64),
            "sharpness": np.array([self.sharpness]),
            **{name: getattr(self, name) for name in ("weight", "bias", "fill", "centre", "scale")},
        }
        parts = {name: self.convolutions for name, kind in _DRAWN.items() if type(self.convolutions) is kind}
        for prefix, part in {**parts, "forest": self.forest}.items():
            if part is not None:
                arrays |= {f"{prefix}.{name}": array for name, array in part.state().items()}
        return arrays

    @classmethod
    def from_state(cls, arrays: Mapping[str, Any]) -> "RawModel":
        """Return what `state` described."""
        name, task, sees = bytes(np.asarray(arrays["words"])).decode().split("\x1f")
        drawn = {prefix: _below(prefix, arrays) for prefix in _DRAWN}
        trees = _below("forest", arrays)
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
            next((_DRAWN[prefix].from_state(held) for prefix, held in drawn.items() if held), None),
            Forest.from_state(trees) if trees else None,
        )

    def _fields(self, rows: Array) -> Array:
        assert isinstance(self.convolutions, RandomConvolutions), "fields are made of convolutions"
        weight, bias = torch.from_numpy(self.weight), torch.from_numpy(self.bias)
        parts = []
        for _, fields in self.convolutions.fields(placed(torch.from_numpy(rows))):
            parts.append(
                torch.einsum("rk...,ko->ro...", fields, weight) + bias.view(1, -1, *(1,) * (rows.ndim - 2))
            )
        result: Array = torch.cat(parts).reshape(len(rows), *self.target).numpy()
        return result


@dataclass(frozen=True, eq=False)
class BaseModel:
    """A raw model under the network, which learns what it leaves over.

    A linear model on raw values or on random convolutions of them is hard to beat on little data. With a base
    the adapted model's outputs are base + network: logits for classes and labels, values for numbers. The
    network's head starts at zero, so the whole starts as the base, and that start is one of the candidates
    validation chooses from.
    """

    model: RawModel
    targets: Targets

    def outputs(self, inputs: Array) -> Array:
        """Return what is added to the network's outputs for scaled inputs [rows, channels, …], in float32."""
        return in_units(self.model, self.model.outputs(inputs), self.targets)


def in_units(model: RawModel, outputs: Array, targets: Targets) -> Array:
    """Return outputs of the raw model [rows, …] in the units of the network's, in float32."""
    if targets.task in ("classification", "multilabel"):
        return np.asarray(model.sharpness * outputs, dtype=np.float32)
    return np.asarray(targets.encode(outputs.reshape(len(outputs), *targets.shape)), dtype=np.float32)


def _below(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    start = f"{prefix}."
    return {key.removeprefix(start): array for key, array in arrays.items() if key.startswith(start)}


def features(rows: Array, sees: str, convolutions: Drawn | None) -> Array:
    """Return the features [rows, features] in float32."""
    if sees == "nothing":
        return np.zeros((len(rows), 0), np.float32)
    if convolutions is not None:
        convolved: Array = convolutions.features(
            torch.from_numpy(rows[:, None] if rows.ndim == 2 else rows)
        ).numpy()
        return convolved
    return rows.reshape(len(rows), -1) if sees == "values" else _ngrams(rows)


def _ngrams(rows: Array) -> Array:
    """Return log(1 + how often every n-gram occurs) of one-hot symbols [rows, symbols, length].

    All lengths of which there are few enough to count each are counted, and pairs always.
    """
    symbols, length = rows.shape[1:]
    ids, counted = rows.argmax(1).astype(np.int64), []
    codes = np.zeros((len(rows), length + 1), np.int64)
    for size in range(1, min(LONGEST, length) + 1):
        codes = codes[:, :-1] * symbols + ids[:, size - 1 :]
        if size > 2 and symbols**size > BUCKETS:
            break
        counts = np.zeros((len(rows), min(symbols**size, BUCKETS)), np.float32)
        np.add.at(counts, (np.arange(len(rows))[:, None], codes % BUCKETS), 1.0)
        counted.append(np.log1p(counts))
    return np.concatenate(counted, 1)


def placed(rows: Tensor) -> Tensor:
    """Return the rows with one more channel per axis of space: the place, from −1 to 1."""
    lines = [torch.linspace(-1, 1, side) for side in rows.shape[2:]]
    grids = torch.stack(torch.meshgrid(*lines, indexing="ij"))
    return torch.cat([rows, grids.expand(len(rows), *grids.shape)], 1)


def plain_rows(inputs: Any) -> Array:
    """Return inputs as a contiguous float32 array."""
    return np.ascontiguousarray(as_numpy(inputs), dtype=np.float32)


def filled(rows: Array, fill: Array) -> Array:
    """Return the rows with `fill` where they are NaN; infinite values are refused."""
    if np.isinf(rows).any():
        raise DataError("the inputs hold infinite values", where="raw baselines", fix="clip them first")
    missing = np.isnan(rows)
    if not missing.any() or not fill.size:
        return rows
    whole: Array = np.where(missing, np.broadcast_to(fill, rows.shape), rows)
    return whole
