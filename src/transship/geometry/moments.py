"""Moments: additive second-order statistics of a matched pair of sites over the same inputs.

Rows a (width_a) and b (width_b) of one input, with weight w, enter as

    count += w,   sum_a += w a,   square_a += w a∘a,   aa += w a aᵀ,   ab += w a bᵀ,   …

so Moments of two halves add up to the Moments of the whole, over batches, devices and processes.
"""

import json
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from transship.errors import DataError, NumericalError, OptionError
from transship.geometry.maps import read_arrays, write_arrays
from transship.geometry.spectral import PROJECTIONS, distinct, prints
from transship.numerics import chunks

Part = Literal["aa", "bb", "ab"]
PARTS: tuple[Part, ...] = ("aa", "bb", "ab")
FORMAT, VERSION = "transship.moments", 1

# Rows per product: a float32 sum over more rows would lose digits, over fewer the float64 additions would
# cost.
CHUNK_ROWS = 4096
# Columns per panel of a symmetric product: only the panels on and above the diagonal are multiplied.
PANEL = 256
# Rows that are looked at for being equal: where many more are added than a map has inputs, their share tells.
COMPARED_ROWS = 4096


@dataclass(eq=False)
class Moments:
    """The accumulators of one pair of sites; all float64, of a size that the number of rows does not change.

    Attributes:
        count: Σ w, the number of rows when they have no weights.
        sum_a: Σ w a.
        sum_b: Σ w b.
        square_a: Σ w a∘a, the diagonal of `aa`, kept even when `aa` is not.
        square_b: Σ w b∘b.
        aa: Σ w a aᵀ, or None when it is not wanted.
        bb: Σ w b bᵀ, or None.
        ab: Σ w a bᵀ, or None.
        exact: whether every product so far was taken in float64.
        marks: what the first rows are known again by, of both sides; None where nobody looked.
        name: the site, for messages.
    """

    count: float
    sum_a: Float[Tensor, " a"]
    sum_b: Float[Tensor, " b"]
    square_a: Float[Tensor, " a"]
    square_b: Float[Tensor, " b"]
    aa: Float[Tensor, "a a"] | None = None
    bb: Float[Tensor, "b b"] | None = None
    ab: Float[Tensor, "a b"] | None = None
    exact: bool = True
    marks: Float[Tensor, "compared projections"] | None = None
    name: str = field(default="moments", kw_only=True)

    @classmethod
    def zeros(
        cls,
        width_a: int,
        width_b: int,
        *,
        parts: Collection[Part] = PARTS,
        name: str = "moments",
        device: torch.device | str = "cpu",
    ) -> "Moments":
        """Return empty Moments that will keep `parts` (any of aa, bb, ab)."""
        unknown = set(parts) - set(PARTS)
        if unknown:
            raise OptionError(
                f"there is no part '{min(unknown)}'", where=name, fix="choose from aa, bb and ab"
            )

        def empty(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        sums = (empty(width_a), empty(width_b), empty(width_a), empty(width_b))
        shapes = {"aa": (width_a, width_a), "bb": (width_b, width_b), "ab": (width_a, width_b)}
        wanted = {part: empty(*shapes[part]) for part in PARTS if part in parts}
        return cls(0.0, *sums, wanted.get("aa"), wanted.get("bb"), wanted.get("ab"), name=name)

    @classmethod
    def of(
        cls,
        a: Float[Tensor, "rows a"],
        b: Float[Tensor, "rows b"],
        *,
        weights: Float[Tensor, " rows"] | None = None,
        parts: Collection[Part] = PARTS,
        exact: bool | None = None,
        name: str = "moments",
    ) -> "Moments":
        moments = cls.zeros(a.shape[1], b.shape[1], parts=parts, name=name, device=a.device)
        moments.update(a, b, weights, exact=exact)
        return moments

    @property
    def width_a(self) -> int:
        return self.sum_a.shape[0]

    @property
    def width_b(self) -> int:
        return self.sum_b.shape[0]

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(part for part in PARTS if getattr(self, part) is not None)

    @property
    def precision(self) -> float:
        """The rounding unit of the products, relative to the largest of them."""
        return torch.finfo(torch.float64 if self.exact else torch.float32).eps

    @property
    def distinct(self) -> float:
        """How many of `count` are different rows of the side a, as the share among the first of them."""
        if self.marks is None or not len(self.marks):
            return self.count
        return self.count * (distinct(self.marks[:, :PROJECTIONS]) / len(self.marks))

    @property
    def nbytes(self) -> int:
        """The bytes of all accumulators: known before the first row."""
        return sum(part.nbytes for part in self.tensors())

    def update(
        self,
        a: Float[Tensor, "rows a"],
        b: Float[Tensor, "rows b"],
        weights: Float[Tensor, " rows"] | None = None,
        *,
        exact: bool | None = None,
    ) -> "Moments":
        """Add rows; row i of `a` and row i of `b` belong together.

        Products are taken in float32 (in float64 for float64 rows, or with `exact`) per chunk of rows, and
        chunks are summed in float64. A chunk that holds NaN or Inf is refused before any of it is added.
        """
        if a.shape[1] != self.width_a or b.shape[1] != self.width_b or a.shape[0] != b.shape[0]:
            raise DataError(
                f"rows of shapes {tuple(a.shape)} and {tuple(b.shape)} do not pair up "
                f"over widths {self.width_a} and {self.width_b}",
                where=self.name,
                fix="give the same inputs' rows of both sites",
            )
        if exact is None:
            exact = a.dtype == torch.float64 and b.dtype == torch.float64
        dtype = torch.float64 if exact else torch.float32
        if a.shape[0]:
            self.exact = self.exact and exact
        for rows in chunks(a.shape[0], CHUNK_ROWS):
            part = None if weights is None else weights[rows].detach().to(dtype)
            self._add(a[rows].detach().to(dtype), b[rows].detach().to(dtype), part)
        return self

    def _add(self, a: Tensor, b: Tensor, weights: Tensor | None) -> None:
        weighted_a, weighted_b = (a, b) if weights is None else (a * weights[:, None], b * weights[:, None])
        sum_a, sum_b = _column_sums(weighted_a), _column_sums(weighted_b)
        # a NaN or Inf anywhere in the rows is still there in their sums, which are cheap to look at
        if not (math.isfinite(float(sum_a.sum())) and math.isfinite(float(sum_b.sum()))):
            raise _not_finite(self.name)
        self.count += float(a.shape[0] if weights is None else weights.double().sum())
        if self.marks is None or len(self.marks) < COMPARED_ROWS:
            first = COMPARED_ROWS - (0 if self.marks is None else len(self.marks))
            self._mark(torch.cat([prints(a[:first]), prints(b[:first])], dim=1))
        self.sum_a += sum_a
        self.sum_b += sum_b
        self._add_side(self.aa, self.square_a, weighted_a, a)
        self._add_side(self.bb, self.square_b, weighted_b, b)
        if self.ab is not None:
            self.ab += weighted_a.T @ b

    def _mark(self, marks: Tensor | None) -> None:
        if marks is not None:
            self.marks = marks if self.marks is None else torch.cat([self.marks, marks])[:COMPARED_ROWS]

    @staticmethod
    def _add_side(second: Tensor | None, squares: Tensor, weighted: Tensor, rows: Tensor) -> None:
        if second is None:
            squares += _column_sums(weighted * rows)
        else:
            _add_symmetric(second, weighted, rows)
            squares.copy_(second.diagonal())

    def __add__(self, other: "Moments") -> "Moments":
        return self.copy().__iadd__(other)

    def __iadd__(self, other: "Moments") -> "Moments":
        """Add the Moments of other rows of the same pair."""
        if (self.width_a, self.width_b, self.parts) != (other.width_a, other.width_b, other.parts):
            raise DataError(
                f"Moments of {other.width_a}×{other.width_b} ({', '.join(other.parts)}) do not add to "
                f"{self.width_a}×{self.width_b} ({', '.join(self.parts)})",
                where=self.name,
                fix="add Moments of the same pair of sites, with the same parts",
            )
        self.exact = self.exact and other.exact
        self.count += other.count
        self._mark(other.marks)
        for name in ("sum_a", "sum_b", "square_a", "square_b", *self.parts):
            getattr(self, name).add_(getattr(other, name))
        return self

    def tensors(self) -> list[Tensor]:
        """Return the accumulators, sums first."""
        return [getattr(self, name) for name in ("sum_a", "sum_b", "square_a", "square_b", *self.parts)]

    def to(self, device: torch.device | str) -> "Moments":
        """Return the same Moments on another device (sharing memory where they are there already)."""
        moved = self.with_sides()
        for name in ("sum_a", "sum_b", "square_a", "square_b", *self.parts):
            setattr(moved, name, getattr(self, name).to(device))
        return moved

    def copy(self) -> "Moments":
        """Return Moments that share no memory with these."""
        return self.scaled(1.0)

    def scaled(self, factor: float) -> "Moments":
        """Return the Moments of the same rows with all weights multiplied by `factor`."""
        scaled = Moments(
            self.count * factor,
            self.sum_a * factor,
            self.sum_b * factor,
            self.square_a * factor,
            self.square_b * factor,
            exact=self.exact,
            marks=self.marks,
            name=self.name,
        )
        for part in self.parts:
            setattr(scaled, part, getattr(self, part) * factor)
        return scaled

    def interpolate(self, other: "Moments", fraction: float) -> "Moments":
        """Return (1 − f) of these plus f of `other`: the pair between two blocks, for other depths."""
        return self.scaled(1.0 - fraction).__iadd__(other.scaled(fraction))

    def swapped(self) -> "Moments":
        """Return the Moments with the two sides exchanged (sharing memory)."""
        return Moments(
            self.count,
            self.sum_b,
            self.sum_a,
            self.square_b,
            self.square_a,
            self.bb,
            self.aa,
            None if self.ab is None else self.ab.T,
            self.exact,
            None if self.marks is None else self.marks.roll(PROJECTIONS, dims=1),
            name=self.name,
        )

    def with_sides(
        self, aa: Float[Tensor, "a a"] | None = None, bb: Float[Tensor, "b b"] | None = None
    ) -> "Moments":
        """Return these Moments completed by one-sided parts that several pairs share (not copied)."""
        completed = self.swapped().swapped()
        completed.aa = self.aa if aa is None else aa
        completed.bb = self.bb if bb is None else bb
        return completed

    def centred(self) -> "Moments":
        """Return the Moments about the means: Σ w (a − μ_a)(b − μ_b)ᵀ and its siblings, with zero sums."""
        if self.count <= 0:
            raise NumericalError("no rows were counted", where=self.name, fix="collect at least one input")
        mean_a, mean_b = self.sum_a / self.count, self.sum_b / self.count
        centred = self.scaled(1.0)
        centred.sum_a, centred.sum_b = torch.zeros_like(self.sum_a), torch.zeros_like(self.sum_b)
        # rounding may leave a dead feature slightly below zero
        centred.square_a = (self.square_a - self.sum_a * mean_a).clamp_min_(0.0)
        centred.square_b = (self.square_b - self.sum_b * mean_b).clamp_min_(0.0)
        if centred.aa is not None:
            centred.aa.addr_(self.sum_a, mean_a, alpha=-1.0)
        if centred.bb is not None:
            centred.bb.addr_(self.sum_b, mean_b, alpha=-1.0)
        if centred.ab is not None:
            centred.ab.addr_(self.sum_a, mean_b, alpha=-1.0)
        return centred

    def part(self, name: Part) -> Float[Tensor, "rows columns"]:
        """Return one of aa, bb, ab; a clear error when it was not collected."""
        part: Tensor | None = getattr(self, name)
        if part is None:
            raise OptionError(
                f"the part '{name}' was not collected",
                where=self.name,
                fix=f"collect with parts {{'{name}', …}}",
            )
        return part

    def check(self, where: str | None = None) -> "Moments":
        """Return these Moments; raise NumericalError with the site's name when a number is NaN or Inf."""
        kept = self.tensors()
        # the sum of numbers that hold a NaN or Inf is not finite: one pass, no mask as large as the matrix
        if not math.isfinite(self.count) or not all(math.isfinite(float(part.sum())) for part in kept):
            raise _not_finite(where or self.name)
        return self

    def save(self, path: str | Path) -> None:
        """Write one safetensors file (beside the target, then renamed)."""
        save_moments(path, {self.name: self})

    @classmethod
    def load(cls, path: str | Path) -> "Moments":
        """Read what `save` wrote."""
        loaded = load_moments(path)
        if len(loaded) != 1:
            raise DataError(f"holds {len(loaded)} Moments", where=str(path), fix="read it with load_moments")
        return next(iter(loaded.values()))


def save_moments(path: str | Path, moments: dict[str, Moments]) -> None:
    """Write several Moments into one safetensors file; parts that share memory are written once."""
    arrays: dict[str, Tensor] = {}
    index: dict[str, dict[str, object]] = {}
    seen: dict[tuple[int, tuple[int, ...], tuple[int, ...]], str] = {}
    for number, (name, each) in enumerate(moments.items()):
        keys: dict[str, str] = {}
        for part in ("sum_a", "sum_b", "square_a", "square_b", *each.parts):
            tensor: Tensor = getattr(each, part)
            place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
            keys[part] = seen.setdefault(place, f"{number}.{part}")
            arrays.setdefault(keys[part], tensor)
        if each.marks is not None:
            keys["marks"] = f"{number}.marks"
            arrays[keys["marks"]] = each.marks
        index[name] = {"count": each.count, "exact": each.exact, "arrays": keys}
    write_arrays(path, arrays, {"format": FORMAT, "version": str(VERSION), "index": json.dumps(index)})


def load_moments(path: str | Path) -> dict[str, Moments]:
    """Read what `save_moments` wrote; one clear error for a truncated, foreign or newer file."""
    arrays, about = read_arrays(path, FORMAT, VERSION)
    try:
        index = json.loads(about["index"])
        return {
            name: Moments(
                float(entry["count"]),
                **{part: arrays[key] for part, key in entry["arrays"].items()},
                exact=bool(entry["exact"]),
                name=name,
            )
            for name, entry in index.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"is not a complete Moments file ({type(error).__name__}: {error})",
            where=str(path),
            fix="collect the Moments again",
        ) from error


def _column_sums(rows: Tensor) -> Tensor:
    """Sum in float64, but blocks of 32 rows in their own precision: a conversion of all rows costs more."""
    whole = rows.shape[0] - rows.shape[0] % 32
    blocks = rows[:whole].reshape(-1, 32, rows.shape[1]).sum(1)
    return blocks.sum(0, dtype=torch.float64) + rows[whole:].sum(0, dtype=torch.float64)


def _add_symmetric(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add leftᵀ right, which is symmetric, multiplying only the panels on and above the diagonal."""
    width = total.shape[0]
    for columns in chunks(width, max(PANEL, math.ceil(width / 8))):
        panel = left[:, columns].T @ right[:, columns.start :]
        square = columns.stop - columns.start
        # (M + Mᵀ)/2: the two triangles of the block on the diagonal round differently
        panel[:, :square] = (panel[:, :square] + panel[:, :square].T) / 2
        total[columns, columns.start :] += panel
        total[columns.stop :, columns] = total[columns, columns.stop :].T


def _not_finite(where: str) -> NumericalError:
    return NumericalError(
        "the activations hold NaN or Inf",
        where=where,
        fix="run the models in float32, and look for broken weights or inputs",
    )
