"""Rows of tables: which token, position, patch pixel or head of the source stands for which of the target."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transship.activations import LoadedModel
from transship.activations.tokens import grid_weights, resample_weights
from transship.geometry import LinearMap

# families whose position table starts behind the padding index
_SHIFTED_POSITIONS = frozenset(
    {"roberta", "xlm-roberta", "camembert", "mpnet", "data2vec-text", "longformer"}
)

Rows = tuple[Int[Tensor, " shared"], Int[Tensor, " shared"]]


def vocabulary_rows(source: LoadedModel, target: LoadedModel, size_a: int, size_b: int) -> Rows | str:
    """Return (rows of the source, rows of the target) of the strings that both vocabularies have, or a
    reason.

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
        return f"no tokenizer says which of {size_a} and {size_b} rows correspond"
    words_a, words_b = (_canonical(table, size) for table, size in zip(tables, (size_a, size_b), strict=True))
    shared = [word for word in words_b if word in words_a]
    if not shared:
        return "the two vocabularies share no string"
    return torch.tensor([words_a[word] for word in shared]), torch.tensor([words_b[word] for word in shared])


def _canonical(vocabulary: dict[str, int], size: int) -> dict[tuple[bool, str], int]:
    """Return (starts a word, text) → row; one row per string, the first of equals."""
    mark = next((sign for sign in ("Ġ", "▁") if any(word.startswith(sign) for word in vocabulary)), None)
    pieces = any(word.startswith("##") for word in vocabulary)
    found: dict[tuple[bool, str], int] = {}
    for word, row in sorted(vocabulary.items(), key=lambda item: item[1]):
        if row >= size:
            continue
        if mark is not None:
            key = (word.startswith(mark), word.removeprefix(mark))
        elif pieces:
            key = (not word.startswith("##"), word.removeprefix("##"))
        else:
            key = (True, word)
        found.setdefault(key, row)
    return found


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


def patch_map(kernel_a: tuple[int, ...], kernel_b: tuple[int, ...]) -> LinearMap | str:
    """Return T_in (c·p_a² × c·p_b²) for patch kernels (channels, height, width), or a reason.

    With R the bilinear resize of a patch, ⟨w_B, R x⟩ = ⟨w_A, x⟩ has the least-squares solution w_B = (Rᵀ)⁺
    w_A.
    """
    if kernel_a[0] != kernel_b[0] or len(kernel_a) != 3:
        return f"patches of {kernel_a[0]} and {kernel_b[0]} channels"
    if kernel_a == kernel_b:
        width = int(torch.tensor(kernel_a).prod())
        return LinearMap(torch.eye(width, dtype=torch.float64), kind="identity", rank=width)
    resize = torch.from_numpy(grid_weights((kernel_a[1], kernel_a[2]), (kernel_b[1], kernel_b[2])))
    one = torch.linalg.pinv(resize)  # (p_a² × p_b²): rows w_A one = w_B
    matrix = torch.kron(torch.eye(kernel_a[0], dtype=torch.float64), one)
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


def attention_heads(model: LoadedModel, stack: str = "") -> int:
    """Return the number of attention heads that the config names; 0 where it names none.

    Towers may differ: `vision` asks for those of the image tower.
    """
    towers = [getattr(model.config, f"{name}_config", None) for name in ("text", "vision")]
    for part in (model.config, *(reversed(towers) if stack == "vision" else towers)):
        for name in ("num_attention_heads", "num_heads", "n_head", "n_heads"):
            value = getattr(part, name, None)
            if isinstance(value, int):
                return value
    return 0


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
