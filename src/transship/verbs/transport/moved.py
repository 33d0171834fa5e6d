"""What a transport is made of: statistics in, moved tensors and an account of every change out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from transship.activations import Matching
from transship.activations.collected import CollectedMoments
from transship.geometry import Moments
from transship.verbs.transport.permutations import Axes, Orders

Factors = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Prepared:
    """What methods read beside the update.

    Attributes:
        matching: the pairs of sites.
        collected: activation Moments.
        gradients: (target site, source site) → Moments of output gradients.
        descent: −∂L/∂θ_B by parameter of the target.
        orders: permutations by group, with the groups of every site.
    """

    matching: Matching
    collected: CollectedMoments | None = None
    gradients: Mapping[tuple[str, str], Moments] = field(default_factory=dict)
    descent: Mapping[str, Tensor] = field(default_factory=dict)
    orders: tuple[Orders, Mapping[str, Axes]] | None = None


@dataclass(frozen=True)
class LayerReport:
    """One moved tensor.

    Attributes:
        site: the target's site.
        tensor: the target's parameter.
        sources: the source's sites.
        norm_before: ‖τ_A‖.
        norm_after: ‖τ_B‖.
        rank_in: observed rank of the input map, of its smaller width; None where there is none.
        rank_out: likewise for outputs.
        residual_in: share of the target's activations that the input map leaves unexplained.
        residual_out: likewise for outputs.
        energy_in: share of ‖τ_A‖² that lies in the observed input directions.
    """

    site: str
    tensor: str
    sources: tuple[str, ...]
    norm_before: float
    norm_after: float
    rank_in: tuple[int, int] | None = None
    rank_out: tuple[int, int] | None = None
    residual_in: float | None = None
    residual_out: float | None = None
    energy_in: float | None = None

    @property
    def kept(self) -> float:
        """‖τ_B‖ / ‖τ_A‖."""
        return self.norm_after / self.norm_before if self.norm_before else 1.0


@dataclass(frozen=True)
class Left:
    """A change that was not moved, and why."""

    tensor: str
    role: str
    norm: float
    reason: str


@dataclass(eq=False)
class Moved:
    """The target's update by parameter.

    Attributes:
        dense: τ_B.
        factors: (up, down) in the stored orientation, where the source's update came as factors and could
            stay so.
        layers: what was moved.
        left: what was not.
    """

    dense: dict[str, Tensor] = field(default_factory=dict)
    factors: dict[str, Factors] = field(default_factory=dict)
    layers: list[LayerReport] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)

    @property
    def norm_before(self) -> float:
        """‖τ_A‖ over all moved tensors."""
        return math.sqrt(sum(layer.norm_before**2 for layer in self.layers))

    @property
    def norm_after(self) -> float:
        """‖τ_B‖."""
        return math.sqrt(sum(float(change.double().square().sum()) for change in self.dense.values()))
