"""Naive fine-tuning."""

from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.adapt.train.problem import PAPER, AdaptMethod


@dataclass(frozen=True, kw_only=True)
class NaiveFineTuning(AdaptMethod):
    """Train a random embedder, the pretrained body and a new head together, with no stage 1."""

    paper: ClassVar[str] = PAPER
