"""Which token of one model stands for which of another: computed once per batch, applied to every site.

An alignment names, for a batch, the rows that both models contribute. Either side is a `RowOperator`: rows
picked (one index each) or mixed (a few indices with weights that sum to one) from the model's flat
activations [inputs · tokens, width]. Padding is in no row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transship.activations.layout import Alignment, RowOperator, TokenLayout
from transship.errors import MatchError
from transship.numerics import derive_seed
from transship.types import Align

ALIGNMENTS: tuple[Align, ...] = ("auto", "same", "offsets", "ends", "grid", "linear", "mean", "cls")

# Shrinking a grid by more than this, plain bilinear weights would skip source tokens: widen the triangle
# instead.
ANTIALIAS_FROM = 1.5


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
    rows = TokenPairs.find(how, source, target, source_length, target_length)
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


@lru_cache(maxsize=4096)
def resample_weights(source: int, target: int) -> Float[np.ndarray, "target source"]:
    """Return the 1-D linear interpolation matrix onto `target` points (align_corners=False); rows sum to 1.

    Target point t lies at (t + ½)·source/target − ½ among the source's. When shrinking by more than
    `ANTIALIAS_FROM`, the triangle is as wide as the step, so that every source point counts.
    """
    step = source / target
    centres = (np.arange(target) + 0.5) * step - 0.5
    if step > ANTIALIAS_FROM:
        distance = np.abs(np.arange(source)[None, :] - centres[:, None]) / step
    else:
        distance = np.abs(np.arange(source)[None, :] - centres.clip(0, source - 1)[:, None])
    weights = np.clip(1.0 - distance, 0.0, None)
    return np.asarray(weights / weights.sum(1, keepdims=True))


@lru_cache(maxsize=256)
def grid_weights(source: tuple[int, int], target: tuple[int, int]) -> Float[np.ndarray, "target source"]:
    """Return the 2-D bilinear matrix from one grid's patches to another's, both in reading order."""
    return np.kron(resample_weights(source[0], target[0]), resample_weights(source[1], target[1]))


@dataclass(frozen=True, eq=False)
class TokenPairs:
    """Rows before they become operators: target tokens (or all of an input) and their source tokens.

    `matrix[variant]` maps a source token to a made row where rows are mixed; `row` is the row in it.
    """

    input: Int[np.ndarray, " rows"]
    token: Int[np.ndarray, " rows"]
    source: Int[np.ndarray, " rows"] | None  # one source token per row, or
    mixed: (
        tuple[Int[np.ndarray, " entries"], Int[np.ndarray, " entries"], Float[np.ndarray, " entries"]] | None
    )
    whole: tuple[Bool[np.ndarray, "inputs tokens"], Bool[np.ndarray, "inputs tokens"]] | None = None

    @classmethod
    def find(
        cls, how: Align, source: TokenLayout, target: TokenLayout, length_a: int, length_b: int
    ) -> "TokenPairs":
        if source.size != target.size:
            raise MatchError(
                f"batches of {source.size} and {target.size} inputs",
                where="token alignment",
                fix="give both models the same inputs",
            )
        if how == "same":
            if length_a != length_b:
                raise MatchError(
                    f"{length_a} tokens against {length_b} cannot pair position by position",
                    where="token alignment",
                    fix="choose another alignment: auto, offsets, grid, linear, mean or cls",
                )
            return cls._picked(source.valid(length_a) & target.valid(length_b))
        if how in ("offsets", "ends"):
            return cls._by_characters(how, source, target)
        if how == "grid":
            return cls._by_grid(source, target, length_a, length_b)
        if how == "linear":
            return cls._by_position(source.valid(length_a), target.valid(length_b))
        if how == "mean":
            return cls._by_input(source.valid(length_a), target.valid(length_b))
        if how == "cls":
            return cls._by_summary(source, target, length_a, length_b)
        raise MatchError(
            f"there is no alignment '{how}'", where="align", fix=f"choose one of {', '.join(ALIGNMENTS)}"
        )

    @classmethod
    def _picked(cls, both: Bool[np.ndarray, "inputs tokens"]) -> "TokenPairs":
        inputs, tokens = np.nonzero(both)
        return cls(inputs, tokens, tokens, None)

    @classmethod
    def _mixed(cls, weights: Float[np.ndarray, "inputs target source"]) -> "TokenPairs":
        """Rows are the target tokens with any weight; their weights are scaled to sum to 1."""
        totals = weights.sum(2)
        inputs, tokens = np.nonzero(totals)
        chosen = weights[inputs, tokens] / totals[inputs, tokens, None]
        rows, sources = np.nonzero(chosen)
        return cls(inputs, tokens, None, (rows, sources, chosen[rows, sources]))

    @classmethod
    def _by_characters(cls, how: Align, source: TokenLayout, target: TokenLayout) -> "TokenPairs":
        if source.offsets is None or target.offsets is None or source.mask is None or target.mask is None:
            raise MatchError(
                "a tokenizer gives no character offsets",
                where=f"align={how}",
                fix="use fast tokenizers, or align by 'mean', 'cls' or 'linear'",
            )
        plain_a = source.mask & ~_specials(source)
        plain_b = target.mask & ~_specials(target)
        start_a, end_a = source.offsets[:, None, :, 0], source.offsets[:, None, :, 1]
        start_b, end_b = target.offsets[:, :, None, 0], target.offsets[:, :, None, 1]
        both = plain_b[:, :, None] & plain_a[:, None, :]
        if how == "offsets":
            weights = (np.minimum(end_a, end_b) - np.maximum(start_a, start_b)).clip(0) * both.astype(
                np.float64
            )
        else:
            # several tokens of one character end together; only the last has read all of it
            last_a = plain_a & ~_followed_by_same_end(source.offsets[..., 1], plain_a)
            last_b = plain_b & ~_followed_by_same_end(target.offsets[..., 1], plain_b)
            nonempty = (end_a > start_a) & (end_b > start_b)
            both = last_b[:, :, None] & last_a[:, None, :] & nonempty
            weights = ((end_a == end_b) & both).astype(np.float64)
        for side in ("front", "back"):
            first_a, first_b = _edge_special(source, side), _edge_special(target, side)
            for number in np.flatnonzero((first_a >= 0) & (first_b >= 0)):
                weights[number, first_b[number], first_a[number]] = 1.0
        return cls._mixed(weights)

    @classmethod
    def _by_grid(cls, source: TokenLayout, target: TokenLayout, length_a: int, length_b: int) -> "TokenPairs":
        found_a, found_b = source.grid(length_a), target.grid(length_b)
        if found_a is None or found_b is None:
            raise MatchError(
                f"{length_a} or {length_b} tokens form no patch grid",
                where="align=grid",
                fix="align by 'linear', 'mean' or 'cls'",
            )
        (grid_a, front_a), (grid_b, front_b) = found_a, found_b
        weights = np.zeros((length_b, length_a))
        # equally many specials are the same kinds in the same order; otherwise only the class token surely is
        for special in range(front_a if front_a == front_b else min(front_a, front_b, 1)):
            weights[special, special] = 1.0
        weights[front_b:, front_a:] = grid_weights(grid_a, grid_b)
        return cls._mixed(np.broadcast_to(weights, (target.size, length_b, length_a)))

    @classmethod
    def _by_position(
        cls, valid_a: Bool[np.ndarray, "inputs source"], valid_b: Bool[np.ndarray, "inputs target"]
    ) -> "TokenPairs":
        weights = np.zeros((len(valid_b), valid_b.shape[1], valid_a.shape[1]))
        for number, (there, here) in enumerate(zip(valid_a, valid_b, strict=True)):
            if there.any() and here.any():
                places = np.ix_(np.flatnonzero(here), np.flatnonzero(there))
                weights[number][places] = resample_weights(int(there.sum()), int(here.sum()))
        return cls._mixed(weights)

    @classmethod
    def _by_input(
        cls, valid_a: Bool[np.ndarray, "inputs source"], valid_b: Bool[np.ndarray, "inputs target"]
    ) -> "TokenPairs":
        inputs = np.flatnonzero(valid_a.any(1) & valid_b.any(1))
        return cls(inputs, np.zeros_like(inputs), None, None, (valid_a, valid_b))

    @classmethod
    def _by_summary(
        cls, source: TokenLayout, target: TokenLayout, length_a: int, length_b: int
    ) -> "TokenPairs":
        """The first token, or the last one of a causal model: the one that has read the input."""
        valid_a, valid_b = source.valid(length_a), target.valid(length_b)
        inputs = np.flatnonzero(valid_a.any(1) & valid_b.any(1))
        return cls(
            inputs, _summary_token(target, valid_b)[inputs], _summary_token(source, valid_a)[inputs], None
        )

    def take(self, keep: Bool[np.ndarray, " rows"]) -> "TokenPairs":
        mixed = self.mixed
        if mixed is not None:
            rows, sources, weights = mixed
            entries = keep[rows]
            mixed = (np.cumsum(keep) - 1)[rows[entries]], sources[entries], weights[entries]
        source = None if self.source is None else self.source[keep]
        return TokenPairs(self.input[keep], self.token[keep], source, mixed, self.whole)

    def alignment(self, length_a: int, length_b: int) -> Alignment:
        """Return both sides' operators on flat activations."""
        if self.whole is not None:
            sides = [_mean_operator(valid[self.input], self.input) for valid in self.whole]
            return Alignment(sides[0], sides[1], self.input)
        target = RowOperator(torch.from_numpy(self.input * length_b + self.token))
        if self.source is not None:
            return Alignment(
                RowOperator(torch.from_numpy(self.input * length_a + self.source)), target, self.input
            )
        assert self.mixed is not None
        rows, sources, weights = self.mixed
        indices = torch.from_numpy(self.input[rows] * length_a + sources)
        if len(indices) == len(self.input):  # every row has one source token
            return Alignment(RowOperator(indices), target, self.input)
        starts = torch.from_numpy(np.searchsorted(rows, np.arange(len(self.input))))
        return Alignment(RowOperator(indices, starts, torch.from_numpy(weights)), target, self.input)


def _mean_operator(valid: Bool[np.ndarray, "rows tokens"], inputs: Int[np.ndarray, " rows"]) -> RowOperator:
    rows, tokens = np.nonzero(valid)
    counts = valid.sum(1)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    indices = inputs[rows] * valid.shape[1] + tokens
    return RowOperator(
        torch.from_numpy(indices), torch.from_numpy(starts), torch.from_numpy(1.0 / counts[rows])
    )


def _specials(layout: TokenLayout) -> Bool[np.ndarray, "inputs tokens"]:
    assert layout.mask is not None
    return np.zeros_like(layout.mask) if layout.special is None else layout.special


def same_tokens(source: TokenLayout, target: TokenLayout) -> bool:
    """Return whether both cut the texts alike: same mask, specials and offsets."""
    if source.mask is None or target.mask is None or not np.array_equal(source.mask, target.mask):
        return False
    if not np.array_equal(_specials(source) & source.mask, _specials(target) & target.mask):
        return False
    if source.offsets is None or target.offsets is None:
        return (
            source.offsets is None
            and target.offsets is None
            and source.special is None
            and target.special is None
        )
    counts = source.mask[..., None]
    return np.array_equal(source.offsets * counts, target.offsets * counts)


def _followed_by_same_end(
    ends: Int[np.ndarray, "inputs tokens"], plain: Bool[np.ndarray, "inputs tokens"]
) -> Bool[np.ndarray, "inputs tokens"]:
    followed = np.zeros_like(plain)
    followed[:, :-1] = (ends[:, :-1] == ends[:, 1:]) & plain[:, 1:]
    return followed


def _edge_special(layout: TokenLayout, side: str) -> Int[np.ndarray, " inputs"]:
    """Return the first special token in front of (or behind) an input's text, −1 where there is none."""
    assert layout.mask is not None
    special = _specials(layout) & layout.mask
    plain = layout.mask & ~special
    length = layout.mask.shape[1]
    first = np.where(plain.any(1), plain.argmax(1), length)
    last = np.where(plain.any(1), length - 1 - plain[:, ::-1].argmax(1), -1)
    places = np.arange(length)[None, :]
    edge = special & (places < first[:, None] if side == "front" else places > last[:, None])
    if side == "back":
        edge &= plain.any(1)[:, None]
    return np.where(edge.any(1), edge.argmax(1), -1)


def _summary_token(
    layout: TokenLayout, valid: Bool[np.ndarray, "inputs tokens"]
) -> Int[np.ndarray, " inputs"]:
    if layout.causal:
        return np.asarray(valid.shape[1] - 1 - valid[:, ::-1].argmax(1))
    return np.asarray(valid.argmax(1))
