"""Seeds, chunks, bytes: the small numeric habits that every room shares. Imports neither numpy nor torch."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from transship.errors import OptionError

_UNITS = {"": 1} | {unit: 1000**power for power, unit in enumerate("KMGT", 1)}
_UNITS |= {unit + "I": 1024**power for power, unit in enumerate("KMGT", 1)}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", re.IGNORECASE)


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


def parse_bytes(text: str) -> int:
    """Return the number of bytes that `2GB`, `512MiB` or plain digits stand for."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2].upper() == "I":
        raise OptionError(
            f"'{text}' is not a size", where="--memory", fix="write it as 2GB, 512MiB or a number of bytes"
        )
    return int(float(match[1]) * _UNITS[match[2].upper()])


def format_bytes(count: float) -> str:
    """Return a size as people read it: `1.3 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or abs(count) >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


@dataclass(frozen=True)
class MemoryBudget:
    """How much anonymous memory the work may take.

    Attributes:
        limit: bytes, or None for what the machine has.
    """

    limit: int | None = None

    def rows(self, bytes_per_row: int, *, fixed: int = 0, most: int = 65536, what: str = "this step") -> int:
        """Return how many rows fit beside `fixed` bytes, at most `most`; refuse when not even one does."""
        if self.limit is None:
            return most
        room = self.limit - fixed
        if room < bytes_per_row:
            least = format_bytes(fixed + bytes_per_row)
            raise OptionError(
                f"{what} needs at least {least} and may take {format_bytes(self.limit)}",
                where="--memory",
                fix=f"allow {least} or more",
            )
        return min(most, room // bytes_per_row)
