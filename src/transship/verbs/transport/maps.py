"""The maps of a method, fitted once for all pairs of sites that share their Moments."""

from typing import Any

import torch
from torch import Tensor

from transship.activations import SitePair, read_bias, read_weight
from transship.activations.record import Side
from transship.geometry import LinearMap, Moments
from transship.verbs.transport.moved import Prepared
from transship.verbs.transport.protocol import LayerPair, SidedMethod, TransportMethod
from transship.verbs.transport.rebasin import Axes


class Maps:
    """What a method is handed for a pair of sites, and the maps that it makes of it."""

    def __init__(self, prepared: Prepared, method: TransportMethod, seed: int) -> None:
        self.prepared, self.method, self.seed = prepared, method, seed
        self._made: dict[Any, LinearMap] = {}

    def layer(self, pair: SitePair, vector: bool) -> LayerPair | str:
        """Return what the method is handed for a pair, or the reason why it cannot be."""
        needs = self.method.requirements
        site = pair.target
        inputs = outputs = gradients = None
        if needs.parts:
            if not vector and not self._has(pair, "input"):
                return self._missing(pair, "input")
            if not self._has(pair, "output"):
                return self._missing(pair, "output")
            inputs = None if vector else self._moments(pair, "input")
            outputs = self._with_hidden(pair, self._moments(pair, "output"))
        if needs.gradients:
            gradients = self._gradient(pair)
            if gradients is None:
                return "it takes no part in the loss, so there is no gradient to align"
        parameter = site.bias if vector and site.kind not in ("norm", "scale") else site.weight
        shape = (site.out_width,) if vector else (site.out_width, site.in_width)
        if needs.same_shape and any(
            (one.out_width, one.in_width) != (site.out_width, site.in_width) for one, _ in pair.sources
        ):
            return f"'{self.method.name}' moves between equal shapes only"
        descent = self.prepared.descent.get(parameter or "")
        if needs.descent:
            if descent is None:
                return "the target's loss has no gradient here"
            descent = read_bias(site, descent) if vector else read_weight(site, descent)
        orders = self._orders(pair)
        if needs.permutations and orders[0 if vector else 1] is None and orders[0] is None:
            return "its units belong to no group that can be permuted"
        return LayerPair(
            pair.name, shape, inputs, outputs, gradients, descent, orders[1], orders[0], seed=self.seed
        )

    def _orders(self, pair: SitePair) -> tuple[Tensor | None, Tensor | None]:
        """Return the (output, input) order of a pair; the identity where an axis is in no group."""
        if self.prepared.orders is None:
            return None, None
        orders, axes = self.prepared.orders
        found = axes.get(pair.name, Axes(None, None))
        site = pair.target
        out = orders[found.out] if found.out in orders else torch.arange(site.out_width)
        into = orders[found.into] if found.into in orders else torch.arange(site.in_width)
        return out, into

    def map(self, pair: SitePair, layer: LayerPair, side: Side) -> LinearMap:
        """Return a map of a sided method, fitted once for all pairs that share their Moments."""
        assert isinstance(self.method, SidedMethod)
        collected = self.prepared.collected
        entry: Any = None if collected is None else collected.entries.get((pair.name, side))
        key = (
            (side, entry)
            if entry is not None and self.method.requirements.parts
            else (side, pair.name, len(layer.shape))
        )
        if side == "output" and layer.gradients is not None:
            key = (*key, pair.name)
        if key not in self._made:
            made = self.method.input_map(layer) if side == "input" else self.method.output_map(layer)
            self._made[key] = made
        return self._made[key]

    def space(self, pair: SitePair, side: Side) -> LinearMap | str:
        """Return the method's map of what enters (or leaves) a pair, as a map of a space by activations."""
        if not isinstance(self.method, SidedMethod):
            return f"'{self.method.name}' moves linear maps only"
        needs = self.method.requirements
        if needs.parts and not self._has(pair, side):
            return self._missing(pair, side)
        width = pair.target.in_width if side == "input" else pair.target.out_width
        if needs.same_shape and any(
            (one.in_width if side == "input" else one.out_width) != width for one, _ in pair.sources
        ):
            return f"'{self.method.name}' moves between equal shapes only"
        out, into = self._orders(pair)
        order = into if side == "input" else out
        moments = self._moments(pair, side) if needs.parts else None
        # `inputs` of a layer as wide as the space: the map of an input is one of activations in every method
        layer = LayerPair(pair.name, (width, width), inputs=moments, input_order=order, seed=self.seed)
        return self.map(pair, layer, side) if side == "input" else self.method.input_map(layer)

    def residual(self, stack: str) -> LinearMap | str:
        """Return the map of the stream that enters the first block."""
        for pair in self.prepared.matching.pairs:
            # a table that several stacks share stands in the first of them, the encoder's
            if pair.target.kind == "block" and pair.target.block == 0 and stack in ("", pair.target.stack):
                if self.prepared.orders is not None:
                    return self._permuted_residual(pair)
                return self.space(pair, "input")
        return "the model has no residual stream that enters a first block"

    def _permuted_residual(self, pair: SitePair) -> LinearMap | str:
        assert self.prepared.orders is not None
        assert isinstance(self.method, SidedMethod)
        orders, _ = self.prepared.orders
        stem = f"{pair.target.stack}.residual"
        order = orders.get(stem, orders.get(f"{stem}.0"))
        if order is None:
            return "the residual stream was not matched"
        return self.method.input_map(LayerPair(pair.name, (len(order), len(order)), input_order=order))

    def _has(self, pair: SitePair, side: Side) -> bool:
        return self.prepared.collected is not None and self.prepared.collected.has(pair, side)

    def _missing(self, pair: SitePair, side: Side) -> str:
        collected = self.prepared.collected
        skipped = () if collected is None else collected.skipped
        reason = next((one.reason for one in skipped if (one.pair, one.side) == (pair.name, side)), None)
        return f"its {side} was not collected" + (f": {reason}" if reason else "")

    def _moments(self, pair: SitePair, side: Side) -> Moments:
        assert self.prepared.collected is not None
        # between two source blocks, each block's Moments count alike
        return self.prepared.collected.of(pair, side, normalise=len(pair.sources) > 1)

    def _with_hidden(self, pair: SitePair, outputs: Moments) -> Moments:
        """Add what the same units say behind the activation: an expansion W x has the rank of x, its units
        have not.

        Both are scaled to ‖ab‖ = 1. Without this, half of what an MLP's first layer learned would lie in
        directions that its own outputs never show.
        """
        share = self.method.requirements.hidden
        if not share or pair.target.role not in ("mlp.in", "mlp.gate"):
            return outputs
        there = self._behind(pair)
        if there is None or not self._has(there, "input"):
            return outputs
        hidden = self._moments(there, "input")
        if (hidden.width_a, hidden.width_b) != (outputs.width_a, outputs.width_b):
            return outputs
        sizes = [max(float(one.part("ab").norm()), 1e-300) for one in (outputs, hidden)]
        return outputs.scaled(1.0 / sizes[0]) + hidden.scaled(share / sizes[1])

    def _behind(self, pair: SitePair) -> SitePair | None:
        """Return the pair that reads the units which `pair` makes."""
        place = pair.target.stack, pair.target.block
        return next(
            (
                one
                for one in self.prepared.matching.pairs
                if (one.target.stack, one.target.block) == place and one.target.role == "mlp.out"
            ),
            None,
        )

    def _gradient(self, pair: SitePair) -> Moments | None:
        made: Moments | None = None
        for site, weight in pair.sources:
            one = self.prepared.gradients.get((pair.name, site.name))
            if one is None:
                return None
            if len(pair.sources) > 1:
                one = one.scaled(weight / max(float(one.part("ab").norm()), 1e-300))
            made = one if made is None else made + one
        return made
