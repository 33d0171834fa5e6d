"""Moves an update tensor by tensor: every change is moved, or listed with the reason why not."""

import dataclasses
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from transship.activations import (
    Site,
    SitePair,
    read_bias,
    read_weight,
    write_bias,
    write_weight,
)
from transship.geometry import LinearMap, Moments
from transship.verbs.transport.maps import Maps
from transship.verbs.transport.plan import Plan
from transship.verbs.transport.protocol import (
    LayerPair,
    StaysError,
    TransportMethod,
    move_factors,
    move_matrix,
    move_vector,
)
from transship.verbs.transport.statistics import Statistics
from transship.verbs.transport.tables import Tables
from transship.verbs.transport.weights import Changes

Factors = tuple[Tensor, Tensor]
_NO_PARTNER = "the target has no partner for it"


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


@dataclass(frozen=True, eq=False)
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


def move(plan: Plan, statistics: Statistics, method: TransportMethod) -> Moved:
    """Return the update that a method makes for the target: every change is moved, or listed with the
    reason why not.
    """
    return Mover(plan, statistics, method).run()


class Mover:
    """One pass over the target's sites with one method."""

    def __init__(self, plan: Plan, statistics: Statistics, method: TransportMethod) -> None:
        self.source, self.update = plan.source.model, plan.update
        self.method, self.roles = method, plan.settings.roles
        self.changes = Changes(self.source, plan.target.model, self.update)
        self.matching = statistics.matching
        self.maps = Maps(statistics, method, plan.settings.seed)
        self.tables = Tables(plan, self.changes, self.maps)
        self.moved = Moved()
        self.used: set[str] = set()
        self.reasons: dict[str, str] = {}
        # (source site, whether its bias): a fused weight has several sites, which may fare differently
        self.moved_parts: set[tuple[str, bool]] = set()
        self.part_reasons: dict[tuple[str, bool], str] = {}

    def run(self) -> Moved:
        """Move everything and account for every change."""
        for pair in self.matching.pairs:
            self._pair(pair)
        self._factors()
        self._account()
        return self.moved

    def _pair(self, pair: SitePair) -> None:
        site = pair.target
        if site.kind == "block" or site.weight is None or site.tied_to is not None:
            return
        for _, parameter in (("weight", site.weight), ("bias", site.bias)):
            names = [] if parameter is None else self.changes.names(pair, parameter == site.bias)
            changed = [name for name in names if name in self.update]
            if not changed or parameter is None:
                continue
            parts = [(source.name, parameter == site.bias) for source, _ in pair.sources]
            try:
                moved = self._tensor(pair, vector=parameter == site.bias)
            except StaysError as reason:
                self.reasons.update(dict.fromkeys(changed, str(reason)))
                self.part_reasons.update(dict.fromkeys(parts, str(reason)))
                continue
            self.used.update(changed)
            self.moved_parts.update(parts)
            self._put(site, parameter, moved)
            self._plain_report(pair, parameter, moved)

    def _tensor(self, pair: SitePair, *, vector: bool) -> Tensor:
        """Return the moved change of a site's weight or bias; raise `StaysError` where it cannot be."""
        kind, role = pair.target.kind, pair.target.role
        if role == "head":
            return self.tables.head(pair, vector)
        if role.startswith("embedding.") or kind in ("embedding", "conv"):
            return self.tables.table(pair, vector)
        if kind in ("norm", "scale"):
            return self._norm(pair, vector)
        if kind == "parameter":
            return self.tables.number(pair)
        layer = self.maps.layer(pair, vector)
        change = self.changes.of(pair, vector)
        if vector:
            moved = self._vector(change, layer, pair)
        elif self.method.mapped is not None:
            maps = self.maps.map(pair, layer, "input"), self.maps.map(pair, layer, "output")
            moved = move_matrix(self.method.carried(change, layer), *maps)
        else:
            moved = self.method.transport(change, layer)
        self._report(pair, layer, change, moved, vector, vector)
        return moved

    def _norm(self, pair: SitePair, vector: bool) -> Tensor:
        if self.roles.norms == "keep":
            raise StaysError("norms are kept (roles)")
        layer = self.maps.layer(pair, True, gain=not vector)
        change = self.changes.of(pair, vector, flat=True)
        if not vector and self.roles.norms == "diagonal" and self.method.mapped is not None:
            matrix = self.maps.map(pair, layer, "output").matrix
            moved = (matrix.square().T @ self.method.carried(change, layer).double()).to(change.dtype)
        else:
            moved = self._vector(change, layer, pair)
        self._report(pair, layer, change, moved, True, vector)
        return moved

    def _vector(self, change: Tensor, layer: LayerPair, pair: SitePair) -> Tensor:
        if self.method.mapped is not None:
            return move_vector(self.method.carried(change, layer), self.maps.map(pair, layer, "output"))
        return self.method.transport_vector(change, layer)

    def _put(self, site: Site, parameter: str, moved: Tensor) -> None:
        shape = self.changes.parameters[parameter].shape
        if parameter not in self.moved.dense:
            self.moved.dense[parameter] = torch.zeros(shape, dtype=torch.float32)
        stored = self.moved.dense[parameter]
        if parameter == site.bias:
            write_bias(site, stored, moved.float())
        elif site.kind in ("linear", "conv"):
            write_weight(site, stored, moved.float())
        else:
            stored.copy_(moved.float().reshape(shape))

    def _report(
        self, pair: SitePair, layer: LayerPair, change: Tensor, moved: Tensor, vector: bool, bias: bool
    ) -> None:
        site = pair.target
        report = LayerReport(
            pair.name,
            (site.bias if bias else site.weight) or "",
            tuple(source.name for source, _ in pair.sources),
            float(change.double().norm()),
            float(moved.double().norm()),
        )
        if self.method.keeps_rank and not vector:
            input_map, output_map = self.maps.map(pair, layer, "input"), self.maps.map(pair, layer, "output")
            report = dataclasses.replace(
                report,
                rank_in=(input_map.rank, min(input_map.matrix.shape)),
                rank_out=(output_map.rank, min(output_map.matrix.shape)),
                residual_in=_residual_share(input_map, layer.inputs),
                residual_out=_residual_share(output_map, layer.outputs),
                energy_in=_energy(change, self.maps.observed(pair, layer)),
            )
        self.moved.layers.append(report)

    def _plain_report(self, pair: SitePair, parameter: str, moved: Tensor) -> None:
        """Report what has no two maps of its own: tables and heads."""
        if any(layer.tensor == parameter and layer.site == pair.name for layer in self.moved.layers):
            return
        vector = parameter == pair.target.bias
        before = float(self.changes.of(pair, vector, flat=True).double().norm())
        sources = tuple(site.name for site, _ in pair.sources)
        self.moved.layers.append(
            LayerReport(pair.name, parameter, sources, before, float(moved.double().norm()))
        )

    def _factors(self) -> None:
        """Move low-rank changes as factors where every part of a weight shares its input map."""
        if not self.method.keeps_rank:
            return
        groups: dict[str, list[SitePair]] = {}
        for pair in self.matching.pairs:
            if pair.target.kind == "linear" and pair.target.weight in self.moved.dense:
                groups.setdefault(pair.target.weight or "", []).append(pair)
        for parameter, pairs in groups.items():
            factors = self._moved_factors(pairs)
            if factors is not None:
                self.moved.factors[parameter] = factors

    def _moved_factors(self, pairs: list[SitePair]) -> Factors | None:
        """Return the stored orientation's factors of a weight whose parts are `pairs`, or None.

        Between two source blocks the factors of both stand side by side: the rank is the sum of theirs.
        """
        first = pairs[0]
        weights = [site.weight for site, _ in first.sources]
        if first.target.role == "head" or any(
            [site.weight for site, _ in pair.sources] != weights for pair in pairs
        ):
            return None
        stored = [self._stored_factors(site) for site, _ in first.sources]
        factors = [pair for pair in stored if pair is not None]
        if len(factors) < len(stored):
            return None
        down = torch.cat([lower for _, lower in factors])
        moved_down: Tensor | None = None
        moved_up = torch.zeros(sum(pair.target.out_width for pair in pairs), down.shape[0])
        for pair in pairs:
            try:
                layer = self.maps.layer(pair, False)
            except StaysError:
                return None
            parts = zip(pair.sources, factors, strict=True)
            up = torch.cat([weight * read_bias(site, upper) for (site, weight), (upper, _) in parts], 1)
            maps = self.maps.map(pair, layer, "input"), self.maps.map(pair, layer, "output")
            piece, lowered = move_factors(up, down, *maps)
            if moved_down is not None and not torch.equal(moved_down, lowered):
                return None  # the parts read different inputs, so they share no factor
            moved_down = lowered
            write_bias(pair.target, moved_up, piece.float())
        assert moved_down is not None
        return (
            (moved_down.T.float(), moved_up.T) if first.target.transposed else (moved_up, moved_down.float())
        )

    def _stored_factors(self, site: Site) -> Factors | None:
        """Return (up [out, rank], down [rank, in]) of a source site's weight."""
        if site.weight is None or site.weight not in self.update:
            return None
        stored = self.update.factors(site.weight)
        return (stored[1].T, stored[0].T) if stored is not None and site.transposed else stored

    def _account(self) -> None:
        """List every change that was not moved."""
        by_name: dict[str, Site] = {}
        for held in self.source.sites:
            for name in (held.weight, held.bias):
                if name is not None:
                    by_name.setdefault(name, held)
        unmatched = {
            name: left.reason
            for left in self.matching.unmatched
            if left.side == "source"
            for name in (left.site.weight, left.site.bias)
            if name is not None
        }
        for name, norm in self.update.changed(self.changes.source_shapes).items():
            if name in self.used:
                self._account_parts(name)
                continue
            site = by_name.get(name)
            if site is not None and site.tied_to in self.used:
                continue
            reason = self.reasons.get(name) or unmatched.get(name) or _NO_PARTNER
            self.moved.left.append(Left(name, site.role if site else "unknown", norm, reason))
        for name, reason in self.update.resized.items():
            site = by_name.get(name)
            self.moved.left.append(Left(name, site.role if site else "unknown", float("nan"), reason))
        for name in self.update.strays:
            self.moved.left.append(Left(name, "added", float("nan"), "only the fine-tune has it"))

    def _account_parts(self, name: str) -> None:
        """List the parts of a fused tensor that were not moved where others were."""
        lonely = {left.site.name: left.reason for left in self.matching.unmatched if left.side == "source"}
        for site in self.source.sites:
            vector = name == site.bias
            if site.part is None or site.tied_to is not None or name not in (site.weight, site.bias):
                continue
            if (site.name, vector) in self.moved_parts:
                continue
            change = self.update.dense(name)
            norm = float((read_bias(site, change) if vector else read_weight(site, change)).double().norm())
            reason = self.part_reasons.get((site.name, vector)) or lonely.get(site.name)
            if norm > 0:
                why = f"its part {site.role}: {reason or _NO_PARTNER}"
                self.moved.left.append(Left(name, site.role, norm, why))


def _residual_share(fitted: LinearMap, moments: Moments | None) -> float | None:
    """1 − ⟨T, C⟩ / (‖H_A‖‖H_B‖): 0 for a perfect alignment, 1 for none; scale does not count."""
    if moments is None or moments.ab is None or fitted.matrix.shape != moments.ab.shape:
        return None
    size = float((moments.square_a.sum() * moments.square_b.sum()).sqrt())
    return 1.0 - float((fitted.matrix * moments.ab).sum()) / size if size else None


def _energy(change: Tensor, input_map: LinearMap) -> float:
    """‖τ_A P‖² / ‖τ_A‖² with P the projection onto the directions that T_in carries (T Tᵀ of a partial
    isometry).
    """
    # a map of full rank into a space as wide carries everything
    if input_map.kind != "procrustes" or input_map.rank == input_map.width_source:
        return 1.0
    total = float(change.double().square().sum())
    carried = change @ input_map.matrix.to(change.dtype)
    return min(1.0, float(carried.double().square().sum()) / total) if total else 1.0
