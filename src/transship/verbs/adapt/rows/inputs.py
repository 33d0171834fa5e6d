"""Raw inputs become tensors [inputs, channels, …].

Checked by name, scaled per channel as the training set says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from transship.errors import DataError
from transship.verbs.adapt.rows.metrics import as_numpy
from transship.verbs.adapt.rows.symbols import Alphabet, is_one_hot, is_text
from transship.verbs.adapt.settings import Kind, Missing

MOST_SYMBOLS = 1024  # kinds of token ids: each is a channel
_SHAPES = {
    "series": "[rows, length] or [rows, channels, length]",
    "grid": "[rows, height, width] or [rows, channels, height, width]",
    "tokens": "whole numbers [rows, length], text, or one-hot [rows, symbols, length]",
    "tabular": "[rows, features]",
}


@dataclass(frozen=True, eq=False)
class Inputs:
    """How raw inputs are read; fitted on the training rows.

    Attributes:
        kind: series, grid or tokens (tabular rows are a series of features).
        channels: of the tensors.
        size: (length,) or (height, width).
        mean: per channel; per feature for tabular rows, [channels, 1…] or [1, features].
        std: the same.
        missing: whether NaN are refused or filled with the channel's mean.
        tabular: whether columns have scales of their own.
        alphabet: of tokens that come as text; None for ids and one-hot channels.
    """

    kind: Literal["series", "grid", "tokens"]
    channels: int
    size: tuple[int, ...]
    mean: NDArray[np.float32]
    std: NDArray[np.float32]
    missing: Missing = "refuse"
    tabular: bool = False
    alphabet: Alphabet | None = None

    @classmethod
    def fit(cls, values: Any, *, kind: Kind = "auto", missing: Missing = "refuse", held: Any = ()) -> Inputs:
        """Read the training rows: their kind, shape and scales.

        Of text the rows held out have a say too: the longest row or the only one with a symbol may be there.
        """
        if kind == "tokens" and is_text(values):
            texts = [*values, *held]
            alphabet = Alphabet.of(texts)
            return replace(cls._fit_tokens(alphabet.ids(texts)), alphabet=alphabet)
        array = _numbers(values)
        kind = _kind(array, kind)
        if kind in ("series", "tokens") and is_one_hot(array, MOST_SYMBOLS):  # by any route the same
            return cls._fit_tokens(array.argmax(1), array.shape[1])
        if kind == "tokens":
            return cls._fit_tokens(array)
        array = _with_channels(array, kind)
        if array.shape[-1] * (array.shape[-2] if kind == "grid" else 1) < 2:
            raise DataError(
                "every input has one value only", where="X", fix="give series of two values or more"
            )
        check_finite(array, missing)
        tabular = kind == "tabular"
        axes = (0,) if tabular else tuple(axis for axis in range(array.ndim) if axis != 1)
        mean, std = np.nanmean(array, axis=axes), np.nanstd(array, axis=axes)
        if not np.nan_to_num(std).max() > 0:
            raise DataError(
                "all inputs are the same constant, so there is nothing to tell them apart by",
                where="X",
                fix="give inputs that differ",
            )
        shape = (1, -1) if tabular else (-1, *(1,) * (array.ndim - 2))
        std = np.where(std > 1e-12 * np.abs(mean).max(initial=1.0), std, 1.0)
        return cls(
            "grid" if kind == "grid" else "series",
            array.shape[1],
            tuple(array.shape[2:]),
            np.nan_to_num(mean).reshape(shape).astype(np.float32),
            np.nan_to_num(std, nan=1.0).reshape(shape).astype(np.float32),
            missing,
            tabular,
        )

    @classmethod
    def _fit_tokens(cls, array: NDArray[Any], symbols: int = 0) -> Inputs:
        _check_tokens(array)
        symbols = symbols or int(array.max()) + 1
        if symbols > MOST_SYMBOLS:
            raise DataError(
                f"token ids go up to {symbols - 1}, and each symbol is a channel (at most {MOST_SYMBOLS})",
                where="X",
                fix="number the symbols from 0, or give fewer kinds of them",
            )
        if array.shape[1] < 2:
            raise DataError("every input has one token only", where="X", fix="give two tokens or more")
        if array.min() == array.max():
            raise DataError("every token is the same", where="X", fix="give inputs that differ")
        zeros, ones = np.zeros((symbols, 1), np.float32), np.ones((symbols, 1), np.float32)
        return cls("tokens", symbols, (int(array.shape[1]),), zeros, ones)

    def transform(self, values: Any) -> NDArray[np.float32]:
        """Return [inputs, channels, …] in float32.

        A shape other than that of the training rows is refused.
        """
        array = self.alphabet.ids(values, self.size[0]) if self.alphabet else _numbers(values)
        if self.kind == "tokens" and array.ndim != 3:
            _check_tokens(array)
            if array.shape[1:] != self.size:
                raise _other_shape(array.shape[1:], self.size)
            if array.size and array.max() >= self.channels:
                raise DataError(
                    f"token {int(array.max())} did not occur in training (0 to {self.channels - 1} did)",
                    where="X",
                    fix="leave such rows out, or train on data that has them",
                )
            return np.ascontiguousarray(
                np.eye(self.channels, dtype=np.float32)[array.astype(np.int64)].transpose(0, 2, 1)
            )
        array = _with_channels(array, "tabular" if self.tabular else self.kind)
        if array.shape[1:] != (self.channels, *self.size):
            raise _other_shape(array.shape[1:], (self.channels, *self.size))
        check_finite(array, self.missing)
        scaled = (array - self.mean) / self.std
        return np.ascontiguousarray(np.nan_to_num(scaled, nan=0.0), dtype=np.float32)

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON holds of it; the scales are arrays of their own."""
        return {
            "kind": self.kind,
            "channels": self.channels,
            "size": list(self.size),
            "missing": self.missing,
            "tabular": self.tabular,
            "symbols": list(self.alphabet.names) if self.alphabet else [],
            "words": self.alphabet is not None and self.alphabet.words,
        }

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any], mean: NDArray[Any], std: NDArray[Any]) -> Inputs:
        """Return what `to_dict` and the scales gave."""
        return cls(
            facts["kind"],
            int(facts["channels"]),
            tuple(facts["size"]),
            mean,
            std,
            facts["missing"],
            bool(facts["tabular"]),
            Alphabet(tuple(facts["symbols"]), bool(facts.get("words"))) if facts.get("symbols") else None,
        )


def _numbers(values: Any) -> NDArray[Any]:
    try:
        array = np.asarray(as_numpy(values))
        if array.dtype == object:
            array = array.astype(np.float64)
    except (ValueError, TypeError) as error:
        raise DataError(
            "inputs are ragged or hold no numbers",
            where="X",
            fix="give an array of one shape; fill up shorter series",
        ) from error
    if array.dtype.kind not in "fiub":
        raise DataError(f"inputs hold {array.dtype} and no numbers", where="X", fix="give numbers")
    if not array.size:
        raise DataError("there are no inputs", where="X", fix="give at least one row")
    return array


def _kind(array: NDArray[Any], kind: Kind) -> Kind:
    axes = {"series": (2, 3), "grid": (3, 4), "tokens": (2, 3), "tabular": (2,), "auto": (2, 3, 4)}[kind]
    if array.ndim not in axes:
        expected = _SHAPES.get(
            kind, "[rows, length], [rows, channels, length] or [rows, channels, height, width]"
        )
        raise DataError(
            f"inputs of shape {list(array.shape)} do not read as {'any kind' if kind == 'auto' else kind}",
            where="X",
            fix=f"give {expected}",
        )
    return kind if kind != "auto" else "grid" if array.ndim == 4 else "series"


def _with_channels(array: NDArray[Any], kind: str) -> NDArray[Any]:
    """Return [inputs, channels, …]; one channel is put in where there is none."""
    plain = 2 if kind != "grid" else 3
    if array.ndim not in (plain, plain + 1):
        raise DataError(
            f"inputs of shape {list(array.shape)} do not read as {kind}",
            where="X",
            fix=f"give {_SHAPES[kind]}",
        )
    wide = array[:, None] if array.ndim == plain else array
    return wide.astype(np.float32, copy=False)


def check_finite(array: NDArray[Any], missing: Missing, where: str = "X") -> None:
    """Refuse infinite values; and NaN, unless they are filled in."""
    fine = np.isfinite(array) if missing == "refuse" else ~np.isinf(array)
    rows = fine.reshape(len(array), -1).all(axis=1)
    if not rows.all():
        row = int(np.argmin(rows))
        what = "NaN or infinity" if missing == "refuse" else "infinity"
        raise DataError(
            f"row {row + 1} holds {what} ({int((~rows).sum())} such rows)",
            where=where,
            fix="drop the rows"
            + (", or put the channel's mean for NaN with --missing fill" if missing == "refuse" else ""),
        )


def _check_tokens(array: NDArray[Any]) -> None:
    whole = array.dtype.kind in "iub" or bool((array == np.floor(array)).all())
    if array.ndim != 2 or not whole or array.min() < 0:
        raise DataError(
            f"inputs of shape {list(array.shape)} are no token ids",
            where="X",
            fix="give whole numbers from 0, [rows, length]",
        )


def _other_shape(given: tuple[int, ...], wanted: tuple[int, ...]) -> DataError:
    shapes = [" × ".join(map(str, shape)) for shape in (given, wanted)]
    return DataError(
        f"inputs are {shapes[0]} and the model was trained on {shapes[1]}",
        where="X",
        fix="give inputs of that shape",
    )
