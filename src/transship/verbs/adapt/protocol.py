"""What a method of `adapt` is: which parts learn, what stage 1 does, and what stage 2 minimises."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from transship.registry import Method
from transship.verbs.adapt.network import Part
from transship.verbs.adapt.objectives import Objective, TargetLoss

ALL: frozenset[Part] = frozenset({"embedder", "body", "head"})
PAPER = (
    'Tran et al., "Rethinking Cross-Modal Fine-Tuning: Optimizing the Interaction between Feature Alignment '
    'and Target Fitting" (AISTATS 2026)'
)


@dataclass(frozen=True, eq=False)
class Phase:
    """A stretch of stage 1.

    Attributes:
        name: as logs call it.
        steps: optimiser steps.
        rate: Adam's learning rate.
        batch: rows per step; fewer where there are fewer.
        objective: what is minimised.
        trains: which parts learn.
        shared: whether several processes share a batch; otherwise each takes the whole of it.
        select: keep the embedder on which a held-out probe errs least, or that from before the phase when
            FLD does not fall or the probe gets worse.
    """

    name: str
    steps: int
    rate: float
    batch: int
    objective: Objective
    trains: frozenset[Part] = frozenset({"embedder"})
    shared: bool = True
    select: bool = False


@dataclass(frozen=True, kw_only=True)
class AdaptMethod(Method):
    """A way to adapt: phases of stage 1 (none by default), then stage 2 on the target loss."""

    # whether labelled data of the backbone's own modality is needed
    needs_source: ClassVar[bool] = False
    # whether the body starts from its pretrained weights
    pretrained: ClassVar[bool] = True
    # what learns in stage 2
    trains: ClassVar[frozenset[Part]] = ALL

    def phases(self) -> Sequence[Phase]:
        """Return stage 1."""
        return ()

    def objective(self) -> Objective:
        """Return what stage 2 minimises."""
        return TargetLoss()
