"""Which token of one model stands for which of another: computed once per batch, applied to every site.

An alignment names, for a batch, the rows that both models contribute. Either side is a `RowOperator`: rows
picked (one index each) or mixed (a few indices with weights that sum to one) from the model's flat
activations [inputs · tokens, width]. Padding is in no row.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from transship.activations.layout import Alignment, RowOperator, TokenLayout
from transship.activations.pairing import (
    ALIGNMENTS,
    ANTIALIAS_FROM,
    Align,
    Pairs,
    grid_weights,
    resample_weights,
    same_tokens,
)
from transship.errors import MatchError
from transship.numerics import derive_seed

__all__ = [
    "ALIGNMENTS",
    "ANTIALIAS_FROM",
    "Align",
    "Alignment",
    "RowOperator",
    "TokenLayout",
    "align_tokens",
    "choose_alignment",
    "draw_rows",
    "grid_weights",
    "resample_weights",
    "window_places",
]


def align_tokens(
    source: TokenLayout,
    target: TokenLayout,
    source_length: int,
    target_length: int,
    *,
    how: Align = "auto",
    tokens_per_input: int | None = None,
    seed: int = 0,
    numbers: Sequence[int] | None = None,
    skip_first: bool = False,
) -> Alignment:
    """Pair the tokens of two activations of one batch.

    Args:
        source: the source model's tokens.
        target: the target model's tokens.
        source_length: tokens per input in the source's activations.
        target_length: tokens per input in the target's.
        how: `same` position by position; `offsets` overlap-weighted mean of the source's tokens per target
            token; `ends` tokens that end at the same character; `grid` bilinear over patches; `linear` along
            the whole sequence; `mean` and `cls` one row per input; `auto` by what the layouts know (see
            `choose_alignment`).
        tokens_per_input: keep at most so many rows per input, drawn with `seed` and the input's number.
        seed: the user's seed.
        numbers: the inputs' numbers in the whole data; 0, 1, … by default.
        skip_first: leave out every input's first token (attention sinks of causal models).
    """
    if how == "auto":
        how = choose_alignment(source, target, source_length, target_length)
    rows = Pairs.find(how, source, target, source_length, target_length)
    if skip_first and how not in ("mean", "cls"):
        rows = rows.take(rows.token > 0)
    if tokens_per_input is not None:
        numbers = range(target.size) if numbers is None else numbers
        rows = rows.take(draw_rows(rows.input, tokens_per_input, seed, numbers))
    return rows.alignment(source_length, target_length)


def choose_alignment(
    source: TokenLayout, target: TokenLayout, source_length: int, target_length: int
) -> Align:
    """Return the alignment that the layouts allow, best first.

    One token each, or the same text cut the same way: `same`. Patch grids: `grid`. Other texts: `ends`
    between two causal models, `offsets` otherwise. Without knowledge of the tokens: `same` for equal lengths,
    else `linear`.
    """
    if source_length == target_length == 1:
        return "same"
    grids = source.grid(source_length), target.grid(target_length)
    if grids[0] is not None and grids[1] is not None:
        return "same" if grids[0] == grids[1] else "grid"
    if source.knows(source_length) and target.knows(target_length):
        if same_tokens(source, target):
            return "same"
        if source.offsets is not None and target.offsets is not None:
            return "ends" if source.causal and target.causal else "offsets"
        raise MatchError(
            "the two tokenizers differ and one of them gives no character offsets",
            where="token alignment",
            fix="use fast tokenizers, or align by 'mean', 'cls' or 'linear'",
        )
    return "same" if source_length == target_length else "linear"


def draw_rows(
    inputs: Int[np.ndarray, " rows"], most: int, seed: int, numbers: Sequence[int]
) -> Bool[np.ndarray, " rows"]:
    """Return which rows to keep: at most `most` per input, the same ones whatever batch the input is in."""
    keep = np.ones(len(inputs), dtype=bool)
    starts = np.searchsorted(inputs, np.arange(len(numbers) + 1))
    for position in np.flatnonzero(np.diff(starts) > most):
        start, stop = starts[position], starts[position + 1]
        generator = np.random.default_rng(derive_seed(seed, "tokens", int(numbers[int(position)])))
        keep[start:stop] = False
        keep[start + generator.permutation(stop - start)[:most]] = True
    return keep


def window_places(size: int, grid: tuple[int, int], window: int, shift: int) -> Int[Tensor, " tokens"]:
    """Return where token (input, y, x) lies in activations cut into shifted windows [inputs · windows,
    window², width].

    The grid is padded to whole windows and rolled by −shift before it is cut, as Swin does.
    """
    padded = [-(-edge // window) * window for edge in grid]
    order = torch.arange(size * padded[0] * padded[1]).reshape(
        size, padded[0] // window, padded[1] // window, window, window
    )
    image = order.transpose(2, 3).reshape(size, padded[0], padded[1])
    image = image.roll((shift, shift), (1, 2))
    return image[:, : grid[0], : grid[1]].reshape(-1)
