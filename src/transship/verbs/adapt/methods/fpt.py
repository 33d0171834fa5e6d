"""Only the norms of the body."""

from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.adapt.model.network import Part
from transship.verbs.adapt.train.problem import AdaptMethod


@dataclass(frozen=True, kw_only=True)
class NormTuning(AdaptMethod):
    """Train embedder, head and the norms of the body, whose other weights stay as they are."""

    paper: ClassVar[str] = 'Lu et al., "Pretrained Transformers as Universal Computation Engines" (2021)'
    trains: ClassVar[frozenset[Part]] = frozenset({"embedder", "norms", "head"})
