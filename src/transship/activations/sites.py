"""Where linear maps act in a model: found from the module tree, named by role and block."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from transship.errors import MatchError

# a weight at rest is a numpy array, a weight at work a Tensor: both slice and transpose alike
Weight = TypeVar("Weight")


@dataclass(frozen=True)
class Part:
    """The rows of a fused weight's output axis that belong to one map.

    The axis is `groups` runs of `period` rows; the part has rows `start` to `stop` of each run.
    """

    groups: int
    period: int
    start: int
    stop: int

    @property
    def width(self) -> int:
        """Rows in the part."""
        return self.groups * (self.stop - self.start)

    def slices(self) -> Iterator[tuple[slice, slice]]:
        """Yield (rows in the fused weight, rows in the part), run by run."""
        size = self.stop - self.start
        for group in range(self.groups):
            first = group * self.period + self.start
            yield slice(first, first + size), slice(group * size, (group + 1) * size)

    def columns(self, rows: Tensor) -> Tensor:
        """Return the part's columns of activations `rows` [tokens, groups·period] as [tokens, width]."""
        if self.groups == 1:
            return rows[:, self.start : self.stop]
        runs = rows.reshape(rows.shape[0], self.groups, self.period)
        return runs[:, :, self.start : self.stop].reshape(rows.shape[0], self.width)


@dataclass(frozen=True)
class Site:
    """A place where a linear map acts.

    Attributes:
        path: the module's path in the model.
        role: what it does: `attention.query`, `mlp.in`, `norm.final`, `embedding.token`, `head`, …; the
            relative module name where no role is known.
        block: number of its block in the stack, or None outside of blocks.
        stack: `text`, `vision`, `encoder` or `decoder`; empty where the model has no such thing.
        kind: linear, norm, scale, embedding, conv, parameter (a tensor without a module) or block (the
            residual stream that enters and leaves a block: no weight of its own).
        in_width: width of what enters; for an embedding the number of its rows, for a convolution channels ×
            kernel.
        out_width: width of what leaves.
        weight: name of the weight among the model's parameters.
        bias: name of the bias.
        transposed: the weight is stored as (in, out).
        part: which rows of a fused weight, bias and output it is.
        tied_to: name of the parameter that is the same tensor and comes first in the model.
        functional: the module uses the weight without a submodule (nn.MultiheadAttention).
    """

    path: str
    role: str
    block: int | None
    stack: str
    kind: str
    in_width: int
    out_width: int
    weight: str | None = None
    bias: str | None = None
    transposed: bool = False
    part: Part | None = None
    tied_to: str | None = None
    functional: bool = False

    @property
    def name(self) -> str:
        """Stack, block and role, as reports show it: `text.3.attention.query`."""
        return ".".join(
            str(piece) for piece in (self.stack, self.block, self.role) if piece not in ("", None)
        )


def read_weight(site: Site, weight: Weight) -> Weight:
    """Return the site's (out, in) matrix of a stored weight, fused or transposed as it may be; a view where
    possible.

    Works on numpy arrays and Tensors. A convolution's kernel is flattened into the in axis.
    """
    stored: Any = weight
    if stored.ndim > 2:
        stored = stored.reshape(stored.shape[0], -1)
    own: Weight = _take(site.part, stored.T if site.transposed else stored)
    return own


def read_bias(site: Site, bias: Weight) -> Weight:
    """Return the site's part of a stored bias, or of any vector along the output axis."""
    own: Weight = _take(site.part, bias)
    return own


def write_weight(site: Site, weight: Weight, value: Weight) -> None:
    """Put the (out, in) matrix `value` into the site's place of the stored `weight`, in place."""
    stored: Any = weight
    matrix: Any = value
    if stored.ndim > 2:
        stored[...] = matrix.reshape(stored.shape)
    else:
        _put(site, stored.T if site.transposed else stored, matrix)


def write_bias(site: Site, bias: Weight, value: Weight) -> None:
    """Put `value` into the site's place of a stored bias, in place."""
    _put(site, bias, value)


def _take(part: Part | None, stored: Any) -> Any:
    if part is None or _alone(part, stored):
        return stored
    if part.groups == 1:
        return stored[part.start : part.stop]
    runs = stored.reshape(part.groups, part.period, *stored.shape[1:])[:, part.start : part.stop]
    return runs.reshape(part.width, *stored.shape[1:])


def _alone(part: Part, stored: Any) -> bool:
    """Return whether the stored tensor is the part alone: nn.MultiheadAttention may fuse its biases only."""
    return bool(stored.shape[0] != part.groups * part.period and stored.shape[0] == part.width)


def _put(site: Site, stored: Any, value: Any) -> None:
    part = None if site.part is None or _alone(site.part, stored) else site.part
    width = stored.shape[0] if part is None else part.width
    if tuple(value.shape) != (width, *stored.shape[1:]):
        raise MatchError(
            f"a value of shape {tuple(value.shape)} does not fit {(width, *stored.shape[1:])}",
            where=site.name,
            fix="give the site's own (out, in) matrix",
        )
    if part is None:
        stored[...] = value
    else:
        for there, here in part.slices():
            stored[there] = value[here]
