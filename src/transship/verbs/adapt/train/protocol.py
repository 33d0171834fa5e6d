"""What a method of `adapt` is: which parts learn, what stage 1 does, and what stage 2 minimises."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from transship.errors import OptionError
from transship.registry import Method
from transship.verbs.adapt.model.network import Part
from transship.verbs.adapt.train.objectives import Objective, TargetLoss

# what a parameter may be, by the end of its name: the least, whether that itself is allowed, the most
_RANGES: dict[str, tuple[float, bool, float]] = {
    "steps": (0, True, math.inf),
    "batch": (1, True, math.inf),
    "items": (1, True, math.inf),
    "per_class": (1, True, math.inf),
    "rate": (0, False, math.inf),
    "temperature": (0, False, math.inf),
    "share": (0, True, 1),
    "weight": (0, True, math.inf),
    "keep": (0, True, math.inf),
}
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
        steps: optimiser steps; a phase of none is left out.
        rate: Adam's learning rate.
        batch: rows per step; fewer where there are fewer, and None for all of them.
        objective: what is minimised.
        trains: which parts learn.
        shared: whether several processes share a batch; otherwise each takes the whole of it.
        select: keep the embedder on which a held-out probe errs least, or that from before the phase when
            FLD does not fall or the probe gets worse.
    """

    name: str
    steps: int
    rate: float
    batch: int | None
    objective: Objective
    trains: frozenset[Part] = frozenset({"embedder"})
    shared: bool = True
    select: bool = False


@dataclass(frozen=True, kw_only=True)
class AdaptMethod(Method):
    """A way to adapt: phases of stage 1 (none by default), then stage 2 on the target loss."""

    # whether labelled data of the backbone's own modality is needed
    needs_source: ClassVar[bool] = False
    # whether ω decides anything: as the weight of FA, or through the recalibrated head
    uses_omega: ClassVar[bool] = False
    # whether the body starts from its pretrained weights
    pretrained: ClassVar[bool] = True
    # what learns in stage 2
    trains: ClassVar[frozenset[Part]] = ALL

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be, before anything is read."""
        for one in dataclasses.fields(self):
            value: Any = getattr(self, one.name)
            limits = next((found for end, found in _RANGES.items() if one.name.endswith(end)), None)
            if limits is not None and value is not None:
                _check_range(one.name, float(value), *limits)

    def phases(self) -> Sequence[Phase]:
        """Return stage 1."""
        return ()

    def objective(self) -> Objective:
        """Return what stage 2 minimises."""
        return TargetLoss()


def _check_range(name: str, value: float, least: float, allowed: bool, most: float) -> None:
    if value < math.inf and (least <= value if allowed else least < value) and value <= most:
        return
    bounds = f"from {least:g}" if allowed else f"above {least:g}"
    bounds += f" to {most:g}" if most < math.inf else ""
    raise OptionError(f"it is {value:g}", where=name, fix=f"give a number {bounds}")
