"""The processes of the harness: what strikes them, what they have imported, how they end."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
PATIENCE = 120  # seconds


def build(folder: Path) -> Path:
    """Compile what strikes."""
    library = folder / "strike.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "strike.c"), "-ldl"]
    subprocess.run(command, check=True)
    return library


# what starts threads when it is imported, which no fork survives
THREADS = ("lancedb", "ray", "playwright")


def warm(modules: Sequence[str] = ("torch", "transformers", "pyarrow.parquet", "transship.cli")) -> None:
    """Import what commands import; the forks need not."""
    for name in modules:
        if name not in sys.modules and name != "__mp_main__" and not name.startswith(THREADS):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    gc.collect()
    gc.freeze()  # what is never looked at stays shared with the forks
    assert threading.active_count() == 1, threading.enumerate()


def wait_for(process: int) -> int:
    """Return the exit code of a process; one that never ends is killed."""
    if not ends_within(process, PATIENCE):
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        return -99
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def ends_within(process: int, seconds: float) -> bool:
    """Return whether a process ends in time; `wait_for` still has to be called."""
    handle = os.pidfd_open(process)
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)
