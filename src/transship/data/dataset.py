"""`Dataset`: inputs with what is known about them. Rows keep the order of their source."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from transship.data.rows import ChosenRows, canonical, hash_rows, row_digest
from transship.errors import DataError, OptionError
from transship.numerics import chunks, derive_seed

Kind = Literal["text", "pair", "image", "array", "series", "vector"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_SPLIT_WORDS = {
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "dev": "validation",
    "testing": "test",
}


def split_name(text: str) -> str:
    """Return the usual name of a split: `dev`, `val` and `valid` are `validation`."""
    plain = text.strip().lower()
    return _SPLIT_WORDS.get(plain, plain)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs of one kind, with labels, ids and splits where they are known.

    Attributes:
        name: what the user called it.
        kind: `text` (str), `pair` (two str), `image` (PIL), `array`, `series` or `vector` (ndarray rows).
        inputs: the rows; images are decoded when they are indexed. An ndarray [rows, ...] for numbers.
        labels: int64 classes [rows], or float64 targets [rows, ...]; None when the data has none.
        label_names: the name of each class; empty for targets and unlabelled data.
        ids: one per row [rows]: the id column, or the row's number in its source.
        splits: one name per row [rows] (train, validation, test, …), or None.
        has_ids: whether `ids` came from the data and is not only a row's number.
    """

    name: str
    kind: Kind
    inputs: Sequence[Any] | NDArray[Any]
    labels: NDArray[Any] | None = None
    label_names: tuple[str, ...] = ()
    ids: NDArray[Any] = field(default_factory=lambda: np.empty(0, np.int64))
    splits: NDArray[np.str_] | None = None
    has_ids: bool = False

    def __post_init__(self) -> None:
        """Check that every column has one entry per row."""
        rows = len(self.inputs)
        if not rows:
            raise DataError("there are no rows", where=self.name, fix="give data with at least one row")
        if self.kind not in KINDS:
            raise OptionError(
                f"'{self.kind}' is no kind of data", where=self.name, fix=f"choose one of {', '.join(KINDS)}"
            )
        if not len(self.ids) and not self.has_ids:
            object.__setattr__(self, "ids", np.arange(rows))
        for what, column in (("labels", self.labels), ("ids", self.ids), ("splits", self.splits)):
            if column is not None and len(column) != rows:
                raise DataError(
                    f"there are {rows} inputs and {len(column)} {what}",
                    where=self.name,
                    fix=f"give one of the {what} per row",
                )

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        parts = [f"{len(self):,} × {self.kind}"]
        if self.classes:
            parts.append(f"{self.classes} classes")
        if self.splits is not None:
            parts.append(", ".join(f"{name} {count:,}" for name, count in self.split_sizes.items()))
        return f"Dataset({self.name}: {'; '.join(parts)})"

    @property
    def classes(self) -> int:
        """Return the number of classes; 0 when there are none."""
        return len(self.label_names)

    @cached_property
    def split_sizes(self) -> Mapping[str, int]:
        """Return the rows of each split, in the order train, validation, test, others."""
        if self.splits is None:
            return {}
        names, counts = np.unique(self.splits, return_counts=True)
        order = {"train": 0, "validation": 1, "test": 2}
        sizes = sorted(
            zip(map(str, names), map(int, counts), strict=True), key=lambda e: (order.get(e[0], 3), e)
        )
        return dict(sizes)

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256(f"transship-data-1 {self.kind} {len(self)}".encode())
        hash_rows(digest, self.inputs)
        for part in (self.labels, self.ids if self.has_ids else None, self.splits):
            digest.update(b"\x00none" if part is None else b"\x00some")
            if part is not None:
                hash_rows(digest, canonical(part))
        hash_rows(digest, list(self.label_names))
        return digest.hexdigest()

    def fingerprint(self) -> str:
        """Return the sha256 of the content: inputs, labels and their names, given ids, splits."""
        return self._digest

    def subset(self, index: Sequence[int] | NDArray[Any]) -> Dataset:
        """Return the rows `index` (numbers or a mask), in that order."""
        where = np.asarray(index)
        if where.dtype == bool:
            where = np.flatnonzero(where)
        where = where.astype(np.int64, copy=False)
        inputs = self.inputs[where] if isinstance(self.inputs, np.ndarray) else ChosenRows(self.inputs, where)
        return dataclasses.replace(
            self,
            inputs=inputs,
            labels=None if self.labels is None else self.labels[where],
            ids=self.ids[where],
            splits=None if self.splits is None else self.splits[where],
            has_ids=self.has_ids,
        )

    def split(self, name: str) -> Dataset:
        """Return the rows of one split (`train`, `validation`, `test`, …)."""
        if self.splits is None:
            raise DataError(
                f"it has no splits, so there is no '{name}'",
                where=self.name,
                fix="add a column `split`, or draw splits with `with_splits`",
            )
        mask = self.splits == split_name(name)
        if not mask.any():
            raise DataError(
                f"there is no split '{name}'",
                where=self.name,
                fix=f"choose one of {', '.join(self.split_sizes)}",
            )
        return self.subset(mask)

    def with_splits(
        self, shares: Mapping[str, float] | None = None, *, seed: int = 0, stratified: bool = False
    ) -> Dataset:
        """Return the same rows with splits drawn by `seed`; the default shares are train 0.8 and test 0.2.

        Plain: a row's split depends on its id (or, without ids, its content) and the seed alone, so rows that
        are added later move no other row and equal rows stay together. Stratified: each class is cut at the
        shares exactly (largest remainders), in an order drawn the same way.
        """
        shares = dict(shares or {"train": 0.8, "test": 0.2})
        if any(share <= 0 for share in shares.values()) or abs(sum(shares.values()) - 1) > 1e-9:
            raise OptionError(
                f"the shares {shares} are not positive numbers that add up to 1",
                where=self.name,
                fix="mend them",
            )
        draws = np.array([self._draw(row, seed, "split") for row in range(len(self))], dtype=np.float64)
        names = np.array([split_name(name) for name in shares])
        bounds = np.cumsum(list(shares.values()))[:-1]
        if not stratified:
            return dataclasses.replace(self, splits=names[np.searchsorted(bounds, draws, side="right")])
        classes = self._class_labels("a stratified split")
        splits = np.empty(len(self), dtype=names.dtype)
        for value in np.unique(classes):
            rows = np.flatnonzero(classes == value)
            rows = rows[np.argsort(draws[rows], kind="stable")]
            splits[rows] = np.repeat(names, _quotas(len(rows), list(shares.values())))
        return dataclasses.replace(self, splits=splits)

    def take(self, count: int, seed: int = 0) -> Dataset:
        """Return `count` rows (or all, when there are fewer) drawn with `seed`, in the order of the source.

        Draws are nested: the rows of a smaller `count` are among those of a larger one.
        """
        if count < 1:
            raise OptionError(f"cannot take {count} rows", where=self.name, fix="take at least one")
        order = np.random.default_rng(derive_seed(seed, "take")).permutation(len(self))
        return self.subset(np.sort(order[:count]))

    def per_class(self, count: int, seed: int = 0, *, allow_fewer: bool = False) -> Dataset:
        """Return `count` rows of every class, drawn with `seed`, in the order of the source."""
        if count < 1:
            raise OptionError(f"cannot take {count} rows per class", where=self.name, fix="take at least one")
        labels = self._class_labels("a draw per class")
        kept = []
        for value in np.unique(labels):
            rows = np.flatnonzero(labels == value)
            if len(rows) < count and not allow_fewer:
                raise DataError(
                    f"class '{self.label_names[value]}' has {len(rows)} rows and {count} are asked for",
                    where=self.name,
                    fix="ask for fewer, or pass allow_fewer=True",
                )
            kept.append(
                np.random.default_rng(derive_seed(seed, "per_class", value)).permutation(rows)[:count]
            )
        return self.subset(np.sort(np.concatenate(kept)))

    def shuffled(self, seed: int = 0) -> Dataset:
        """Return all rows in an order drawn with `seed`."""
        return self.subset(np.random.default_rng(derive_seed(seed, "shuffle")).permutation(len(self)))

    def batches(self, size: int) -> Iterator[Any]:
        """Yield the inputs in order, `size` at a time: lists, or ndarrays [size, ...] for numbers."""
        for part in chunks(len(self), size):
            yield self._part(part)

    def labelled_batches(self, size: int) -> Iterator[tuple[Any, NDArray[Any]]]:
        """Yield inputs as `batches` does, each with its labels [size]."""
        if self.labels is None:
            raise DataError("it has no labels", where=self.name, fix="name the label column with label=")
        for part in chunks(len(self), size):
            yield self._part(part), self.labels[part]

    def _class_labels(self, purpose: str) -> NDArray[Any]:
        if self.labels is None or not self.label_names:
            kind = "no labels" if self.labels is None else "numeric targets and no classes"
            raise DataError(
                f"it has {kind}, which {purpose} needs",
                where=self.name,
                fix="name a class column with label=",
            )
        return self.labels

    def _part(self, part: slice) -> Any:
        if isinstance(self.inputs, np.ndarray):
            return self.inputs[part]
        return [self.inputs[row] for row in range(part.start, part.stop)]

    def _draw(self, row: int, seed: int, purpose: str) -> float:
        """Return a number in [0, 1) that belongs to this row's id or content."""
        key = str(self.ids[row]) if self.has_ids else row_digest(self.inputs, row)
        return derive_seed(seed, purpose, key) / 2**63


def _quotas(total: int, shares: list[float]) -> NDArray[np.int64]:
    """Return whole numbers that add up to `total`, nearest to the shares (largest remainders first)."""
    exact = np.array(shares) * total
    counts = np.floor(exact + 1e-9).astype(np.int64)
    rest = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:rest]] += 1
    return counts
