"""Which tensors of two checkpoints belong together, by names that may differ by one prefix."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from transship.checkpoints.checkpoint import Checkpoint
from transship.checkpoints.weightfile import quote


@dataclass
class TensorPairs:
    """Which tensor of the fine-tune belongs to which of the base.

    Attributes:
        matched: base name → tuned name, for floating-point tensors of equal shape.
        only_tuned: tensors that the base has not.
        problems: what has no partner, by kind.
    """

    matched: dict[str, str] = field(default_factory=dict)
    only_tuned: list[str] = field(default_factory=list)
    problems: dict[str, list[str]] = field(default_factory=dict)

    def problems_text(self) -> str:
        """Return the problems in half a sentence, three examples of each kind."""
        parts = []
        for kind, names in self.problems.items():
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            parts.append(f"{kind} {', '.join(names[:3])}{more}")
        return "; ".join(parts)


def pair(base: Checkpoint, tuned: Checkpoint) -> TensorPairs:
    """Pair every floating-point tensor; integers (buffers, not learned) must agree where both have them."""
    convert = translation(list(base.tensors), [*tuned.tensors, *tuned.tied])
    result, used = TensorPairs(), set()
    for name, info in base.tensors.items():
        other = convert.get(name)
        if other is None or other not in tuned:
            if info.floating:
                result.problems.setdefault("only the base has", []).append(quote(name))
            continue
        used.add(tuned.tied.get(other, other))
        there = tuned.info(other)
        if info.shape != there.shape:
            text = f"{quote(name)} ({list(info.shape)} and {list(there.shape)})"
            result.problems.setdefault("of different shapes are", []).append(text)
        elif info.floating and there.floating:
            result.matched[name] = other
        elif info.dtype != there.dtype or base.raw(name) != tuned.raw(other):
            result.problems.setdefault("of different integers are", []).append(quote(name))
    for name, info in tuned.tensors.items():
        if name not in used and info.floating:
            result.only_tuned.append(name)
            note = " (tied in the base)" if name in base.tied else ""
            result.problems.setdefault("only the fine-tune has", []).append(quote(name) + note)
    return result


def translation(names: Collection[str], others: Collection[str]) -> dict[str, str]:
    """Return name → other name, under the one prefix, added or removed, that makes most of them meet.

    No prefix is preferred to one that makes no more of them meet.
    """
    known = set(others)
    added = {other.split(".")[0] + "." for other in others if "." in other}
    removed = {name.split(".")[0] + "." for name in names if "." in name}
    plain = {name: name for name in names if name in known}
    best = plain
    if len(plain) == len(names):
        return plain
    for prefix in sorted(added):
        shorter = {name: prefix + name for name in names if prefix + name in known}
        best = max(best, {**plain, **shorter}, key=len)
    for prefix in sorted(removed):
        cut = {name: name.removeprefix(prefix) for name in names if name.startswith(prefix)}
        shorter = {name: other for name, other in cut.items() if other in known}
        best = max(best, {**plain, **shorter}, key=len)
    return best
