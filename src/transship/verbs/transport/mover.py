"""Moves an update tensor by tensor: every change is moved, or listed with the reason why not."""

import dataclasses

import torch
from torch import Tensor

from transship.activations import (
    LoadedModel,
    Site,
    SitePair,
    read_bias,
    read_weight,
    write_bias,
    write_weight,
)
from transship.geometry import LinearMap, Moments
from transship.verbs.transport.maps import Maps
from transship.verbs.transport.moved import Factors, LayerReport, Left, Moved, Prepared
from transship.verbs.transport.protocol import (
    LayerPair,
    MappedMethod,
    SidedMethod,
    TransportMethod,
    move,
    move_factors,
    move_vector,
)
from transship.verbs.transport.settings import Roles
from transship.verbs.transport.tables import Tables
from transship.verbs.transport.weights import Changes, SourceUpdate

_NO_PARTNER = "the target has no partner for it"


class Mover:
    """One pass over the target's sites with one method."""

    def __init__(
        self,
        source: LoadedModel,
        target: LoadedModel,
        update: SourceUpdate,
        prepared: Prepared,
        method: TransportMethod,
        *,
        roles: Roles,
        shares_outputs: bool,
        seed: int = 0,
    ) -> None:
        self.source, self.target, self.update, self.prepared = source, target, update, prepared
        self.method, self.roles = method, roles
        self.changes = Changes(source, target, update)
        self.maps = Maps(prepared, method, seed)
        self.tables = Tables(self.changes, self.maps, roles, shares_outputs)
        self.made = Moved()
        self.used: set[str] = set()
        self.reasons: dict[str, str] = {}
        # (source site, whether its bias): a fused weight has several sites, which may fare differently
        self.moved_parts: set[tuple[str, bool]] = set()
        self.part_reasons: dict[tuple[str, bool], str] = {}

    def run(self) -> Moved:
        """Move everything and account for every change."""
        for pair in self.prepared.matching.pairs:
            self._pair(pair)
        self._factors()
        self._account()
        return self.made

    def _pair(self, pair: SitePair) -> None:
        site = pair.target
        if site.kind == "block" or site.weight is None or site.tied_to is not None:
            return
        for _, parameter in (("weight", site.weight), ("bias", site.bias)):
            names = [] if parameter is None else self.changes.names(pair, parameter == site.bias)
            changed = [name for name in names if name in self.update]
            if not changed or parameter is None:
                continue
            moved = self._tensor(pair, vector=parameter == site.bias)
            parts = [(one.name, parameter == site.bias) for one, _ in pair.sources]
            if isinstance(moved, str):
                self.reasons.update(dict.fromkeys(changed, moved))
                self.part_reasons.update(dict.fromkeys(parts, moved))
                continue
            self.used.update(changed)
            self.moved_parts.update(parts)
            self._put(site, parameter, moved)
            self._plain_report(pair, parameter, moved)

    def _tensor(self, pair: SitePair, *, vector: bool) -> Tensor | str:
        """Return the moved change of a site's weight or bias, or the reason why it stays."""
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
        if isinstance(layer, str):
            return layer
        change = self.changes.of(pair, vector)
        if vector:
            moved = self._vector(change, layer, pair)
        elif isinstance(self.method, MappedMethod):
            maps = self.maps.map(pair, layer, "input"), self.maps.map(pair, layer, "output")
            moved = move(self.method.carried(change, layer), *maps)
        else:
            moved = self.method.transport(change, layer)
        self._report(pair, layer, change, moved, vector, vector)
        return moved

    def _norm(self, pair: SitePair, vector: bool) -> Tensor | str:
        if self.roles.norms == "keep":
            return "norms are kept (roles)"
        layer = self.maps.layer(pair, True, gain=not vector)
        if isinstance(layer, str):
            return layer
        change = self.changes.of(pair, vector, flat=True)
        if not vector and self.roles.norms == "diagonal" and isinstance(self.method, MappedMethod):
            matrix = self.maps.map(pair, layer, "output").matrix
            moved = (matrix.square().T @ self.method.carried(change, layer).double()).to(change.dtype)
        else:
            moved = self._vector(change, layer, pair)
        self._report(pair, layer, change, moved, True, vector)
        return moved

    def _vector(self, change: Tensor, layer: LayerPair, pair: SitePair) -> Tensor:
        if isinstance(self.method, MappedMethod):
            return move_vector(self.method.carried(change, layer), self.maps.map(pair, layer, "output"))
        return self.method.transport_vector(change, layer)

    def _put(self, site: Site, parameter: str, moved: Tensor) -> None:
        shape = self.changes.parameters[parameter].shape
        if parameter not in self.made.dense:
            self.made.dense[parameter] = torch.zeros(shape, dtype=torch.float32)
        stored = self.made.dense[parameter]
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
            tuple(one.name for one, _ in pair.sources),
            float(change.double().norm()),
            float(moved.double().norm()),
        )
        if isinstance(self.method, SidedMethod) and not vector:
            input_map, output_map = self.maps.map(pair, layer, "input"), self.maps.map(pair, layer, "output")
            report = dataclasses.replace(
                report,
                rank_in=(input_map.rank, min(input_map.matrix.shape)),
                rank_out=(output_map.rank, min(output_map.matrix.shape)),
                residual_in=_residual_share(input_map, layer.inputs),
                residual_out=_residual_share(output_map, layer.outputs),
                energy_in=_energy(change, self.maps.observed(pair, layer)),
            )
        self.made.layers.append(report)

    def _plain_report(self, pair: SitePair, parameter: str, moved: Tensor) -> None:
        """Report what has no two maps of its own: tables and heads."""
        if any(layer.tensor == parameter and layer.site == pair.name for layer in self.made.layers):
            return
        vector = parameter == pair.target.bias
        before = float(self.changes.of(pair, vector, flat=True).double().norm())
        sources = tuple(site.name for site, _ in pair.sources)
        self.made.layers.append(
            LayerReport(pair.name, parameter, sources, before, float(moved.double().norm()))
        )

    def _factors(self) -> None:
        """Move low-rank changes as factors where every part of a weight shares its input map."""
        if not isinstance(self.method, SidedMethod):
            return
        groups: dict[str, list[SitePair]] = {}
        for pair in self.prepared.matching.pairs:
            if pair.target.kind == "linear" and pair.target.weight in self.made.dense:
                groups.setdefault(pair.target.weight or "", []).append(pair)
        for parameter, pairs in groups.items():
            found = self._moved_factors(pairs)
            if found is not None:
                self.made.factors[parameter] = found

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
        if any(one is None for one in stored):
            return None
        found = [one for one in stored if one is not None]
        down = torch.cat([one[1] for one in found])
        moved_down: Tensor | None = None
        moved_up = torch.zeros(sum(pair.target.out_width for pair in pairs), down.shape[0])
        for pair in pairs:
            layer = self.maps.layer(pair, False)
            if isinstance(layer, str):
                return None
            parts = zip(pair.sources, found, strict=True)
            up = torch.cat([weight * read_bias(site, one[0]) for (site, weight), one in parts], 1)
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
        for site in self.source.sites:
            for name in (site.weight, site.bias):
                if name is not None:
                    by_name.setdefault(name, site)
        unmatched = {
            name: one.reason
            for one in self.prepared.matching.unmatched
            if one.side == "source"
            for name in (one.site.weight, one.site.bias)
            if name is not None
        }
        for name, norm in self.update.changed(self.changes.source_shapes).items():
            if name in self.used:
                self._account_parts(name)
                continue
            found = by_name.get(name)
            if found is not None and found.tied_to in self.used:
                continue
            reason = self.reasons.get(name) or unmatched.get(name) or _NO_PARTNER
            self.made.left.append(Left(name, found.role if found else "unknown", norm, reason))
        for name, reason in self.update.resized.items():
            found = by_name.get(name)
            self.made.left.append(Left(name, found.role if found else "unknown", float("nan"), reason))
        for name in self.update.strays:
            self.made.left.append(Left(name, "added", float("nan"), "only the fine-tune has it"))

    def _account_parts(self, name: str) -> None:
        """List the parts of a fused tensor that were not moved where others were."""
        lonely = {
            one.site.name: one.reason for one in self.prepared.matching.unmatched if one.side == "source"
        }
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
                self.made.left.append(Left(name, site.role, norm, why))


def _residual_share(found: LinearMap, moments: Moments | None) -> float | None:
    """1 − ⟨T, C⟩ / (‖H_A‖‖H_B‖): 0 for a perfect alignment, 1 for none; scale does not count."""
    if moments is None or moments.ab is None or found.matrix.shape != moments.ab.shape:
        return None
    size = float((moments.square_a.sum() * moments.square_b.sum()).sqrt())
    return 1.0 - float((found.matrix * moments.ab).sum()) / size if size else None


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
