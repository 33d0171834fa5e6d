"""One writer at a time: a fusion's folder is held while it is being changed."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from transship.errors import OutputError


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold `folder` while the block runs; refuse when somebody else does, or has just replaced it.

    The kernel lets go when the process dies, so a killed `add` blocks nobody.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise _busy(folder) from error
        if not folder.exists() or os.fstat(handle).st_ino != folder.stat().st_ino:
            raise _busy(folder)
        yield
    finally:
        os.close(handle)


def _busy(folder: Path) -> OutputError:
    return OutputError("another process is changing it", where=str(folder), fix="wait until that is done")
