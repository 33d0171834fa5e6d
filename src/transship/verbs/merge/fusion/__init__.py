"""Continual merging: fine-tunes of one base join one model, one after another."""

from typing import TYPE_CHECKING

from transship.doors import door

if TYPE_CHECKING:
    from transship.verbs.merge.fusion.api import Fusion
else:
    __getattr__, __dir__ = door(__name__)

__all__ = ["Fusion"]
