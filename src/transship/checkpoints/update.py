"""What a fine-tune changed: a lazy sum of differences and low-rank products, one tensor at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeVar

import numpy as np

from transship.checkpoints import lora
from transship.checkpoints.checkpoint import (
    Checkpoint,
    DenseChange,
    Factors,
    Layout,
    LowRank,
    Reader,
    TensorDifference,
    Term,
)
from transship.checkpoints.dtypes import CHUNK, Array, Floats
from transship.checkpoints.pairing import pair
from transship.checkpoints.weightfile import quote
from transship.errors import CheckpointError, NumericalError
from transship.numerics import chunks

_T = TypeVar("_T")
_Sum = tuple[tuple[float, Term], ...]


@dataclass(frozen=True)
class TensorSummary:
    """How far one tensor moved.

    Attributes:
        norm: the Frobenius norm of the change.
        relative: the same over the norm of the base's tensor; NaN without a base, infinite over zero.
        changed: the share of elements that changed.
        largest: the largest absolute change.
        rank: the rank of the factors, or None where the change is dense.
    """

    name: str
    shape: tuple[int, ...]
    norm: float
    relative: float
    changed: float
    largest: float
    rank: int | None


class Update:
    """What a fine-tune changed, by tensor name of its base.

    Nothing is read until a number is asked for, and then one chunk at a time: memory does not grow with the
    model. Values are float32; norms and products are summed in float64.

    Attributes:
        base: the checkpoint whose names and shapes these are; None for an update made without one.
        added: tensors that the fine-tune has and the base has not (a new head): name → function that reads
            it.
    """

    def __init__(
        self,
        terms: Mapping[str, _Sum],
        *,
        base: Checkpoint | None = None,
        added: Mapping[str, Callable[[], Array]] | None = None,
    ) -> None:
        self._terms = dict(terms)
        self.base = base
        self.added: Mapping[str, Callable[[], Array]] = MappingProxyType(dict(added or {}))

    @classmethod
    def between(
        cls, base: Checkpoint, tuned: Checkpoint, *, unmatched: Literal["refuse", "skip"] = "refuse"
    ) -> Update:
        """Return tuned − base for every floating-point tensor.

        Names may differ by one prefix (`bert.`), as a bare model's and a headed model's do. Tensors of only
        one of the two, or of different shapes, are an error that names them; `unmatched="skip"` leaves them
        out and keeps those of `tuned` in `added`.
        """
        for given in (base, tuned):
            if isinstance(given, lora.Adapter):
                raise CheckpointError(
                    "it is an adapter, not a whole model", where=given.name, fix="use Update.from_adapter"
                )
        pairs = pair(base, tuned)
        if pairs.problems and unmatched == "refuse":
            raise CheckpointError(
                f"it does not fit {base.name}: {pairs.problems_text()}",
                where=tuned.name,
                fix="give a fine-tune of this base, or skip what has no partner",
            )
        terms = {
            name: ((1.0, TensorDifference(base, name, tuned, other)),)
            for name, other in pairs.matched.items()
        }
        added = {name: _reading(tuned, name) for name in pairs.only_tuned}
        return cls(terms, base=base, added=added)

    @classmethod
    def from_adapter(cls, adapter: Checkpoint, base: Checkpoint) -> Update:
        """Return what a LoRA adapter adds to `base`, as factors; modules saved in full become differences."""
        terms, added = lora.adapter_terms(adapter, base)
        sums = {name: tuple((1.0, term) for term in parts) for name, parts in terms.items()}
        return cls(sums, base=base, added=added)

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, Array | Factors | Callable[[], Array]],
        *,
        base: Checkpoint,
        added: Mapping[str, Callable[[], Array]] | None = None,
    ) -> Update:
        """Return an update of given changes: arrays, pairs (up, down), or functions that make arrays."""
        terms: dict[str, _Sum] = {}
        for name, given in arrays.items():
            shape = base.info(name).shape
            term: Term
            if isinstance(given, tuple):
                term = LowRank(shape, _keeping(given), lora.default_layout(name, base))
                size = given[0].shape[0] * given[1].shape[1]
            else:
                term = DenseChange(shape, given if callable(given) else _keeping(given))
                size = math.prod(shape) if callable(given) else given.size
            if size != math.prod(shape):
                raise CheckpointError(
                    f"the change of {quote(name)} has {size} elements and the tensor {math.prod(shape)}",
                    where=base.name,
                    fix="give changes of the base's own shapes",
                )
            terms[name] = ((1.0, term),)
        return cls(terms, base=base, added=added)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._terms)

    @property
    def parameters(self) -> int:
        return sum(math.prod(self.shape(name)) for name in self._terms)

    def __contains__(self, name: object) -> bool:
        return name in self._terms

    def __repr__(self) -> str:
        return f"Update({len(self._terms)} tensors of {self.base.name if self.base else 'no base'!r})"

    def shape(self, name: str) -> tuple[int, ...]:
        return self._sum(name)[0][1].shape

    def layout(self, name: str) -> Layout:
        """Return how the module holds this weight: as its adapter says, or as name and config suggest."""
        for _, term in self._sum(name):
            if isinstance(term, LowRank):
                return term.layout
        return lora.default_layout(name, self.base)

    def reader(self, name: str) -> Reader:
        """Return a function from (start, stop) to those elements of the flattened change, float32."""
        parts = [(np.float32(factor), term.reader()) for factor, term in self._sum(name)]

        def read(start: int, stop: int) -> Floats:
            factor, first = parts[0]
            total = first(start, stop)
            if factor != 1:
                total = total * factor
            for factor, part in parts[1:]:
                total = total + factor * part(start, stop)
            return total

        return read

    def dense(self, name: str) -> Floats:
        """Return the change of one tensor in full, float32."""
        out = np.empty(math.prod(self.shape(name)), np.float32)
        read = self.reader(name)
        for part in chunks(out.size, CHUNK):
            out[part] = read(part.start, part.stop)
        return out.reshape(self.shape(name))

    def factors(self, name: str) -> Factors | None:
        """Return (up [out, rank], down [rank, in]), scale folded in, or None where the change is dense.

        A sum of low-rank changes has their factors side by side.
        """
        terms = [(factor, term.factors()) for factor, term in self._sum(name)]
        ups = [np.float32(factor) * pair[0] for factor, pair in terms if pair is not None]
        downs = [pair[1] for _, pair in terms if pair is not None]
        if len(ups) < len(terms):
            return None
        return np.concatenate(ups, axis=1), np.concatenate(downs, axis=0)

    def __add__(self, other: Update) -> Update:
        if not isinstance(other, Update):
            return NotImplemented
        for name in self._terms.keys() & other._terms.keys():
            _check_shapes(self, other, name)
        terms = {
            name: self._terms.get(name, ()) + other._terms.get(name, ())
            for name in [*self._terms, *(name for name in other._terms if name not in self._terms)]
        }
        return Update(terms, base=self.base or other.base, added={**other.added, **self.added})

    def __mul__(self, factor: float) -> Update:
        if not isinstance(factor, (int, float, np.integer, np.floating)):
            return NotImplemented
        if not math.isfinite(factor):
            raise NumericalError(
                f"an update cannot be scaled by {factor}", where="update", fix="give a finite number"
            )
        terms = {
            name: tuple((float(factor) * c, term) for c, term in parts) for name, parts in self._terms.items()
        }
        return Update(terms, base=self.base, added=self.added)

    __rmul__ = __mul__

    def __neg__(self) -> Update:
        return self * -1.0

    def __sub__(self, other: Update) -> Update:
        return self + -other if isinstance(other, Update) else NotImplemented

    def dot(self, other: Update) -> float:
        """Return ⟨self, other⟩ over the tensors that both have."""
        total = 0.0
        for name in self._terms:
            if name in other:
                part = sum(float(a @ b) for a, b in _paired(self, other, name))
                total += _finite(part, name)
        return total

    def norm(self) -> float:
        """Return the Frobenius norm over all tensors."""
        return math.sqrt(math.fsum(self._square(name) for name in self._terms))

    def cosine(self, other: Update) -> float:
        """Return the cosine between two updates, missing tensors counting as zero; NaN if one is zero."""
        length = self.norm() * other.norm()
        return self.dot(other) / length if length else math.nan

    def summary(self) -> list[TensorSummary]:
        """Return how far each tensor moved, in the order of `names`."""
        return [self._summarise(name) for name in self._terms]

    def _summarise(self, name: str) -> TensorSummary:
        shape, read = self.shape(name), self.reader(name)
        size, square, changed, largest, before = math.prod(self.shape(name)), 0.0, 0, 0.0, 0.0
        for part in chunks(size, CHUNK):
            values = read(part.start, part.stop)
            wide = values.astype(np.float64)
            square += float(wide @ wide)
            changed += int(np.count_nonzero(values))
            largest = max(largest, float(np.max(values)), -float(np.min(values)))
            if self.base is not None:
                origin = self.base.chunk(name, part.start, part.stop).astype(np.float64)
                before += float(origin @ origin)
        norm = math.sqrt(_finite(square, name))
        if self.base is None:
            relative = math.nan
        else:
            relative = norm / math.sqrt(before) if before else (math.inf if norm else 0.0)
        pair = self.factors(name)
        rank = None if pair is None else pair[0].shape[1]
        return TensorSummary(name, shape, norm, relative, changed / size if size else 0.0, largest, rank)

    def _square(self, name: str) -> float:
        total, read = 0.0, self.reader(name)
        for part in chunks(math.prod(self.shape(name)), CHUNK):
            wide = read(part.start, part.stop).astype(np.float64)
            total += float(wide @ wide)
        return _finite(total, name)

    def _sum(self, name: str) -> _Sum:
        if name not in self._terms:
            raise CheckpointError(
                f"the update has no tensor {quote(name)}", where=repr(self), fix="choose one of its names"
            )
        return self._terms[name]


def _finite(total: float, name: str) -> float:
    """Return the total, unless a value that is no number has spoilt it."""
    if math.isfinite(total):
        return total
    raise NumericalError(
        f"the change of {quote(name)} holds a NaN or an infinity",
        where="update",
        fix="use weights from before training diverged",
    )


def _paired(one: Update, other: Update, name: str) -> Iterator[tuple[Array, Array]]:
    _check_shapes(one, other, name)
    left, right = one.reader(name), other.reader(name)
    for part in chunks(math.prod(one.shape(name)), CHUNK):
        yield (
            left(part.start, part.stop).astype(np.float64),
            right(part.start, part.stop).astype(np.float64),
        )


def _check_shapes(one: Update, other: Update, name: str) -> None:
    left, right = list(one.shape(name)), list(other.shape(name))
    if left != right:
        raise CheckpointError(
            f"tensor {quote(name)} is {left} in one and {right} in the other",
            where="two updates",
            fix="combine updates of the same base",
        )


def _reading(checkpoint: Checkpoint, name: str) -> Callable[[], Array]:
    return lambda: checkpoint.read(name)


def _keeping(value: _T) -> Callable[[], _T]:
    return lambda: value
