"""Seeds, chunks, bytes: the small numeric habits that every room shares. Imports neither numpy nor torch."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transship.errors import OptionError

_UNITS = {"": 1} | {unit: 1000**power for power, unit in enumerate("KMGT", 1)}
_UNITS |= {unit + "I": 1024**power for power, unit in enumerate("KMGT", 1)}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", re.IGNORECASE)


def free_bytes() -> int:
    """Return the memory that this process may still take: of the machine, and of the container it runs in."""
    import psutil  # type: ignore[import-untyped]  # start-up: most commands never ask

    free = int(psutil.virtual_memory().available)
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / name).read_text() for name in ("memory.max", "memory.current"))
        free = min(free, int(limit) - int(used))
    return max(free, 0)


def derive_seed(seed: int, *keys: object) -> int:
    """Return a seed below 2⁶³ for one purpose, from the user's seed and what names the purpose.

    Draws keyed by name do not depend on the order of work, the number of threads or what else was drawn.
    """
    text = json.dumps([str(seed), *map(str, keys)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def chunks(total: int, size: int) -> Iterator[slice]:
    """Yield the slices that cover `range(total)` in steps of `size`."""
    if size < 1:
        raise ValueError(f"a chunk holds at least one element, not {size}")
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def kernels() -> str:
    """Return the processor and the kernels that compute on it: they decide the last digits."""
    import torch  # numpy's commands start without it

    mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    blas = "MKL" if mkl else "OpenBLAS"
    return f"{_processor()}, torch {torch.backends.cpu.get_cpu_capability()}, {blas}"


def _processor() -> str:
    """Return the model of the processor as its system names it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def parse_bytes(text: str, where: str = "--memory") -> int:
    """Return the number of bytes that `2GB`, `512MiB` or plain digits stand for."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2].upper() == "I":
        raise OptionError(
            f"'{text}' is not a size", where=where, fix="write it as 2GB, 512MiB or a number of bytes"
        )
    return int(float(match[1]) * _UNITS[match[2].upper()])


def format_bytes(count: float) -> str:
    """Return a size as people read it: `1.3 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or abs(count) >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _built_for_gpus() -> bool:
    """Whether the torch that is installed brings kernels for GPUs, told by its files."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return False
    libraries = Path(torch.origin).with_name("lib")
    return any(any(libraries.glob(f"*torch_{kind}*")) for kind in ("cuda", "hip", "xpu"))


# anonymous bytes of a process before any work, from above: with numpy; with torch and transformers too, which
# take 130 MB more where torch is built for GPUs
INTERPRETER, TORCH = 45_000_000, 550_000_000 if _built_for_gpus() else 400_000_000


@dataclass(frozen=True)
class MemoryBudget:
    """How much anonymous memory (what is no file) the work of one process may take.

    Attributes:
        limit: bytes, or None for what the machine has.
        base: bytes of the process itself, which count against the limit.
    """

    limit: int | None = None
    base: int = 0

    @classmethod
    def parse(cls, text: str | None, base: int = TORCH) -> MemoryBudget:
        """Return the budget that `--memory` states; without one there is no limit."""
        return cls(None if text is None else parse_bytes(text), base)

    def rows(self, bytes_per_row: int, *, fixed: int = 0, most: int = 65536, what: str = "this step") -> int:
        """Return how many rows fit beside `fixed` bytes, at most `most`; refuse when not even one does."""
        if self.limit is None:
            return most
        self.require(fixed + bytes_per_row, what)
        return min(most, (self.limit - self.base - fixed) // bytes_per_row)

    def require(self, needed: int, what: str, instead: str = "") -> None:
        """Refuse work that takes more than there is, with the least that would do and what else helps."""
        if self.limit is None or self.base + needed <= self.limit:
            return
        least = format_bytes(_up(self.base + needed))
        raise OptionError(
            f"{what} needs at least {least} and may take {format_bytes(self.limit)}",
            where="--memory",
            fix=f"allow {least} or more{f', or {instead}' if instead else ''}",
        )


def _up(count: int) -> int:
    """Return a size rounded up to what `format_bytes` prints, so that the printed one is enough."""
    unit = 1
    while count >= 1000 * unit and unit < 10**12:
        unit *= 1000
    # a decimal is printed of sizes below a hundred
    step = unit if count >= 100 * unit or unit == 1 else unit // 10
    return -(-count // step) * step
