"""How numbers lie in a file: dtype names, and the way to float32 and back by bit arithmetic, without torch.

`widen` is exact. `narrow` rounds once, to the nearest value and to even on a tie, from float32 or float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from transship.errors import CheckpointError, OptionError

Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]
Buffer = memoryview | bytes | bytearray | Array

CHUNK = 1 << 17  # elements: 512 kB of float32, which stays in the second-level cache


@dataclass(frozen=True)
class DType:
    """One element type.

    Attributes:
        name: as torch calls it, `bfloat16`.
        code: as a safetensors header calls it, `BF16`.
        storage: the numpy type with the same bytes, little-endian; unsigned integers where numpy has no
            such float.
        floating: whether it is a real floating-point type, which arithmetic on weights concerns.
    """

    name: str
    code: str
    storage: np.dtype[Any]
    floating: bool

    @property
    def itemsize(self) -> int:
        return self.storage.itemsize

    @property
    def native(self) -> bool:
        """Return whether numpy's own type means the same number."""
        return not self.floating or self.storage.kind == "f"


_TABLE = (
    ("float64", "F64", "<f8", True),
    ("float32", "F32", "<f4", True),
    ("float16", "F16", "<f2", True),
    ("bfloat16", "BF16", "<u2", True),
    ("float8_e4m3fn", "F8_E4M3", "|u1", True),
    ("float8_e5m2", "F8_E5M2", "|u1", True),
    ("int64", "I64", "<i8", False),
    ("int32", "I32", "<i4", False),
    ("int16", "I16", "<i2", False),
    ("int8", "I8", "|i1", False),
    ("uint64", "U64", "<u8", False),
    ("uint32", "U32", "<u4", False),
    ("uint16", "U16", "<u2", False),
    ("uint8", "U8", "|u1", False),
    ("bool", "BOOL", "|b1", False),
    ("complex64", "C64", "<c8", False),
)
_ALL = tuple(DType(name, code, np.dtype(storage), floating) for name, code, storage, floating in _TABLE)
BY_NAME = {dtype.name: dtype for dtype in _ALL}
BY_CODE = {dtype.code: dtype for dtype in _ALL}
# the codes that the format also knows and that only quantised weights use
QUANTISED_CODES = frozenset({"F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}


def find_dtype(name: str, *, where: str = "--dtype") -> DType:
    """Return the dtype called `name`: torch's name, with or without `torch.`, or bf16, fp16, fp32."""
    plain = str(name).removeprefix("torch.")
    dtype = BY_NAME.get(_SHORT.get(plain, plain))
    if dtype is None:
        known = ", ".join(each.name for each in _ALL if each.floating)
        raise OptionError(f"there is no dtype '{name}'", where=where, fix=f"choose one of: {known}")
    return dtype


def stored(raw: Buffer, dtype: str) -> Array:
    """Return the flat array over the bytes `raw` without copying them (a copy where they are not aligned)."""
    kind = BY_NAME[dtype].storage
    if isinstance(raw, np.ndarray):
        flat = raw.reshape(-1)
        return flat if flat.dtype == kind else flat.view(kind)
    values = np.frombuffer(raw, kind)
    return values if values.flags.aligned else values.copy()


def widen(raw: Buffer, dtype: str, out: Floats | None = None) -> Floats:
    """Return the numbers that the bytes `raw` of type `dtype` stand for, as a flat float32 array.

    Exact for every float of 32 bits or fewer. Float32 bytes are not copied unless `out` is given.
    """
    values = stored(raw, dtype)
    if dtype == "float32" and out is None:
        return values
    if out is None:
        out = np.empty(values.size, np.float32)
    if dtype == "bfloat16":
        bits = out.view(np.uint32)
        for start in range(0, values.size, CHUNK):
            part = bits[start : start + CHUNK]
            part[:] = values[start : start + CHUNK]
            np.left_shift(part, 16, out=part)
    elif dtype == "float16" or dtype.startswith("float8"):
        # a table is exact and twice as fast as numpy's own float16 conversion; wrap spares the bounds check
        index = values.view(np.uint16) if dtype == "float16" else values
        np.take(_table(dtype), index, out=out, mode="wrap")
    elif BY_NAME[dtype].storage.kind == "c":
        raise CheckpointError(
            "complex numbers have no float32 value", where=dtype, fix="read the tensor in its own dtype"
        )
    else:
        with np.errstate(over="ignore"):  # float64 beyond float32 becomes infinite
            out[:] = values
    return out


def narrow(values: Array, dtype: str, out: Array | None = None) -> Array:
    """Return `values` (float32 or float64) rounded once to `dtype`, as a flat array of its storage type.

    Its bytes are what a file holds: `memoryview(result)` or `result.tobytes()`. Values beyond the largest
    finite number become infinite (NaN in float8_e4m3fn, which has no infinity). Integers are converted by
    numpy and must fit.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    kind = BY_NAME[dtype]
    if out is None and kind.native and flat.dtype == kind.storage:
        return flat
    if out is None:
        out = np.empty(flat.size, kind.storage)
    if dtype == "bfloat16":
        scratch = np.empty(min(flat.size, CHUNK), np.uint32)
        for start in range(0, flat.size, CHUNK):
            _to_bfloat16(flat[start : start + CHUNK], out[start : start + CHUNK], scratch)
    elif dtype.startswith("float8"):
        for start in range(0, flat.size, CHUNK):
            _to_float8(flat[start : start + CHUNK], dtype, out[start : start + CHUNK])
    else:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            out[:] = flat
    return out


def _to_bfloat16(values: Array, out: Array, scratch: Array) -> None:
    """Round to nearest, ties to even: add 0x7FFF plus the last kept bit, then keep the upper half."""
    values = _round_to_odd(values) if values.dtype == np.float64 else values.astype(np.float32, copy=False)
    bits = values.view(np.uint32)
    rounded = scratch[: bits.size]
    np.right_shift(bits, 16, out=rounded)
    np.bitwise_and(rounded, 1, out=rounded)
    np.add(rounded, bits, out=rounded)
    np.add(rounded, 0x7FFF, out=rounded)
    np.right_shift(rounded, 16, out=rounded)
    out[:] = rounded
    # the sum carries some NaNs over into zero or infinity; the largest value is NaN exactly if one is there
    if values.size and np.isnan(np.maximum.reduce(values)):
        nan = np.isnan(values)
        out[nan] = (bits[nan] >> 16).astype(np.uint16) | np.uint16(0x0040)


def _round_to_odd(values: Array) -> Floats:
    """Return float32 values whose later rounding to fewer bits equals rounding the float64 `values` at once.

    What does not fit is cut towards zero and its last bit set: it then never looks like a tie.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        near = values.astype(np.float32)
    bits = near.view(np.uint32)
    inexact = (near != values) & ~np.isnan(values)
    bits -= (inexact & (np.abs(near) > np.abs(values))).astype(np.uint32)
    bits |= inexact.astype(np.uint32)
    return near


def _to_float8(values: Array, dtype: str, out: Array) -> None:
    """Find each magnitude among the 127 positive values; a midpoint goes to the even neighbour."""
    limits, from_even = _midpoints(dtype)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        magnitude = np.abs(values).astype(np.float64)
    code = np.searchsorted(limits, magnitude, side="left")  # limits[k] lies between codes k and k + 1
    tie = (code < limits.size) & (magnitude == limits[np.minimum(code, limits.size - 1)])
    code += tie & ~from_even[np.minimum(code, limits.size - 1)]
    code[np.isnan(values)] = 0x7F
    out[:] = code.astype(np.uint8) | (np.signbit(values).astype(np.uint8) << 7)


@cache
def _midpoints(dtype: str) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    positive = _table(dtype)[:128]
    finite = positive[np.isfinite(positive)].astype(np.float64)
    # one step beyond the largest finite number, where infinity (e5m2) or NaN (e4m3fn) begins
    ladder = np.append(finite, finite[-1] + (finite[-1] - finite[-2]))
    return (ladder[1:] + ladder[:-1]) / 2, np.arange(ladder.size - 1) % 2 == 0


@cache
def _table(dtype: str) -> Floats:
    """Return the float32 value of every bit pattern of a float of 8 or 16 bits."""
    if dtype == "float16":
        return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    codes = np.arange(256, dtype=np.uint16)
    if dtype == "float8_e5m2":  # the upper byte of a float16
        return (codes << 8).view(np.float16).astype(np.float32)
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent, mantissa = (codes >> 3 & 0xF).astype(np.int32), (codes & 7).astype(np.float64)
    normal = (1 + mantissa / 8) * np.exp2(exponent - 7)
    value = sign * np.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)
    return np.where(codes & 0x7F == 0x7F, np.nan, value).astype(np.float32)
