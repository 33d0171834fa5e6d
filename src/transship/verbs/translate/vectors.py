"""Vectors in and out: numpy or torch, any float dtype, the same kind back; the hash of the anchors' ids."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transship.errors import DataError
from transship.numerics import chunks
from transship.types import Array

# rows of one block of a streamed product: large enough for a fast product, small enough to stay in cache
BLOCK = 8192


def to_tensor(rows: Any) -> Tensor:
    """Return `rows` as a floating tensor without a copy where that is possible.

    float64 stays; float32, float16 and bfloat16 stay; integers and everything else become float64.
    """
    if isinstance(rows, Tensor):
        return rows.detach() if rows.is_floating_point() else rows.detach().double()
    array = np.asarray(rows)
    if array.dtype not in (np.float64, np.float32, np.float16):
        array = array.astype(np.float64)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()  # torch views neither read-only nor reversed memory
    return torch.from_numpy(array)


def working(rows: Tensor) -> Tensor:
    """Return `rows` in the dtype the arithmetic runs in: float64 for float64, float32 for the rest."""
    return rows if rows.dtype == torch.float64 else rows.float()


def like(result: Tensor, given: Any) -> Any:
    """Return `result` as the kind (numpy, or torch on its device) and float dtype of `given`."""
    if isinstance(given, Tensor):
        dtype = given.dtype if given.is_floating_point() else torch.float64
        return result.to(device=given.device, dtype=dtype)
    array = result.cpu().numpy()
    kind = getattr(given, "dtype", np.dtype(np.float64))
    return array.astype(kind, copy=False) if np.issubdtype(kind, np.floating) else array


def by_blocks(rows: Tensor, width: int, product: Callable[[Tensor, Tensor], object]) -> Tensor:
    """Return the rows that `product(block, out)` writes, so that no intermediate is larger than one block.

    Shapes: rows [rows, source] → [rows, width]; the result has the working dtype of `rows`.
    """
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
    result = torch.empty((rows.shape[0], width), dtype=dtype, device=rows.device)
    for part in chunks(rows.shape[0], BLOCK):
        product(rows[part].to(dtype), result[part])
    return result


def check_finite(rows: Tensor | Array, where: str, ids: Any = None) -> None:
    """Refuse rows that hold NaN or infinity, naming the first of them."""
    tensor = rows if isinstance(rows, Tensor) else to_tensor(rows)
    bad = ~torch.isfinite(tensor).all(dim=1)
    if bool(bad.any()):
        first = int(torch.nonzero(bad)[0])
        name = f"id {ids[first]}" if ids is not None else f"row {first}"
        raise DataError(
            f"{int(bad.sum())} of {len(bad)} vectors hold NaN or infinity, the first is {name}",
            where=where,
            fix="remove or embed these rows again",
        )


def check_zero(rows: Array, where: str, ids: Any = None) -> None:
    """Refuse rows of zeros, which have no direction, naming the first of them."""
    zero = np.flatnonzero(rows[:, 0] == 0)  # few rows begin with a zero: only these are read whole
    zero = zero[~rows[zero].any(axis=1)]
    if len(zero):
        name = f"has id {ids[zero[0]]}" if ids is not None else f"is row {zero[0]}"
        raise DataError(
            f"{len(zero)} of {len(rows)} vectors are all zero, the first {name}",
            where=where,
            fix="remove these rows or embed them again",
        )


def unit(rows: Tensor) -> Tensor:
    """Return the rows with length 1; a row of zeros stays zero."""
    return torch.nn.functional.normalize(rows, dim=1, eps=torch.finfo(rows.dtype).tiny)


def plain_id(identity: Any) -> Any:
    """Return a row's id as a Python value, as stores and JSON take it."""
    return identity.item() if isinstance(identity, np.generic) else identity


def anchors_hash(ids: Iterable[Any]) -> str:
    """Return a hash of the anchors' ids in their order; 1 and "1" count as the same id."""
    digest = hashlib.sha256()
    for identity in ids:
        text = str(identity).encode()
        digest.update(len(text).to_bytes(8, "big") + text)
    return digest.hexdigest()[:32]
