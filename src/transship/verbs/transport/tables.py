"""Tables and heads: rows by correspondence, columns by the map of the residual stream."""

import torch
from torch import Tensor

from transship.activations import SitePair
from transship.verbs.transport.changes import Changes
from transship.verbs.transport.embeddings import (
    attention_heads,
    head_mixing,
    patch_map,
    position_weights,
    vocabulary_rows,
)
from transship.verbs.transport.maps import Maps
from transship.verbs.transport.protocol import move, move_vector
from transship.verbs.transport.roles import Roles


class Tables:
    """Moves embeddings, positions, special tokens, patch kernels, relative biases and heads."""

    def __init__(self, changes: Changes, maps: Maps, roles: Roles, shares_outputs: bool) -> None:
        self.changes, self.maps, self.roles, self.shares_outputs = changes, maps, roles, shares_outputs
        self.source, self.target = changes.source, changes.target

    def head(self, pair: SitePair, vector: bool) -> Tensor | str:
        if self.roles.head == "keep":
            return "the head is kept (roles)"
        vocabulary = pair.target.out_width == getattr(self.target.config, "vocab_size", None) or (
            pair.source.out_width == getattr(self.source.config, "vocab_size", None)
        )
        change = self.changes.of(pair, vector)
        if vocabulary and not self.shares_outputs:
            rows = vocabulary_rows(self.source, self.target, pair.source.out_width, pair.target.out_width)
            if isinstance(rows, str):
                return rows
        elif not self.shares_outputs:
            return "the two heads speak of different outputs; `carry` fits a head for the target"
        else:
            rows = (torch.arange(change.shape[0]),) * 2
        moved = change.new_zeros(pair.target.out_width, *change.shape[1:])
        moved[rows[1]] = change[rows[0]]
        if vector:
            return moved
        space = self.maps.space(pair, "input")
        return space if isinstance(space, str) else (moved.double() @ space.matrix).to(change.dtype)

    def table(self, pair: SitePair, vector: bool) -> Tensor | str:
        """Embeddings, positions, special tokens, patch kernels: rows by correspondence, columns by the
        residual map.
        """
        site, role = pair.target, pair.target.role
        choice = _choice(role, self.roles)
        if choice == "keep":
            return f"{role} is kept (roles)"
        if role == "embedding.relative":
            return self._relative(pair)
        space = self.maps.residual(site.stack)
        if isinstance(space, str):
            return space
        change = self.changes.of(pair, vector, flat=True)
        if change.shape[-1] != space.width_source and site.kind != "conv":
            return f"its width {change.shape[-1]} is not that of the residual stream"
        if site.kind == "conv":
            if vector:
                return move_vector(change, space)
            kernels = (
                self.changes.source_shapes[pair.source.weight or ""][1:],
                tuple(self.changes.parameters[site.weight or ""].shape[1:]),
            )
            pixels = patch_map(*kernels)
            return pixels if isinstance(pixels, str) else move(change, pixels, space)
        rows = change.reshape(-1, change.shape[-1]).double() @ space.matrix
        shape = tuple(self.changes.parameters[site.weight or ""].shape)
        count = 1
        for size in shape[:-1]:
            count *= size
        if role == "embedding.token":
            pairs = vocabulary_rows(self.source, self.target, rows.shape[0], count)
            if isinstance(pairs, str):
                return pairs
            moved = rows.new_zeros(count, rows.shape[1])
            moved[pairs[1]] = rows[pairs[0]]
        elif role == "embedding.position":
            moved = position_weights(self.source, self.target, site.stack, rows.shape[0], count) @ rows
        else:
            shared = min(count, rows.shape[0])
            moved = rows.new_zeros(count, rows.shape[1])
            moved[:shared] = rows[:shared]
        return moved.reshape(shape).to(change.dtype)

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
        mixing = head_mixing(space, attention_heads(self.source), attention_heads(self.target))
        if mixing is None or change.shape[0] != shape[0]:
            return f"a table of {tuple(change.shape)} has no partner in {tuple(shape)}"
        return (change.double() @ mixing).to(change.dtype)


def _choice(role: str, roles: Roles) -> str:
    table = {
        "embedding.token": roles.tokens,
        "embedding.position": roles.positions,
        "embedding.type": roles.positions,
        "embedding.patch": roles.patches,
        "embedding.relative": roles.relative,
    }
    return table.get(role, roles.special)
