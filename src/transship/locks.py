"""Locks that a dead process does not hold: one writer at a time for an output, on this machine.

`filelock` takes the system's own lock on Linux, macOS and Windows, and a file with a process number where a
file system knows no locks.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from transship.errors import OutputError

if TYPE_CHECKING:
    from filelock import BaseFileLock


@contextlib.contextmanager
def locked(target: str | os.PathLike[str], *, wait: bool = False) -> Iterator[None]:
    """Hold `target` while the block runs, as its only writer on this machine; a dead process holds nothing.

    Another process that holds it makes this an OutputError, or with `wait` a wait. The lock is a hidden file
    beside the target, because the target itself may be replaced meanwhile; it is removed in the end.
    """
    final = Path(os.path.realpath(Path(target).expanduser()))
    new = [folder for folder in final.parents if not folder.exists()]
    with contextlib.suppress(OSError):  # whoever writes there says so in better words
        final.parent.mkdir(parents=True, exist_ok=True)
    lock = file_lock(lock_of(final))
    if final.parent.is_dir() and not acquire(lock, wait=wait):
        raise OutputError(
            "another process is changing it", where=str(target), fix="wait until that process is done"
        )
    try:
        yield
    finally:
        release(lock)
        with contextlib.suppress(OSError):  # folders in which nothing was written
            for folder in new:
                folder.rmdir()


def lock_of(final: Path) -> Path:
    """Return the hidden file by which a process holds a target."""
    return final.parent / f".{stem(final)}.transship.lock"


@contextlib.contextmanager
def if_abandoned(lock_file: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold a lock if no living process does, or once none does, and say so."""
    lock = file_lock(lock_file)
    abandoned = False
    with contextlib.suppress(OSError):
        abandoned = acquire(lock, wait=wait) and lock.is_locked
    try:
        yield abandoned
    finally:
        if abandoned:
            lock.release(force=True)


def file_lock(path: Path) -> BaseFileLock:
    """Return the lock of a file, not yet taken."""
    from filelock import FileLock  # start-up: it takes as long to import as all the rest of a small command

    return FileLock(path, thread_local=False)


def acquire(lock: BaseFileLock, *, wait: bool = False) -> bool:
    """Take the lock if nobody has it; without locks on the file system, take it for one's own."""
    from filelock import Timeout  # start-up

    try:
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        return False
    except FileNotFoundError:
        raise
    except (OSError, NotImplementedError):
        return True
    return True


def release(lock: BaseFileLock) -> None:
    """Remove the lock's file while it is held, so that nobody can hold a file that is gone, and let go."""
    if sys.platform == "win32":
        lock.release(force=True)  # an open file cannot be removed there
    with contextlib.suppress(OSError):
        Path(lock.lock_file).unlink(missing_ok=True)
    lock.release(force=True)


def stem(final: Path) -> str:
    """Return what a target's temporary names begin with: its name, or a hash of one too long to extend."""
    encoded = os.fsencode(final.name)
    return final.name if len(encoded) <= 150 else hashlib.sha256(encoded).hexdigest()[:32]
