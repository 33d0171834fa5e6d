"""φ: new data in, tokens of the backbone's width out, [inputs, tokens, width].

Series: patches by a convolution whose kernel is its stride, LayerNorm with the pretrained gain and shift,
pretrained positions (the order of Shen et al., "Cross-Modal Fine-Tuning: Align then Refine"; no class token,
no token types). Pictures and fields: a patch filter that starts from the pretrained one, the norm where the
backbone has one, positions interpolated to the new grid, and the class token where the backbone has one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from transship.errors import OptionError
from transship.verbs.adapt.model.backbone import Theta

Kind = Literal["series", "grid"]
Stem = Literal["patch", "multiscale", "rocket", "kmer"]
KERNELS, LENGTH = 256, 9  # of a random stem
_BIAS_ROWS, _SCALE_ROWS = 64, 512  # training rows that give its biases, and the scale of its features
_GOLDEN = (5**0.5 - 1) / 2
MOST_KMERS = 1024  # channels of a stem of k-mers
SCALES = (1, 2, 4)  # of a multi-scale stem: kernels so many times as long as the stride


class SavedShape:
    """A dataclass of numbers, words and tuples that JSON holds."""

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Self:
        """Return what `to_dict` gave."""
        return cls(
            **{name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
        )


@dataclass(frozen=True)
class Shape(SavedShape):
    """What an embedder is built from, as it is saved.

    Attributes:
        kind: series or grid.
        channels: of the input.
        size: (length,) or (height, width) of the input.
        patch: (samples,) or (height, width) of a token.
        resize: (height, width) that pictures are brought to first, or None.
        grid: (rows, columns) of patches; (1, tokens) for a series.
        width: of a token.
        normed: whether a LayerNorm follows the patches.
        placed: whether positions are added.
        prefix: how many tokens stand before the patches.
        stem: `patch`: kernels as long as their stride; `multiscale`: longer ones beside them, summed;
            `rocket`: random convolutions, pooled in every patch; `kmer`: which symbols follow one another.
    """

    kind: Kind
    channels: int
    size: tuple[int, ...]
    patch: tuple[int, ...]
    resize: tuple[int, int] | None
    grid: tuple[int, int]
    width: int
    normed: bool
    placed: bool
    prefix: int
    stem: Stem = "patch"

    @property
    def tokens(self) -> int:
        return self.prefix + self.grid[0] * self.grid[1]


class Embedder(nn.Module):
    """φ of one shape; weights are drawn from torch's current seed until `start` gives the pretrained ones."""

    def __init__(self, shape: Shape, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.shape = shape
        plane = nn.Conv1d if shape.kind == "series" else nn.Conv2d
        kernel: Any = shape.patch[0] if shape.kind == "series" else shape.patch
        channels: int = shape.channels
        self.stem: RandomStem | KmerStem | None = None
        if shape.stem == "kmer":
            self.stem = KmerStem(channels)
            channels = self.stem.outputs
        if shape.stem == "rocket":
            self.stem = RandomStem(channels, shape.size[0], shape.patch[0])
            channels, kernel = self.stem.outputs, 1  # a patch is one place of the stem's outputs
        self.project = plane(channels, shape.width, kernel, stride=kernel)
        nn.init.xavier_uniform_(self.project.weight, gain=math.sqrt(2.0))
        nn.init.zeros_(self.project.bias)  # type: ignore[arg-type]
        self.wider = nn.ModuleList()
        if shape.stem == "multiscale":
            for scale in SCALES[1:]:
                wide = nn.Conv1d(shape.channels, shape.width, scale * kernel, stride=kernel, bias=False)
                nn.init.xavier_uniform_(wide.weight, gain=math.sqrt(2.0))
                self.wider.append(wide)
        self.norm = nn.LayerNorm(shape.width, eps=epsilon) if shape.normed else nn.Identity()
        patches = shape.grid[0] * shape.grid[1]
        self.positions = nn.Parameter(torch.zeros(patches, shape.width)) if shape.placed else None
        self.prefix = nn.Parameter(torch.zeros(shape.prefix, shape.width)) if shape.prefix else None

    def forward(self, values: Float[Tensor, "inputs channels ..."]) -> Float[Tensor, "inputs tokens width"]:
        if self.shape.resize is not None and values.shape[2:] != self.shape.resize:
            values = functional.interpolate(
                values, self.shape.resize, mode="bilinear", align_corners=False, antialias=False
            )
        values = _filled_up(values, self.shape)
        projected = self.project(values if self.stem is None else self.stem(values))
        for wide, scale in zip(self.wider, SCALES[1:], strict=len(self.wider) > 0):
            extra = (scale - 1) * self.shape.patch[0]  # centred on the same patch
            projected = projected + wide(functional.pad(values, (extra // 2, extra - extra // 2)))
        tokens = self.norm(projected.flatten(2).transpose(1, 2))
        if self.positions is not None:
            tokens = tokens + self.positions
        if self.prefix is not None:
            tokens = torch.cat([self.prefix.expand(len(tokens), -1, -1), tokens], dim=1)
        return tokens  # type: ignore[no-any-return]

    def look_at(self, values: Float[Tensor, "rows channels ..."]) -> None:
        """Take from training rows what the stem needs of them."""
        if self.stem is not None:
            self.stem.look_at(_filled_up(values, self.shape))

    @torch.no_grad()
    def draw(self) -> None:
        """Draw positions and class token as transformers does; norm and convolutions stay as made."""
        for part in (self.positions, self.prefix):
            if part is not None:
                nn.init.normal_(part, std=0.02)

    @torch.no_grad()
    def start(self, theta: Theta) -> None:
        """Take over what the pretrained embedding has: norm, positions, class token, patch filter."""
        if theta.norm_weight is not None and isinstance(self.norm, nn.LayerNorm):
            self.norm.weight.copy_(theta.norm_weight)
            if theta.norm_bias is not None:
                self.norm.bias.copy_(theta.norm_bias)
        if self.positions is not None and theta.positions is not None:
            self.positions.copy_(_positions(theta, self.shape))
        if self.prefix is not None:
            self.prefix.copy_(theta.prefix)
        if theta.patch_filter is not None and self.shape.kind == "grid":
            self.project.weight.copy_(_filter(theta.patch_filter, self.shape))
            if theta.patch_bias is not None:
                self.project.bias.copy_(theta.patch_bias)  # type: ignore[union-attr]


def shape_for(
    theta: Theta,
    size: tuple[int, ...],
    channels: int,
    *,
    tokens: int,
    patch: int | None = None,
    stem: Stem = "patch",
) -> Shape:
    """Return the shape of the embedder for inputs of `channels` × `size`.

    A series of any length is cut into at most `tokens` patches and filled up with zeros to a multiple. A
    vision backbone gets pictures in the size it was trained on (bilinear), unless `patch` is given; a text
    backbone reads the patches of a field row by row.
    """
    if stem != "patch" and len(size) > 1:
        what = f"the {stem} stem is for series, and these inputs are pictures or fields"
        fix = "leave it out; random convolutions of pictures are the raw model `--base rocket`"
        raise OptionError(what, where="stem", fix=fix)
    sides: tuple[int, ...]
    if len(size) == 1:
        samples, count = _series(theta, size[0], tokens, patch)
        sides, resize, grid, prefix = (samples,), None, (1, count), 0
    elif theta.patch_filter is None:
        side = patch or _side(size, _most(theta, tokens))
        sides, resize, grid, prefix = (side, side), None, _cut(size, (side, side)), 0
    else:
        sides = tuple(theta.patch_filter.shape[2:]) if patch is None else (patch, patch)
        resize = theta.image if patch is None else None
        if theta.window:  # pictures keep their size, up to whole windows
            steps = (side * theta.window for side in sides)
            high, wide = (-(-length // step) * step for length, step in zip(size, steps, strict=True))
            resize = (high, wide)
        grid, prefix = _cut(resize or size, sides), len(theta.prefix)
    return Shape(
        "series" if len(size) == 1 else "grid",
        channels,
        size,
        sides,
        resize,
        grid,
        theta.width,
        theta.norm_weight is not None,
        theta.positions is not None,
        prefix,
        stem,
    )


def _series(theta: Theta, length: int, tokens: int, patch: int | None) -> tuple[int, int]:
    """Return the samples of a patch, and how many patches there are."""
    if theta.patch_filter is not None:
        raise OptionError(
            f"a vision backbone reads pictures and fields, not series of length {length}",
            where="backbone",
            fix="make a picture of each series (a spectrogram), or choose a text backbone",
        )
    samples = patch or _samples(length, _most(theta, tokens))
    count = -(-length // samples)
    places = _most(theta, count)
    if count > places:
        raise OptionError(
            f"patches of {samples} make {count} tokens, and the backbone has {places} positions",
            where="patch",
            fix=f"choose {_samples(length, places)} or more",
        )
    return samples, count


def _cut(size: tuple[int, ...], sides: tuple[int, ...]) -> tuple[int, int]:
    """Return the (rows, columns) of patches of a picture."""
    return -(-size[0] // sides[0]), -(-size[1] // sides[1])


def _most(theta: Theta, tokens: int) -> int:
    return tokens if theta.positions is None else min(tokens, len(theta.positions))


def _samples(length: int, most: int) -> int:
    """Return the samples of a patch.

    The fewest that keep to `most` tokens, or a near divisor of the length.
    """
    least = -(-length // most)
    near = [samples for samples in range(least, least + least // 4 + 1) if length % samples == 0]
    return near[0] if near else least


def _side(size: tuple[int, ...], most: int) -> int:
    side = 1
    while -(-size[0] // side) * -(-size[1] // side) > most:
        side += 1
    return side


def _filled_up(values: Tensor, shape: Shape) -> Tensor:
    """Return the values with zeros behind them, up to a whole number of patches."""
    short = [-values.shape[2 + axis] % patch for axis, patch in enumerate(shape.patch)]
    if not any(short):
        return values
    pads = [part for extra in reversed(short) for part in (0, extra)]
    return functional.pad(values, pads)


def _positions(theta: Theta, shape: Shape) -> Tensor:
    table = theta.positions
    assert table is not None
    rows, columns = shape.grid
    if theta.patch_filter is None:
        return table[: rows * columns]
    assert theta.image is not None
    old = _cut(theta.image, tuple(theta.patch_filter.shape[2:]))
    if old == (rows, columns):
        return table
    plane = table.T.reshape(1, -1, *old)
    wide = functional.interpolate(plane, (rows, columns), mode="bicubic", align_corners=False)
    return wide[0].flatten(1).T


def _filter(pretrained: Tensor, shape: Shape) -> Tensor:
    """Return the pretrained filter for other channels and patches: repeated along channels, interpolated."""
    have = pretrained.shape[1]
    repeated = pretrained.repeat(1, -(-shape.channels // have), 1, 1)[:, : shape.channels]
    # the sum over channels keeps its size, so that tokens do too
    repeated = repeated * (have / shape.channels)
    if tuple(repeated.shape[2:]) != shape.patch:
        before = repeated.shape[2] * repeated.shape[3]
        repeated = functional.interpolate(repeated, shape.patch, mode="bilinear", align_corners=False)
        repeated = repeated * (before / (shape.patch[0] * shape.patch[1]))
    return repeated


class RandomStem(nn.Module):
    """Random kernels of nine taps at dilations 1, 2, 4, … up to the series, pooled in every patch.

    After Dempster, Petitjean and Webb, "ROCKET", with the pooling over patches in place of the whole series,
    and with the biases of MiniRocket, quantiles of the outputs on training rows. Nothing here is trained: φ
    learns the linear map from these features to tokens.

    Weights are drawn from torch's current seed; `look_at` sets biases and the scale of features.

    Attributes:
        patch: samples per token.
        dilations: of the groups of kernels.
        outputs: features per token: of every kernel the share of positive outputs and the largest one.
    """

    def __init__(self, channels: int, length: int, patch: int) -> None:
        super().__init__()
        self.patch, self.dilations = patch, [1]
        while (LENGTH - 1) * 2 * self.dilations[-1] < length:
            self.dilations.append(2 * self.dilations[-1])
        each = KERNELS // len(self.dilations)
        self.outputs = 2 * each * len(self.dilations)
        for dilation in self.dilations:
            weights = torch.randn(each, channels, LENGTH)
            weights -= weights.mean(2, keepdim=True)
            self.register_buffer(
                f"weights{dilation}", weights / weights.flatten(1).norm(dim=1)[:, None, None]
            )
            self.register_buffer(f"biases{dilation}", torch.zeros(each))
        self.register_buffer("mean", torch.zeros(self.outputs))
        self.register_buffer("scale", torch.ones(self.outputs))

    @torch.no_grad()
    def forward(
        self, values: Float[Tensor, "inputs channels samples"]
    ) -> Float[Tensor, "inputs features tokens"]:
        """Return standardised features of every patch; the samples are a whole number of patches."""
        features = self._pooled(values)
        mean, scale = self.get_buffer("mean"), self.get_buffer("scale")
        return (features - mean[:, None]) / scale[:, None]

    @torch.no_grad()
    def look_at(self, values: Float[Tensor, "rows channels samples"]) -> None:
        """Set biases to quantiles of outputs on training rows, then the scale of the features."""
        for dilation in self.dilations:
            biases = self.get_buffer(f"biases{dilation}")
            biases.zero_()
            outputs = self._convolved(values[:_BIAS_ROWS], dilation).transpose(0, 1).flatten(1).sort(1).values
            levels = torch.arange(1, len(biases) + 1).mul(_GOLDEN).remainder(1.0)  # spread as MiniRocket's
            places = (levels * (outputs.shape[1] - 1)).long()
            biases.copy_(outputs[torch.arange(len(biases)), places])
        features = self._pooled(values[:_SCALE_ROWS]).transpose(1, 2).flatten(0, 1)
        deviation, mean = torch.std_mean(features, 0, correction=0)
        self.get_buffer("mean").copy_(mean)
        self.get_buffer("scale").copy_(torch.where(deviation > 1e-6, deviation, torch.ones_like(deviation)))

    def _convolved(self, values: Tensor, dilation: int) -> Tensor:
        weights, biases = self.get_buffer(f"weights{dilation}"), self.get_buffer(f"biases{dilation}")
        padding = dilation * (LENGTH // 2)
        return functional.conv1d(values.to(weights), weights, -biases, dilation=dilation, padding=padding)

    def _pooled(self, values: Tensor) -> Float[Tensor, "inputs features tokens"]:
        parts = []
        for dilation in self.dilations:
            outputs = self._convolved(values, dilation)
            cut = outputs.reshape(*outputs.shape[:2], -1, self.patch)
            parts += [(cut > 0).to(cut.dtype).mean(3), cut.amax(3)]
        return torch.cat(parts, 1)


class KmerStem(nn.Module):
    """Symbols, and beside each the k-mer that begins with it, as one-hot channels. Nothing here is trained.

    A linear map of one-hot symbols adds up what each says alone; of k-mers it sees which follow one another.

    Attributes:
        k: symbols of a k-mer: three, or two where there are more than ten kinds.
        outputs: channels that come out.
    """

    def __init__(self, symbols: int) -> None:
        super().__init__()
        self.symbols, self.k = symbols, 3 if symbols**3 <= MOST_KMERS else 2
        if symbols**self.k > MOST_KMERS:
            what = f"there are {symbols} symbols, and pairs of them are more than {MOST_KMERS} channels"
            raise OptionError(what, where="stem", fix="leave it out, or number fewer kinds of symbols")
        self.outputs = symbols + symbols**self.k

    @torch.no_grad()
    def forward(
        self, values: Float[Tensor, "inputs symbols length"]
    ) -> Float[Tensor, "inputs outputs length"]:
        """Return the channels; where no whole k-mer begins, those of k-mers are zero."""
        length = values.shape[2]
        padded = functional.pad(values, (0, self.k - 1))
        codes = values.new_zeros(len(values), length, dtype=torch.long)
        whole = torch.ones_like(codes, dtype=torch.bool)
        for step in range(self.k):
            part = padded[:, :, step : step + length]
            codes = codes * self.symbols + part.argmax(1)
            whole &= part.sum(1) > 0.5
        kmers = functional.one_hot(codes, self.symbols**self.k).to(values) * whole[:, :, None]
        return torch.cat([values, kmers.transpose(1, 2)], 1)

    def look_at(self, values: Float[Tensor, "rows symbols length"]) -> None:
        """Take nothing from training rows: k-mers are counted by rule."""
