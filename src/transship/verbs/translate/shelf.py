"""What passes between processes of one machine by a file: the value that all share, and large results."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
LONG = 32_768  # bytes; what a pipe takes at once is twice that


def end_with_parent() -> None:
    """End this process when the one that started it was killed, and clear up after it."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        if _shelf is not None:
            shutil.rmtree(_shelf, ignore_errors=True)
        os._exit(1)


@contextlib.contextmanager
def shelved(shared: Any) -> Iterator[Path]:
    """Keep a value in a file for a while, from where each process takes it once."""
    with tempfile.TemporaryDirectory(prefix="transship-") as folder:
        place = Path(folder) / "shared.pickle"
        with place.open("wb") as file:
            pickle.dump(shared, file, protocol=pickle.HIGHEST_PROTOCOL)
        yield place


_shelf: Path | None = None  # where this process takes what it shares from


@functools.lru_cache(maxsize=1)
def _unshelved(place: Path) -> Any:
    global _shelf
    _shelf = place.parent
    with place.open("rb") as file:
        return pickle.load(file)


@dataclass(frozen=True)
class _Put:
    """A result that was put on the shelf."""

    place: Path


def work_here(work: Callable[[Any, Item], Result], place: Path, item: Item) -> Result | _Put:
    """Do a piece. A large result goes by the shelf: a process that dies amid a long message would leave the
    first one waiting for the rest.
    """
    result = work(_unshelved(place), item)
    made = pickle.dumps(result, protocol=pickle.HIGHEST_PROTOCOL)
    if len(made) < LONG:
        return result
    file = place.with_name(f"{uuid.uuid4().hex}.pickle")
    file.write_bytes(made)
    return _Put(file)


def taken(ready: Future[Any]) -> Any:
    """Return a result that is ready, from the shelf where it was put there."""
    result = ready.result()
    if not isinstance(result, _Put):
        return result
    made = pickle.loads(result.place.read_bytes())
    result.place.unlink()
    return made
