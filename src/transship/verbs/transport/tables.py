"""Tables and heads: rows by correspondence, columns by the map of the residual stream.

Every method moves them: through its own map of the space that the rows lie in, or, where it has none, by an
update of the target's shape.
"""

import math

import torch
from torch import Tensor

from transship.activations import SitePair, read_bias, read_weight
from transship.geometry import LinearMap
from transship.verbs.transport.changes import Changes
from transship.verbs.transport.embeddings import (
    Rows,
    attention_heads,
    head_mixing,
    patch_map,
    position_weights,
    vocabulary_rows,
)
from transship.verbs.transport.maps import Maps
from transship.verbs.transport.protocol import LayerPair
from transship.verbs.transport.roles import Roles


class Tables:
    """Moves embeddings, positions, special tokens, patch kernels, relative biases and heads."""

    def __init__(self, changes: Changes, maps: Maps, roles: Roles, shares_outputs: bool) -> None:
        self.changes, self.maps, self.roles, self.shares_outputs = changes, maps, roles, shares_outputs
        self.source, self.target = changes.source, changes.target
        self.method = maps.method

    def head(self, pair: SitePair, vector: bool) -> Tensor | str:
        """A head's weight or bias: outputs by correspondence, inputs by the map of its features."""
        if self.roles.head == "keep":
            return "the head is kept (roles)"
        change = self.changes.of(pair, vector)
        rows = self._outputs(pair, change.shape[0])
        if isinstance(rows, str):
            return rows
        descent = self.maps.descent(pair, bias=vector)
        if isinstance(descent, str):
            return descent
        site = pair.target
        if vector:
            down = None if descent is None else read_bias(site, descent)
            return self._numbers(pair, change[rows[0]], rows[1], (site.out_width,), down)
        space = self.maps.space(pair, "input")
        if isinstance(space, str):
            return space
        down = None if descent is None else read_weight(site, descent)
        return self._rows(pair, change[rows[0]], rows[1], (site.out_width, site.in_width), space, down)

    def number(self, pair: SitePair) -> Tensor | str:
        """A parameter of one element, such as a scale of logits: it has no direction to turn."""
        change = self.changes.of(pair, False)
        shape = self.changes.parameters[pair.target.weight or ""].shape
        if change.numel() != 1 or change.shape != shape:
            return "it is no linear map and no known role"
        descent = self.maps.descent(pair, bias=False)
        if isinstance(descent, str):
            return descent
        down = None if descent is None else descent.reshape(1)
        return self._numbers(pair, change.reshape(1), torch.zeros(1, dtype=torch.long), (1,), down)

    def table(self, pair: SitePair, vector: bool) -> Tensor | str:
        """Embeddings, positions, special tokens, patch kernels: rows by correspondence, columns by the
        residual map.
        """
        site, role = pair.target, pair.target.role
        if _choice(role, self.roles) == "keep":
            return f"{role} is kept (roles)"
        if role == "embedding.relative":
            return self._relative(pair)
        stream = self.maps.stream(site.stack)
        if stream is None:
            return "the model has no residual stream that enters a first block"
        space = self.maps.residual(stream)
        if isinstance(space, str):
            return space
        if site.kind == "conv":
            return self._patches(pair, vector, space)
        change = self.changes.of(pair, vector, flat=True)
        width = stream.source.in_width if space is None else space.width_source
        if change.shape[-1] != width:
            return f"its width {change.shape[-1]} is not that of the residual stream"
        shape = tuple(self.changes.parameters[site.weight or ""].shape)
        flat = math.prod(shape[:-1]), shape[-1]
        found = self._entries(pair, change.reshape(-1, width), flat[0])
        descent = self.maps.descent(pair, bias=False)
        if isinstance(found, str) or isinstance(descent, str):
            return found if isinstance(found, str) else str(descent)
        down = None if descent is None else descent.reshape(flat)
        return self._rows(pair, *found, flat, space, down).reshape(shape)

    def _outputs(self, pair: SitePair, count: int) -> Rows | str:
        """Return which outputs of the two heads are the same: all of them, or those of shared strings."""
        widths = pair.source.out_width, pair.target.out_width
        sizes = [getattr(model.config, "vocab_size", None) for model in (self.source, self.target)]
        if self.shares_outputs:
            return torch.arange(count), torch.arange(count)
        if widths[0] == sizes[0] or widths[1] == sizes[1]:
            return vocabulary_rows(self.source, self.target, *widths)
        return "the two heads speak of different outputs; `carry` fits a head for the target"

    def _entries(self, pair: SitePair, change: Tensor, count: int) -> tuple[Tensor, Tensor] | str:
        """Return the changes that have a place in a table of `count` rows, and their places."""
        role, site = pair.target.role, pair.target
        if role == "embedding.token":
            rows = vocabulary_rows(self.source, self.target, change.shape[0], count)
            return rows if isinstance(rows, str) else (change[rows[0]], rows[1])
        if role == "embedding.position":
            weights = position_weights(self.source, self.target, site.stack, change.shape[0], count)
            places = weights.abs().sum(1).nonzero()[:, 0]
            return (weights[places] @ change.double()).to(change.dtype), places
        shared = min(count, change.shape[0])
        return change[:shared], torch.arange(shared)

    def _patches(self, pair: SitePair, vector: bool, space: LinearMap | None) -> Tensor | str:
        """A patch embedding: pixels resampled, what they make turned with the residual stream."""
        site = pair.target
        change = self.changes.of(pair, vector, flat=True)
        descent = self.maps.descent(pair, bias=vector)
        if isinstance(descent, str):
            return descent
        if vector:
            rows, down = change[None], None if descent is None else descent[None]
        else:
            kernels = (
                self.changes.source_shapes[pair.source.weight or ""][1:],
                tuple(self.changes.parameters[site.weight or ""].shape[1:]),
            )
            pixels = patch_map(*kernels)
            if isinstance(pixels, str):
                return pixels
            rows = (change.double() @ pixels.matrix).T.to(change.dtype)
            down = None if descent is None else read_weight(site, descent).T
        shape = rows.shape[0], site.out_width
        moved = self._rows(pair, rows, torch.arange(shape[0]), shape, space, down, bias=vector)
        return moved[0] if vector else moved.T

    def _relative(self, pair: SitePair) -> Tensor | str:
        change = self.changes.of(pair, False, flat=True)
        shape = self.changes.parameters[pair.target.weight or ""].shape
        query = next(
            (
                one
                for one in self.maps.prepared.matching.pairs
                if (one.target.stack, one.target.block, one.target.role)
                == (pair.target.stack, pair.target.block, "attention.query")
            ),
            None,
        )
        space = "the block has no query" if query is None else self.maps.space(query, "output")
        if isinstance(space, str):
            return space
        mixing = None
        if space is not None:
            mixing = head_mixing(space, attention_heads(self.source), attention_heads(self.target))
        if (space is not None and mixing is None) or change.shape[0] != shape[0]:
            return f"a table of {tuple(change.shape)} has no partner in {tuple(shape)}"
        descent = self.maps.descent(pair, bias=False)
        if isinstance(descent, str):
            return descent
        turn = None if mixing is None else LinearMap(mixing, kind="heads", rank=min(mixing.shape))
        return self._rows(pair, change, torch.arange(shape[0]), (shape[0], shape[1]), turn, descent)

    def _rows(
        self,
        pair: SitePair,
        rows: Tensor,
        places: Tensor,
        shape: tuple[int, int],
        space: LinearMap | None,
        descent: Tensor | None,
        *,
        bias: bool = False,
    ) -> Tensor:
        """Return a table of `shape` with the moved rows at their places; `descent` is of that shape too."""
        layer = LayerPair(
            f"{pair.name}.bias" if bias else pair.name,
            (len(places), shape[1]),
            descent=None if descent is None else descent[places],
            seed=self.maps.seed,
        )
        if space is None:
            moved = self.method.transport(rows, layer)
        else:
            turned = self.method.carried(rows, layer).double() @ space.matrix
            moved = self.method.settled(turned.to(rows.dtype), layer)
        made = rows.new_zeros(shape)
        made[places] = moved
        return made

    def _numbers(
        self,
        pair: SitePair,
        change: Tensor,
        places: Tensor,
        shape: tuple[int],
        descent: Tensor | None,
    ) -> Tensor:
        """Return a vector of `shape` with numbers that stand for numbers at their places."""
        down = None if descent is None else descent[places]
        layer = LayerPair(pair.name, (len(places),), descent=down, seed=self.maps.seed)
        made = change.new_zeros(shape)
        made[places] = self.method.settled(self.method.carried(change, layer), layer)
        return made


def _choice(role: str, roles: Roles) -> str:
    table = {
        "embedding.token": roles.tokens,
        "embedding.position": roles.positions,
        "embedding.type": roles.positions,
        "embedding.patch": roles.patches,
        "embedding.relative": roles.relative,
    }
    return table.get(role, roles.special)
