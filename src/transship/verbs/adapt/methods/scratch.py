"""The same network from random weights."""

from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.adapt.train.problem import AdaptMethod


@dataclass(frozen=True, kw_only=True)
class Scratch(AdaptMethod):
    """Train the same network from random weights.

    What the pretrained body is worth is measured against it.
    """

    pretrained: ClassVar[bool] = False
