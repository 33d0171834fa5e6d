"""The body left as it is."""

from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.adapt.model.network import Part
from transship.verbs.adapt.train.problem import AdaptMethod


@dataclass(frozen=True, kw_only=True)
class Frozen(AdaptMethod):
    """Train embedder and head around a body that stays as it is."""

    trains: ClassVar[frozenset[Part]] = frozenset({"embedder", "head"})
