"""The most memory of this process while a block runs, without what is mapped from files."""

import threading
from types import TracebackType

_INTERVAL = 0.02


class PeakMemory:
    """Measures the process's anonymous memory; `peak` is bytes, 0 where the system does not tell.

    The kernel keeps the peak of all resident memory since it was last reset; less what is mapped from files
    in the end, that is the peak of the rest. Where it cannot be reset, a thread looks every few milliseconds.
    """

    def __enter__(self) -> "PeakMemory":
        self.peak = anonymous_memory()
        self._stop: threading.Event | None = None
        if not _reset():
            self._stop = threading.Event()
            self._thread = threading.Thread(target=self._watch, args=(self._stop,), daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stop is not None:
            self._stop.set()
            self._thread.join()
        else:
            found = _status()
            self.peak = max(
                self.peak, found.get("VmHWM", 0) - found.get("RssFile", 0) - found.get("RssShmem", 0)
            )
        self.peak = max(self.peak, anonymous_memory())

    def _watch(self, stop: threading.Event) -> None:
        while not stop.wait(_INTERVAL):
            self.peak = max(self.peak, anonymous_memory())


def anonymous_memory() -> int:
    """Return the bytes of this process that are no file."""
    return _status().get("RssAnon", 0)


def _reset() -> bool:
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        return False
    return True


def _status() -> dict[str, int]:
    """Return the kernel's figures of this process, in bytes."""
    found = {}
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name.startswith(("Rss", "VmHWM")):
                    found[name] = int(rest.split()[0]) * 1024
    except OSError:
        return {}
    return found
