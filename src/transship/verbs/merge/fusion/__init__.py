"""Continual merging: fine-tunes of one base join one model, one after another."""

from typing import Any

__all__ = ["Fusion"]


def __getattr__(name: str) -> Any:
    if name == "Fusion":
        from transship.verbs.merge.fusion.engine import Fusion

        return Fusion
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
