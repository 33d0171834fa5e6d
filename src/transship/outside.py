"""Files from outside: read within limits, and refused in one sentence when they are not what they say.

A file may be cut short, changed on its way, or written to harm. So its size is looked at before it is read,
its depth before anybody walks it, and the memory that it asks for before anything is unpacked.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from transship.errors import CheckpointError, DataError, TransshipError
from transship.numerics import format_bytes, free_bytes

JSON_BYTES = 200_000_000  # an index of a million tensors fits
JSON_DEPTH = 100
_AGAIN = "fetch or write it again"
_LIMIT: ContextVar[int | None] = ContextVar("unpacked", default=None)


@contextlib.contextmanager
def unpacking_at_most(limit: int | None) -> Iterator[None]:
    """Let no file unpack into more than `limit` bytes in the block; None stands for half of what is free."""
    token = _LIMIT.set(limit)
    try:
        yield
    finally:
        _LIMIT.reset(token)


def require_room(needed: int, where: str) -> None:
    """Refuse a file whose own header says that it takes more memory than it may once it is unpacked."""
    stated = _LIMIT.get()
    limit = free_bytes() // 2 if stated is None else stated
    if needed > limit:
        bound = "--memory" if stated is not None else "half of the free memory"
        raise DataError(
            f"unpacked it takes {format_bytes(needed)}, and {bound} is {format_bytes(limit)}",
            where=where,
            fix="split it, store it as .npy or .parquet (read in parts), or allow more with --memory",
        )


@contextlib.contextmanager
def complete(where: str | Path, fix: str = _AGAIN, kind: type[TransshipError] = DataError) -> Iterator[None]:
    """Say in one sentence that what the block reads is damaged, whatever its wrong entries make fail there.

    Only for blocks that turn the content of one file into values of ours.
    """
    try:
        yield
    except TransshipError:
        raise
    except Exception as error:  # a document that lies can make anything fail
        reason = " ".join(str(error).split())[:120]
        what = f"it is cut short or damaged ({type(error).__name__}{f': {reason}' if reason else ''})"
        raise kind(what, where=str(where), fix=fix) from error


def read_json(
    path: Path, fix: str = _AGAIN, kind: type[TransshipError] = CheckpointError, shape: type = dict
) -> Any:
    """Return a JSON object (or what else `shape` says) from a file, or refuse the file in one sentence."""
    try:
        if path.stat().st_size > JSON_BYTES:
            raise ValueError("too large")
        content = json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise kind(
            f"it cannot be read ({error.strerror})", where=str(path), fix="check its path and permissions"
        ) from error
    except (ValueError, RecursionError) as error:
        what = f"it is not valid JSON in UTF-8, perhaps cut short ({str(error)[:100]})"
        raise kind(what, where=str(path), fix=fix) from error
    if not isinstance(content, shape) or _too_deep(content, JSON_DEPTH):
        wanted = "object" if shape is dict else shape.__name__
        what = "it is nested too deeply" if isinstance(content, shape) else f"it is not a JSON {wanted}"
        raise kind(what, where=str(path), fix=fix)
    return content


def _too_deep(value: object, left: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return left == 0 or any(_too_deep(part, left - 1) for part in inner)
