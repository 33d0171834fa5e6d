"""What a training remembers beside network and optimiser: all of it goes into every checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

_FACTS = ("log", "history", "notes", "best", "losses")
_TENSORS = ("kept", "before", "snapshots")


@dataclass(eq=False)
class Ledger:
    """The memory of both stages.

    Attributes:
        log: rows of stage 1.
        history: rows of stage 2.
        notes: sentences for the user.
        best: the best row so far of the phase that is running, and the one it began with.
        losses: of the steps since the last validation.
        kept: weights of the best row.
        before: the embedder from before a phase that may be undone.
        snapshots: pooled φ(x) of some training rows before stage 1 and after each of its phases, and after
            stage 2, for pictures.
    """

    log: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    kept: dict[str, Tensor] = field(default_factory=dict)
    before: dict[str, Tensor] = field(default_factory=dict)
    snapshots: dict[str, Tensor] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Return what JSON holds of it."""
        return {name: getattr(self, name) for name in _FACTS}

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return {
            f"{group}.{name}": value for group in _TENSORS for name, value in getattr(self, group).items()
        }

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Self:
        """Return what `facts` and `tensors` gave."""
        found: dict[str, Any] = {name: facts[name] for name in _FACTS}
        found |= {group: under(tensors, f"{group}.") for group in _TENSORS}
        return cls(**found)


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, without it."""
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}


__all__ = ["Ledger", "under"]
