"""Random convolutions: features of series and grids that need no training.

After Dempster, Petitjean and Webb, "ROCKET: exceptionally fast and accurate time series classification using
random convolutional kernels": kernels of random length, weights, dilation and padding, and of each output the
share of positive values and the maximum. Ours differ in two ways: half of the biases are random quantiles of
the kernel's outputs on the training rows (as in MiniRocket; the others lie around 0, as ROCKET's do), and
dilations lie on a grid, so that kernels of one shape run as one convolution. Images and grids use square
kernels, and the share of positive values is taken in each of 3 × 3 cells, because there the place matters.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn.functional import adaptive_avg_pool2d, conv1d, conv2d

from transship.numerics import chunks

LENGTHS, SIDES, CELLS = (7, 9, 11), (3, 5), 3
_DILATIONS = 8  # the most that lie on the grid
_ELEMENTS = 4_000_000  # of one convolution's output: what stays near the processor
_SAMPLE = 32  # rows whose outputs give the biases


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
) -> RandomConvolutions:
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
