"""Tables and heads: rows by correspondence, columns by the map of the residual stream.

Every method moves them: through its own map of the space that the rows lie in, or, where it has none, by an
update of the target's shape.
"""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transship.activations import LoadedModel, Readout, SitePair, read_bias, read_weight
from transship.activations.tokens import grid_weights, resample_weights
from transship.geometry import LinearMap
from transship.verbs.transport.maps import Maps
from transship.verbs.transport.permutations import attention_heads
from transship.verbs.transport.plan import Plan
from transship.verbs.transport.protocol import LayerPair, StaysError
from transship.verbs.transport.settings import Roles
from transship.verbs.transport.weights import Changes

# families whose position table starts behind the padding index
_SHIFTED_POSITIONS = frozenset(
    {"roberta", "xlm-roberta", "camembert", "mpnet", "data2vec-text", "longformer"}
)

Rows = tuple[Int[Tensor, " shared"], Int[Tensor, " shared"]]


def vocabulary_rows(source: LoadedModel, target: LoadedModel, size_a: int, size_b: int) -> Rows:
    """Return (rows of the source, rows of the target) of the strings that both vocabularies have.

    Marks of word starts and continuations (`Ġ`, `▁`, `##`) are read alike. Two models without tokenizers that
    have tables of one size are taken to share the order.
    """
    tables: list[dict[str, int]] = [
        getattr(model.tokenizer, "get_vocab", dict)() if model.tokenizer is not None else {}
        for model in (source, target)
    ]
    if not all(tables):
        if size_a == size_b:
            rows = torch.arange(size_a)
            return rows, rows
        raise StaysError(f"no tokenizer says which of {size_a} and {size_b} rows correspond")
    words_a, words_b = (_canonical(table, size) for table, size in zip(tables, (size_a, size_b), strict=True))
    shared = [word for word in words_b if word in words_a]
    if not shared:
        raise StaysError("the two vocabularies share no string")
    return torch.tensor([words_a[word] for word in shared]), torch.tensor([words_b[word] for word in shared])


def _canonical(vocabulary: dict[str, int], size: int) -> dict[tuple[bool, str], int]:
    """Return (starts a word, text) → row; one row per string, the first of equals."""
    mark = next((sign for sign in ("Ġ", "▁") if any(word.startswith(sign) for word in vocabulary)), None)
    pieces = any(word.startswith("##") for word in vocabulary)
    rows: dict[tuple[bool, str], int] = {}
    for word, row in sorted(vocabulary.items(), key=lambda item: item[1]):
        if row >= size:
            continue
        if mark is not None:
            key = (word.startswith(mark), word.removeprefix(mark))
        elif pieces:
            key = (not word.startswith("##"), word.removeprefix("##"))
        else:
            key = (True, word)
        rows.setdefault(key, row)
    return rows


def position_weights(
    source: LoadedModel, target: LoadedModel, stack: str, rows_a: int, rows_b: int
) -> Float[Tensor, "rows_b rows_a"]:
    """Return the matrix that takes the source's position table to the target's.

    Patch grids are resampled bilinearly, specials pass 1:1. Text positions stand for themselves; those beyond
    the source's last have no partner and get zero.
    """
    if stack == "vision":
        grids = _grid(source, rows_a), _grid(target, rows_b)
        if grids[0] is not None and grids[1] is not None:
            (grid_a, front_a), (grid_b, front_b) = grids[0], grids[1]
            weights = torch.zeros(rows_b, rows_a, dtype=torch.float64)
            for special in range(min(front_a, front_b)):
                weights[special, special] = 1.0
            weights[front_b:, front_a:] = torch.from_numpy(grid_weights(grid_a, grid_b))
            return weights
        return torch.from_numpy(resample_weights(rows_a, rows_b))
    first_a, first_b = _first_position(source), _first_position(target)
    weights = torch.zeros(rows_b, rows_a, dtype=torch.float64)
    for place in range(min(rows_a - first_a, rows_b - first_b)):
        weights[first_b + place, first_a + place] = 1.0
    return weights


def patch_map(kernel_a: tuple[int, ...], kernel_b: tuple[int, ...]) -> LinearMap:
    """Return T_in (c·p_a² × c·p_b²) for patch kernels (channels, height, width).

    With R the bilinear resize of a patch, ⟨w_B, R x⟩ = ⟨w_A, x⟩ has the least-squares solution w_B = (Rᵀ)⁺
    w_A.
    """
    if kernel_a[0] != kernel_b[0] or len(kernel_a) != 3:
        raise StaysError(f"patches of {kernel_a[0]} and {kernel_b[0]} channels")
    if kernel_a == kernel_b:
        width = int(torch.tensor(kernel_a).prod())
        return LinearMap(torch.eye(width, dtype=torch.float64), kind="identity", rank=width)
    resize = torch.from_numpy(grid_weights((kernel_a[1], kernel_a[2]), (kernel_b[1], kernel_b[2])))
    channel = torch.linalg.pinv(resize)  # (p_a² × p_b²): rows w_A channel = w_B
    matrix = torch.kron(torch.eye(kernel_a[0], dtype=torch.float64), channel)
    return LinearMap(matrix, kind="resample", rank=min(matrix.shape))


def head_mixing(query: LinearMap, heads_a: int, heads_b: int) -> Float[Tensor, "heads_a heads_b"] | None:
    """Return how much of each target head the query map makes from each source head; a permutation for twins.

    M_ij = ‖T_ij‖² / head width over the blocks T_ij of T: rows sum to 1 where all of a head is carried.
    """
    rows, columns = query.matrix.shape
    if not heads_a or not heads_b or rows % heads_a or columns % heads_b:
        return None
    blocks = query.matrix.reshape(heads_a, rows // heads_a, heads_b, columns // heads_b)
    return blocks.square().sum((1, 3)) / (rows // heads_a)


def _first_position(model: LoadedModel) -> int:
    if getattr(model.config, "model_type", "") in _SHIFTED_POSITIONS:
        return int(getattr(model.config, "pad_token_id", 1) or 0) + 1
    return 0


def _grid(model: LoadedModel, rows: int) -> tuple[tuple[int, int], int] | None:
    """Return ((height, width), specials in front) of a position table."""
    vision: Any = getattr(model.config, "vision_config", None) or model.config
    size, patch = getattr(vision, "image_size", None), getattr(vision, "patch_size", None)
    if size is None or patch is None:
        return None
    sizes = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    patches = (patch, patch) if isinstance(patch, int) else tuple(patch)[-2:]
    grid = (sizes[0] // patches[0], sizes[1] // patches[1])
    front = rows - grid[0] * grid[1]
    return (grid, front) if front >= 0 else None


class Tables:
    """Moves embeddings, positions, special tokens, patch kernels, relative biases and heads."""

    def __init__(self, plan: Plan, changes: Changes, maps: Maps) -> None:
        self.changes, self.maps, self.roles = changes, maps, plan.settings.roles
        self.source, self.target = plan.source.model, plan.target.model
        # whether the heads of both base models speak of the same outputs
        self.shares_outputs = Readout(self.source).shares_outputs(Readout(self.target))
        self.method = maps.method

    def head(self, pair: SitePair, vector: bool) -> Tensor:
        """A head's weight or bias: outputs by correspondence, inputs by the map of its features."""
        if self.roles.head == "keep":
            raise StaysError("the head is kept (roles)")
        change = self.changes.of(pair, vector)
        rows = self._outputs(pair, change.shape[0])
        descent = self.maps.descent(pair, bias=vector)
        site = pair.target
        if vector:
            down = None if descent is None else read_bias(site, descent)
            return self._numbers(pair, change[rows[0]], rows[1], (site.out_width,), down)
        space = self.maps.space(pair, "input")
        down = None if descent is None else read_weight(site, descent)
        return self._rows(pair, change[rows[0]], rows[1], (site.out_width, site.in_width), space, down)

    def number(self, pair: SitePair) -> Tensor:
        """A parameter of one element, such as a scale of logits: it has no direction to turn."""
        change = self.changes.of(pair, False)
        shape = self.changes.parameters[pair.target.weight or ""].shape
        if change.numel() != 1 or change.shape != shape:
            raise StaysError("it is no linear map and no known role")
        descent = self.maps.descent(pair, bias=False)
        down = None if descent is None else descent.reshape(1)
        return self._numbers(pair, change.reshape(1), torch.zeros(1, dtype=torch.long), (1,), down)

    def table(self, pair: SitePair, vector: bool) -> Tensor:
        """Embeddings, positions, special tokens, patch kernels: rows by correspondence, columns by the
        residual map.
        """
        site, role = pair.target, pair.target.role
        if _choice(role, self.roles) == "keep":
            raise StaysError(f"{role} is kept (roles)")
        if role == "embedding.relative":
            return self._relative(pair)
        stream = self.maps.stream(site.stack)
        space = self.maps.residual(stream)
        if site.kind == "conv":
            return self._patches(pair, vector, space)
        change = self.changes.of(pair, vector, flat=True)
        width = stream.source.in_width if space is None else space.width_source
        if change.shape[-1] != width:
            raise StaysError(f"its width {change.shape[-1]} is not that of the residual stream")
        shape = tuple(self.changes.parameters[site.weight or ""].shape)
        flat = math.prod(shape[:-1]), shape[-1]
        entries = self._entries(pair, change.reshape(-1, width), flat[0])
        descent = self.maps.descent(pair, bias=False)
        down = None if descent is None else descent.reshape(flat)
        return self._rows(pair, *entries, flat, space, down).reshape(shape)

    def _outputs(self, pair: SitePair, count: int) -> Rows:
        """Return which outputs of the two heads are the same: all of them, or those of shared strings."""
        widths = pair.source.out_width, pair.target.out_width
        sizes = [getattr(model.config, "vocab_size", None) for model in (self.source, self.target)]
        if self.shares_outputs:
            return torch.arange(count), torch.arange(count)
        if widths[0] == sizes[0] or widths[1] == sizes[1]:
            return vocabulary_rows(self.source, self.target, *widths)
        raise StaysError("the two heads speak of different outputs; `carry` fits a head for the target")

    def _entries(self, pair: SitePair, change: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the changes that have a place in a table of `count` rows, and their places."""
        role, site = pair.target.role, pair.target
        if role == "embedding.token":
            rows = vocabulary_rows(self.source, self.target, change.shape[0], count)
            return change[rows[0]], rows[1]
        if role == "embedding.position":
            weights = position_weights(self.source, self.target, site.stack, change.shape[0], count)
            places = weights.abs().sum(1).nonzero()[:, 0]
            return (weights[places] @ change.double()).to(change.dtype), places
        shared = min(count, change.shape[0])
        return change[:shared], torch.arange(shared)

    def _patches(self, pair: SitePair, vector: bool, space: LinearMap | None) -> Tensor:
        """A patch embedding: pixels resampled, what they make turned with the residual stream."""
        site = pair.target
        change = self.changes.of(pair, vector, flat=True)
        descent = self.maps.descent(pair, bias=vector)
        if vector:
            rows, down = change[None], None if descent is None else descent[None]
        else:
            kernels = (
                self.changes.source_shapes[pair.source.weight or ""][1:],
                tuple(self.changes.parameters[site.weight or ""].shape[1:]),
            )
            pixels = patch_map(*kernels)
            rows = (change.double() @ pixels.matrix).T.to(change.dtype)
            down = None if descent is None else read_weight(site, descent).T
        shape = rows.shape[0], site.out_width
        moved = self._rows(pair, rows, torch.arange(shape[0]), shape, space, down, bias=vector)
        return moved[0] if vector else moved.T

    def _relative(self, pair: SitePair) -> Tensor:
        change = self.changes.of(pair, False, flat=True)
        shape = self.changes.parameters[pair.target.weight or ""].shape
        query = next(
            (
                other
                for other in self.maps.statistics.matching.pairs
                if (other.target.stack, other.target.block, other.target.role)
                == (pair.target.stack, pair.target.block, "attention.query")
            ),
            None,
        )
        if query is None:
            raise StaysError("the block has no query")
        space = self.maps.space(query, "output")
        mixing = None
        if space is not None:
            mixing = head_mixing(space, attention_heads(self.source), attention_heads(self.target))
        if (space is not None and mixing is None) or change.shape[0] != shape[0]:
            raise StaysError(f"a table of {tuple(change.shape)} has no partner in {tuple(shape)}")
        descent = self.maps.descent(pair, bias=False)
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
        table = rows.new_zeros(shape)
        table[places] = moved
        return table

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
        vector = change.new_zeros(shape)
        vector[places] = self.method.settled(self.method.carried(change, layer), layer)
        return vector


def _choice(role: str, roles: Roles) -> str:
    table = {
        "embedding.token": roles.tokens,
        "embedding.position": roles.positions,
        "embedding.type": roles.positions,
        "embedding.patch": roles.patches,
        "embedding.relative": roles.relative,
    }
    return table.get(role, roles.special)
