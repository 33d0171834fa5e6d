"""Only a head."""

from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.adapt.model.network import Part
from transship.verbs.adapt.train.problem import AdaptMethod


@dataclass(frozen=True, kw_only=True)
class LinearProbe(AdaptMethod):
    """Train the head alone, on a random embedder and a body that stays as it is."""

    trains: ClassVar[frozenset[Part]] = frozenset({"head"})
