"""Raw models: linear maps of raw values, or of random convolutions of them that need no training.

After Dempster, Petitjean and Webb, "ROCKET: exceptionally fast and accurate time series classification using
random convolutional kernels": kernels of random length, weights, dilation and padding, and of each output the
share of positive values and the maximum. Ours differ in two ways: half of the biases are random quantiles of
the kernel's outputs on the training rows (as in MiniRocket; the others lie around 0, as ROCKET's do), and
dilations lie on a grid, so that kernels of one shape run as one convolution. Images and grids use square
kernels, and the share of positive values is taken in each of 3 × 3 cells, because there the place matters.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn.functional import adaptive_avg_pool2d, conv1d, conv2d

from transship.errors import DataError
from transship.numerics import chunks
from transship.types import Array
from transship.verbs.adapt.rows.metrics import as_numpy, log_softmax
from transship.verbs.adapt.rows.targets import Targets

LENGTHS, SIDES, CELLS = (7, 9, 11), (3, 5), 3
_DILATIONS = 8  # the most that lie on the grid
_ELEMENTS = 4_000_000  # of one convolution's output: what stays near the processor
_SAMPLE = 32  # rows whose outputs give the biases
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
    convolutions: "RandomConvolutions | None" = None
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
        result: Array = (seen - self.centre) / self.scale @ self.weight + self.bias
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
        outputs = self.outputs(inputs)
        if self.task == "classification":
            classes: Array = outputs.argmax(1)
            return classes
        return (outputs > 0).astype(np.int64) if self.task == "multilabel" else outputs

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
    def from_state(cls, arrays: Mapping[str, Any]) -> "RawModel":
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
        assert self.convolutions is not None, "fields are made of convolutions"
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


def features(rows: Array, sees: str, convolutions: "RandomConvolutions | None") -> Array:
    """Return the features [rows, features] in float32."""
    if sees == "nothing":
        return np.zeros((len(rows), 0), np.float32)
    if convolutions is not None:
        convolved: Array = convolutions.features(
            torch.from_numpy(rows[:, None] if rows.ndim == 2 else rows)
        ).numpy()
        return convolved
    flat = rows.reshape(len(rows), -1)
    if sees == "values":
        return flat
    counts = np.zeros((len(flat), BUCKETS), np.float32)
    np.add.at(counts, (np.arange(len(flat))[:, None], flat.astype(np.int64) % BUCKETS), 1.0)
    logs: Array = np.log1p(counts)
    return logs


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


@dataclass(frozen=True, eq=False)
class Group:
    """Kernels that run as one convolution.

    Attributes:
        weights: [kernels, channels, length] or [kernels, channels, side, side].
        biases: [kernels].
        dilation: steps between taps.
        padding: zeros added at each end.
    """

    weights: Tensor
    biases: Tensor
    dilation: int
    padding: int

    def apply(self, rows: Tensor) -> Tensor:
        """Return the outputs less the bias: [rows, kernels, …]."""
        convolve = conv1d if rows.ndim == 3 else conv2d
        return convolve(rows, self.weights, -self.biases, dilation=self.dilation, padding=self.padding)


@dataclass(frozen=True, eq=False)
class RandomConvolutions:
    """Random kernels with the scale of the rows they were drawn for.

    Attributes:
        groups: the kernels.
        mean: of every channel [channels].
        scale: the standard deviation of every channel, 1 where it is constant [channels].
    """

    groups: tuple[Group, ...]
    mean: Tensor
    scale: Tensor

    @property
    def kernels(self) -> int:
        """The number of kernels."""
        return sum(len(group.biases) for group in self.groups)

    def features(self, rows: Tensor) -> Tensor:
        """Return shares of positive values and maxima per kernel: [rows, features] in float32."""
        with torch.inference_mode():
            scaled = self.scaled(rows)
            return torch.cat([self._pooled(group, scaled) for group in self.groups], 1)

    def fields(self, rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield chunks of rows with the positive part of every output at every place: [rows, kernels, …].

        The kernels must have been drawn with `everywhere`, so that outputs have the shape of the rows.
        """
        places = math.prod(rows.shape[2:])
        with torch.inference_mode():
            scaled = self.scaled(rows)
            for some in chunks(len(rows), max(1, 8 * _ELEMENTS // (places * self.kernels))):
                yield some, torch.cat([group.apply(scaled[some]).relu_() for group in self.groups], 1)

    def scaled(self, rows: Tensor) -> Tensor:
        """Return rows whose channels have mean 0 and deviation 1 on what the kernels were drawn for."""
        shape = (1, -1, *(1,) * (rows.ndim - 2))
        return (rows.float() - self.mean.view(shape)) / self.scale.view(shape)

    def state(self) -> dict[str, Any]:
        """Return everything as named NumPy arrays."""
        arrays: dict[str, Any] = {"mean": self.mean.numpy(), "scale": self.scale.numpy()}
        for number, group in enumerate(self.groups):
            arrays[f"{number}.weights"] = group.weights.numpy()
            arrays[f"{number}.biases"] = group.biases.numpy()
            arrays[f"{number}.shape"] = np.array([group.dilation, group.padding])
        return arrays

    @classmethod
    def from_state(cls, arrays: Mapping[str, Any]) -> "RandomConvolutions":
        """Return what `state` described."""
        held = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        groups, number = [], 0
        while f"{number}.weights" in held:
            dilation, padding = map(int, held[f"{number}.shape"])
            groups.append(Group(held[f"{number}.weights"], held[f"{number}.biases"], dilation, padding))
            number += 1
        return cls(tuple(groups), held["mean"], held["scale"])

    @staticmethod
    def _pooled(group: Group, scaled: Tensor) -> Tensor:
        places = math.prod(scaled.shape[2:])
        parts = []
        for some in chunks(len(scaled), max(1, _ELEMENTS // (places * len(group.biases)))):
            out = group.apply(scaled[some])
            positive = (out > 0).to(out.dtype)
            if out.ndim == 3:
                shares = positive.mean(-1)
            else:
                cells = min(CELLS, out.shape[2]), min(CELLS, out.shape[3])
                shares = adaptive_avg_pool2d(positive, cells).flatten(1)
            parts.append(torch.cat([shares, out.flatten(2).amax(-1)], 1))
        return torch.cat(parts)


def draw_convolutions(
    rows: Tensor, kernels: int, *, seed: int, everywhere: bool = False
) -> "RandomConvolutions":
    """Return random kernels for rows [rows, channels, length] or [rows, channels, height, width].

    Args:
        rows: the training rows; they set the scale of the channels and the biases.
        kernels: how many.
        seed: of everything drawn.
        everywhere: pad every kernel, so that outputs have the shape of the rows.
    """
    generator = torch.Generator().manual_seed(seed)
    axes = [0, *range(2, rows.ndim)]
    values = rows.float()
    deviation, mean = torch.std_mean(values, axes, correction=0)
    scale = torch.where(deviation > 1e-6 * (mean.abs() + 1e-30), deviation, torch.ones_like(deviation))
    drawn = RandomConvolutions((), mean, scale)
    chosen = torch.randperm(len(rows), generator=generator)[:_SAMPLE]
    sample = drawn.scaled(values[chosen])
    shapes = _shapes(tuple(rows.shape[2:]), kernels, generator, everywhere)
    groups = tuple(_group(shape, count, sample, generator) for shape, count in shapes.items())
    return RandomConvolutions(groups, mean, scale)


def _shapes(
    space: tuple[int, ...], kernels: int, generator: Generator, everywhere: bool
) -> dict[tuple[int, int, int], int]:
    """Return (length, dilation, padding) → how many kernels have it, in a fixed order."""
    shortest = min(space)
    lengths = LENGTHS if len(space) == 1 else SIDES
    drawn = torch.rand((kernels, 3), generator=generator).tolist()
    counts: dict[tuple[int, int, int], int] = {}
    for which, stretch, pad in drawn:
        length = lengths[int(which * len(lengths))]
        most = max(0.0, math.log2(max(1.0, (shortest - 1) / (length - 1))))
        steps = min(_DILATIONS, int(most) + 2)
        # exponents on a grid from 0 to `most`: as ROCKET's, but few enough that kernels share a shape
        dilation = int(2 ** (most * int(stretch * steps) / max(1, steps - 1)))
        reach = (length - 1) * dilation
        padded = everywhere or pad < 0.5 or reach + (CELLS if len(space) == 2 else 1) > shortest
        key = (length, dilation, reach // 2 if padded else 0)
        counts[key] = counts.get(key, 0) + 1
    return dict(sorted(counts.items()))


def _group(shape: tuple[int, int, int], count: int, sample: Tensor, generator: Generator) -> Group:
    length, dilation, padding = shape
    channels, taps = sample.shape[1], (length,) * (sample.ndim - 2)
    weights = torch.randn((count, channels, *taps), generator=generator)
    weights -= weights.mean(tuple(range(2, weights.ndim)), keepdim=True)
    # a kernel looks at a random set of channels, more often few than many
    most = math.log2(min(channels, length) + 1)
    wanted = (2 ** (torch.rand(count, generator=generator) * most)).long().clamp(1, channels)
    order = torch.rand((count, channels), generator=generator).argsort(1).argsort(1)
    weights *= (order < wanted[:, None]).view(count, channels, *(1,) * len(taps))
    weights /= weights.flatten(1).norm(dim=1).view(-1, *(1,) * (weights.ndim - 1)).clamp_min(1e-12)
    levels = torch.rand(count, generator=generator)
    outputs = Group(weights, torch.zeros(count), dilation, padding).apply(sample)
    ordered = outputs.transpose(0, 1).flatten(1).sort(1).values
    places = (levels * (ordered.shape[1] - 1)).long()
    # between two outputs and not at one, where rounding would decide what is positive
    above = (places + 1).clamp_max(ordered.shape[1] - 1)
    each = torch.arange(count)
    quantiles = (ordered[each, places] + ordered[each, above]) / 2
    plain = (2 * torch.rand(count, generator=generator) - 1) / math.prod(taps) ** 0.5
    chosen = torch.rand(count, generator=generator) < 0.5
    return Group(weights, torch.where(chosen, quantiles, plain), dilation, padding)
