"""The maps of a method, fitted once for all pairs of sites that share their Moments."""

from typing import Any

import torch
from torch import Tensor

from transship.activations import SitePair, read_bias, read_weight
from transship.activations.sites import Side
from transship.geometry import LinearMap, Moments
from transship.verbs.transport.permutations import Axes
from transship.verbs.transport.protocol import LayerPair, MappedMethod, StaysError, TransportMethod
from transship.verbs.transport.statistics import Statistics


class Maps:
    """What a method is handed for a pair of sites, and the maps that it makes of it."""

    def __init__(self, statistics: Statistics, method: TransportMethod, seed: int) -> None:
        self.statistics, self.method, self.seed = statistics, method, seed
        self._fitted: dict[Any, LinearMap] = {}
        self._units: tuple[Any, Moments | None] = (None, None)

    def layer(self, pair: SitePair, vector: bool, *, gain: bool = False) -> LayerPair:
        """Return what the method is handed for a pair; raise `StaysError` where it cannot be.

        A vector is the site's bias, unless it is the `gain` of a norm.
        """
        needs = self.method.needs
        site = pair.target
        inputs = outputs = gradients = None
        if needs.parts:
            if not vector:
                self._require(pair, "input")
            self._require(pair, "output")
            inputs = None if vector else self._seen(pair, "input")
            outputs = self._seen(pair, "output")
        if needs.gradients:
            gradients = self._gradient(pair)
        shape = (site.out_width,) if vector else (site.out_width, site.in_width)
        if needs.same_shape and any(
            (other.out_width, other.in_width) != (site.out_width, site.in_width) for other, _ in pair.sources
        ):
            raise StaysError(f"'{self.method.name}' moves between equal shapes only")
        descent = self.descent(pair, bias=vector and not gain)
        if descent is not None:
            descent = read_bias(site, descent) if vector else read_weight(site, descent)
        orders = self._orders(pair)
        if needs.permutations and orders[0 if vector else 1] is None and orders[0] is None:
            raise StaysError("its units belong to no group that can be permuted")
        # what is drawn is drawn by this name: the two vectors of a norm must not be drawn alike
        name = f"{pair.name}.gain" if gain else pair.name
        return LayerPair(
            name, shape, inputs, outputs, gradients, descent, orders[1], orders[0], seed=self.seed
        )

    def descent(self, pair: SitePair, *, bias: bool) -> Tensor | None:
        """Return −∂L/∂θ_B of a site's own bias or weight as it is stored; None for methods that do not read
        it.
        """
        if not self.method.needs.descent:
            return None
        parameter = pair.target.bias if bias else pair.target.weight
        if parameter is None or parameter not in self.statistics.descent:
            raise StaysError("the target's loss has no gradient here")
        return self.statistics.descent[parameter]

    def _orders(self, pair: SitePair) -> tuple[Tensor | None, Tensor | None]:
        """Return the (output, input) order of a pair; the identity where an axis is in no group."""
        if self.statistics.orders is None:
            return None, None
        orders, axes = self.statistics.orders
        groups = axes.get(pair.name, Axes(None, None))
        site = pair.target
        out = orders[groups.out] if groups.out in orders else torch.arange(site.out_width)
        into = orders[groups.into] if groups.into in orders else torch.arange(site.in_width)
        return out, into

    def map(self, pair: SitePair, layer: LayerPair, side: Side) -> LinearMap:
        """Return a map of a method, fitted once for all pairs that share their Moments."""
        method = self._mapped
        key = self._key(pair, layer, side)
        if key not in self._fitted:
            self._fitted[key] = method.input_map(layer) if side == "input" else method.output_map(layer)
        return self._fitted[key]

    def observed(self, pair: SitePair, layer: LayerPair) -> LinearMap:
        """Return the input map on the directions that the inputs showed alone."""
        whole = self.map(pair, layer, "input")
        if whole.full_rank or whole.kind != "procrustes":
            return whole
        key = ("observed", self._key(pair, layer, "input"))
        if key not in self._fitted:
            self._fitted[key] = self._mapped.observed_map(layer) or whole
        return self._fitted[key]

    @property
    def _mapped(self) -> MappedMethod:
        assert self.method.mapped is not None
        return self.method.mapped

    def _key(self, pair: SitePair, layer: LayerPair, side: Side) -> tuple[Any, ...]:
        """Return what is the same for all pairs that share a map."""
        collected = self.statistics.collected
        entry: Any = None if collected is None else collected.entries.get((pair.name, side))
        which = side if self._mapped.two_sided else "space"
        key: tuple[Any, ...] = (
            (which, entry)
            if entry is not None and self.method.needs.parts
            else (side, pair.name, len(layer.shape))
        )
        if self._reads_units(pair, side) and self._unit_moments(pair) is not None:
            key = ("units", pair.target.stack, pair.target.block)
        if side == "output" and layer.gradients is not None:
            key = (side, pair.name)
        return key

    def space(self, pair: SitePair, side: Side) -> LinearMap | None:
        """Return the method's map of what enters (or leaves) a pair, as a map of a space by activations; None
        where the method has no maps.
        """
        needs = self.method.needs
        if needs.parts:
            self._require(pair, side)
        width = pair.target.in_width if side == "input" else pair.target.out_width
        if needs.same_shape and any(
            (other.in_width if side == "input" else other.out_width) != width for other, _ in pair.sources
        ):
            raise StaysError(f"'{self.method.name}' moves between equal shapes only")
        out, into = self._orders(pair)
        order = into if side == "input" else out
        moments = self._moments(pair, side) if needs.parts else None
        # `inputs` of a layer as wide as the space: the map of an input is one of activations in every method
        layer = LayerPair(pair.name, (width, width), inputs=moments, input_order=order, seed=self.seed)
        if side == "input" and self.method.mapped is not None:
            return self.map(pair, layer, side)
        return self.method.space_map(layer)

    def stream(self, stack: str) -> SitePair:
        """Return the first blocks of a stack, which the residual stream enters."""
        for pair in self.statistics.matching.pairs:
            # a table that several stacks share stands in the first of them, the encoder's
            if pair.target.kind == "block" and pair.target.block == 0 and stack in ("", pair.target.stack):
                return pair
        raise StaysError("the model has no residual stream that enters a first block")

    def residual(self, pair: SitePair) -> LinearMap | None:
        """Return the map of the stream that enters a first block."""
        return self.space(pair, "input") if self.statistics.orders is None else self._permuted_residual(pair)

    def _permuted_residual(self, pair: SitePair) -> LinearMap | None:
        assert self.statistics.orders is not None
        orders, _ = self.statistics.orders
        stem = f"{pair.target.stack}.residual"
        order = orders.get(stem, orders.get(f"{stem}.0"))
        if order is None:
            raise StaysError("the residual stream was not matched")
        return self.method.space_map(LayerPair(pair.name, (len(order), len(order)), input_order=order))

    def _has(self, pair: SitePair, side: Side) -> bool:
        return self.statistics.collected is not None and self.statistics.collected.has(pair, side)

    def _require(self, pair: SitePair, side: Side) -> None:
        if self._has(pair, side):
            return
        collected = self.statistics.collected
        skipped = () if collected is None else collected.skipped
        reason = next((skip.reason for skip in skipped if (skip.pair, skip.side) == (pair.name, side)), None)
        raise StaysError(f"its {side} was not collected" + (f": {reason}" if reason else ""))

    def _moments(self, pair: SitePair, side: Side) -> Moments:
        assert self.statistics.collected is not None
        # between two source blocks, each block's Moments count alike
        return self.statistics.collected.of(pair, side, normalise=len(pair.sources) > 1)

    def _seen(self, pair: SitePair, side: Side) -> Moments:
        """Return the Moments that a side's map is made of."""
        units = self._unit_moments(pair) if self._reads_units(pair, side) else None
        return self._moments(pair, side) if units is None else units

    def _reads_units(self, pair: SitePair, side: Side) -> bool:
        """Whether this side of a pair is an MLP's units, which have one map before and behind the
        activation.
        """
        if not self.method.needs.hidden:
            return False
        role = pair.target.role
        return role == "mlp.out" if side == "input" else role in ("mlp.in", "mlp.gate")

    def _unit_moments(self, pair: SitePair) -> Moments | None:
        """Return the Moments of an MLP's units: before the activation (and the gate) plus behind it.

        An expansion W x has the rank of x, its units have not: without what they say behind the activation,
        half of what the first layer learned would lie in directions that its own outputs never show. Every
        part is scaled to ‖ab‖ = 1. None where the block has no such pair of layers.
        """
        place = pair.target.stack, pair.target.block
        if self._units[0] != place:
            self._units = place, self._collect_units(place)
        return self._units[1]

    def _collect_units(self, place: tuple[str, int | None]) -> Moments | None:
        share = self.method.needs.hidden
        total: Moments | None = None
        behind = False
        for pair in self.statistics.matching.pairs:
            site = pair.target
            if (site.stack, site.block) != place or site.role not in ("mlp.in", "mlp.gate", "mlp.out"):
                continue
            side: Side = "input" if site.role == "mlp.out" else "output"
            if not self._has(pair, side):
                continue
            part = self._moments(pair, side)
            weight = (share if side == "input" else 1.0) / max(float(part.part("ab").norm()), 1e-300)
            if total is not None and (part.width_a, part.width_b) != (total.width_a, total.width_b):
                return None
            total = part.scaled(weight) if total is None else total.__iadd__(part.scaled(weight))
            behind = behind or side == "input"
        return total if behind else None

    def _gradient(self, pair: SitePair) -> Moments:
        total: Moments | None = None
        for site, weight in pair.sources:
            part = self.statistics.gradients.get((pair.name, site.name))
            if part is None:
                raise StaysError("it takes no part in the loss, so there is no gradient to align")
            if len(pair.sources) > 1:
                part = part.scaled(weight / max(float(part.part("ab").norm()), 1e-300))
            total = part if total is None else total + part
        assert total is not None
        return total
