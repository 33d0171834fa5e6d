"""MiniRocket: the same 84 kernels for every series.

Dempster, Schmidt and Webb, "MiniRocket: a very fast (almost) deterministic transform for time series
classification" (KDD 2021). A kernel has nine taps, three of weight 2 and six of weight −1: C(9, 3) = 84 in
all. Every kernel runs at several dilations, and a feature is the share of outputs above a bias. Biases are
quantiles of the kernel's outputs on one training row each. With several channels a kernel at a dilation sees
the sum over a random set of them.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor

from transship.numerics import chunks
from transship.types import Array

# half of the paper's 10,000 features: half the work, and on CricketX, CricketY and ECG5000 no less accurate
TAPS, FEATURES, MOST_DILATIONS = 9, 5_000, 32
KERNELS = tuple(itertools.combinations(range(TAPS), 3))  # the three taps of weight 2
_GOLDEN = (math.sqrt(5) + 1) / 2
_ELEMENTS = 2_000_000  # outputs of all kernels that are held at once


@dataclass(frozen=True, eq=False)
class MiniRocket:
    """The kernels' biases and channels, as drawn for some training rows.

    Attributes:
        dilations: steps between taps [dilations].
        channels: which channels a kernel sees at a dilation, as 0 and 1 [dilations, kernels, channels].
        biases: by dilation [kernels, biases].
    """

    dilations: tuple[int, ...]
    channels: Float[Tensor, "dilations kernels channels"]
    biases: tuple[Float[Tensor, "kernels biases"], ...]

    def features(self, rows: Float[Tensor, "rows channels length"]) -> Float[Tensor, "rows features"]:
        """Return the share of each kernel's outputs above each of its biases."""
        size = max(1, _ELEMENTS // (len(KERNELS) * rows.shape[2]))
        with torch.inference_mode():
            return torch.cat([self._shares(rows[part].float()) for part in chunks(len(rows), size)])

    def state(self) -> dict[str, Any]:
        """Return everything as named NumPy arrays."""
        biases = {f"biases.{place}": part.numpy() for place, part in enumerate(self.biases)}
        return {"dilations": np.array(self.dilations), "channels": self.channels.numpy(), **biases}

    @classmethod
    def from_state(cls, arrays: Mapping[str, Array]) -> "MiniRocket":
        """Return what `state` described."""
        dilations = tuple(map(int, arrays["dilations"]))
        biases = tuple(torch.from_numpy(np.array(arrays[f"biases.{at}"])) for at in range(len(dilations)))
        return cls(dilations, torch.from_numpy(np.array(arrays["channels"])), biases)

    def _shares(self, rows: Tensor) -> Tensor:
        parts = []
        for number, (dilation, biases) in enumerate(zip(self.dilations, self.biases, strict=True)):
            reach, shares = (TAPS - 1) * dilation // 2, torch.empty(len(rows), *biases.shape)
            for some in (slice(0, None, 2), slice(1, None, 2)):
                outputs = _outputs(rows, dilation, self.channels[number][some], _weights()[some])
                if (number + some.start) % 2:  # every second kernel leaves out what the padding reaches into
                    outputs = outputs[:, :, reach : outputs.shape[2] - reach]
                for column, bias in enumerate(biases[some].unbind(1)):
                    shares[:, some, column] = torch.gt(outputs, bias[:, None]).sum(2) / outputs.shape[2]
            parts.append(shares.flatten(1))
        return torch.cat(parts, 1)


def draw_minirocket(rows: Float[Tensor, "rows channels length"], *, seed: int) -> MiniRocket:
    """Return kernels for series of nine values or more: the rows set dilations and biases."""
    generator = Generator().manual_seed(seed)
    dilations, counts = _dilations(rows.shape[2])
    channels = torch.stack([_channel_sets(rows.shape[1], generator) for _ in dilations])
    biases, drawn, each = [], 0, torch.arange(len(KERNELS))
    for number, (dilation, count) in enumerate(zip(dilations, counts, strict=True)):
        chosen = rows[torch.randint(len(rows), (len(KERNELS),), generator=generator)].float()
        seen = torch.einsum("kc,kcl->kl", channels[number], chosen)[:, None]
        outputs = _outputs(seen, dilation, torch.ones(len(KERNELS), 1), _weights())[each, each]
        first = drawn + each[:, None] * count + torch.arange(count)
        levels = (first + 1) * _GOLDEN % 1  # a low-discrepancy sequence over all features
        biases.append(torch.stack([outputs[at].quantile(levels[at].float()) for at in range(len(KERNELS))]))
        drawn += len(KERNELS) * count
    return MiniRocket(dilations, channels, tuple(biases))


def _weights() -> Tensor:
    """Return the weights of all kernels [kernels, taps]."""
    return torch.full((len(KERNELS), TAPS), -1.0).scatter_(1, torch.tensor(KERNELS), 2.0)


def _outputs(rows: Tensor, dilation: int, channels: Tensor, weights: Tensor) -> Tensor:
    """Return the outputs of some kernels [rows, kernels, length], each over its channels."""
    length, reach = rows.shape[2], (TAPS - 1) * dilation // 2
    padded = torch.nn.functional.pad(rows, (reach, reach))
    taps = torch.stack([padded[:, :, dilation * tap : dilation * tap + length] for tap in range(TAPS)], 1)
    seen = weights[:, :, None] * channels[:, None]  # kernels, taps, channels
    return torch.matmul(seen.flatten(1), taps.flatten(1, 2))


def _dilations(length: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the dilations, on a logarithmic grid up to the length, and how many features each kernel has."""
    each = FEATURES // len(KERNELS)
    steps = min(each, MOST_DILATIONS)
    most = math.log2((length - 1) / (TAPS - 1))
    grid = (2 ** np.linspace(0, most, steps)).astype(int)
    dilations, counts = np.unique(grid, return_counts=True)
    shares = (counts * each / steps).astype(int)
    for place in range(each - int(shares.sum())):
        shares[place % len(shares)] += 1
    return tuple(map(int, dilations)), tuple(map(int, shares))


def _channel_sets(channels: int, generator: Generator) -> Tensor:
    """Return for every kernel a random set of channels, more often few than many [kernels, channels]."""
    most = math.log2(min(channels, TAPS) + 1)
    wanted = (2 ** (torch.rand(len(KERNELS), generator=generator) * most)).long().clamp(1, channels)
    order = torch.rand((len(KERNELS), channels), generator=generator).argsort(1).argsort(1)
    return (order < wanted[:, None]).float()
