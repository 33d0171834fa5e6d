from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from transship.activations import TokenLayout, align_tokens, load_model
from transship.activations.tokens import choose_alignment, grid_weights, resample_weights, window_places
from transship.errors import MatchError

lengths = st.integers(1, 12)
grids = st.tuples(st.integers(1, 6), st.integers(1, 6))


def cut(text_length: int, cuts: list[int]) -> list[tuple[int, int]]:
    """Tokens of a text of so many characters, cut at the given places."""
    edges = sorted({0, text_length, *(place % text_length for place in cuts)})
    return list(pairwise(edges))


def layout(
    spans: list[list[tuple[int, int]]], *, front: int = 0, back: int = 0, causal: bool = False
) -> TokenLayout:
    """Tokens with these offsets, specials before and after, padded to the longest."""
    rows = [[(0, 0)] * front + row + [(0, 0)] * back for row in spans]
    longest = max(map(len, rows))
    offsets = np.zeros((len(rows), longest, 2), dtype=np.int64)
    mask = np.zeros((len(rows), longest), dtype=bool)
    special = np.zeros_like(mask)
    for number, row in enumerate(rows):
        offsets[number, : len(row)] = row
        mask[number, : len(row)] = True
        special[number, :front] = True
        special[number, len(row) - back : len(row)] = True
    return TokenLayout(len(rows), mask, special, offsets, causal=causal)


def tokens_of(one: TokenLayout) -> int:
    assert one.mask is not None
    return one.mask.shape[1]


texts = st.lists(
    st.tuples(
        st.integers(1, 20), st.lists(st.integers(0, 19), max_size=6), st.lists(st.integers(0, 19), max_size=6)
    ),
    min_size=1,
    max_size=4,
)


@given(source=lengths, target=lengths)
def test_rows_of_a_resampling_sum_to_one_and_equal_lengths_are_the_identity(source: int, target: int):
    weights = resample_weights(source, target)
    np.testing.assert_allclose(weights.sum(1), 1.0)
    assert (weights >= 0).all()
    if source == target:
        np.testing.assert_array_equal(weights, np.eye(source))


@pytest.mark.parametrize(
    ("source", "target"), [((4, 4), (7, 5)), ((7, 7), (6, 6)), ((14, 12), (4, 5)), ((3, 9), (9, 3))]
)
def test_grid_weights_are_torch_bilinear_interpolation(source: tuple[int, int], target: tuple[int, int]):
    """With antialiasing exactly where an axis shrinks by more than 1.5."""
    image = torch.rand(1, 2, *source, dtype=torch.float64)
    expected = image
    for axis in (0, 1):
        size = list(expected.shape[2:])
        antialias = size[axis] / target[axis] > 1.5
        size[axis] = target[axis]
        expected = functional.interpolate(
            expected, tuple(size), mode="bilinear", align_corners=False, antialias=antialias
        )
    value = image.flatten(2)[0] @ torch.from_numpy(grid_weights(source, target)).T
    torch.testing.assert_close(value.reshape(2, *target), expected[0])


@given(source=grids, target=grids, specials=st.integers(0, 2))
def test_grid_operators_sum_to_one_and_keep_specials_apart(
    source: tuple[int, int], target: tuple[int, int], specials: int
):
    a, b = TokenLayout(2, grids=(source,)), TokenLayout(2, grids=(target,))
    length_a, length_b = specials + source[0] * source[1], specials + target[0] * target[1]
    alignment = align_tokens(a, b, length_a, length_b, how="grid")
    matrix = alignment.source.dense(2 * length_a)
    torch.testing.assert_close(matrix.sum(1), torch.ones(2 * length_b, dtype=torch.float64))
    for row in range(specials):
        assert matrix[row, row] == 1.0
    if source == target:
        assert alignment.source.starts is None
        torch.testing.assert_close(matrix, torch.eye(2 * length_a, dtype=torch.float64))


def test_only_class_tokens_pair_when_the_numbers_of_specials_differ():
    alignment = align_tokens(
        TokenLayout(1, grids=((2, 2),)), TokenLayout(1, grids=((2, 2),)), 5, 8, how="grid"
    )
    assert alignment.target.indices.tolist() == [
        0,
        4,
        5,
        6,
        7,
    ]  # three registers of the target have no partner
    assert alignment.source.indices.tolist() == [0, 1, 2, 3, 4]


@given(texts=texts)
def test_overlaps_sum_to_one_reach_every_plain_token_and_never_padding(
    texts: list[tuple[int, list[int], list[int]]],
):
    a = layout([cut(size, cuts) for size, cuts, _ in texts], front=1, back=1)
    b = layout([cut(size, cuts) for size, _, cuts in texts], front=1, back=1)
    alignment = align_tokens(a, b, tokens_of(a), tokens_of(b), how="offsets")
    matrix = alignment.source.dense(a.size * tokens_of(a))
    torch.testing.assert_close(matrix.sum(1), torch.ones(alignment.source.rows, dtype=torch.float64))
    # the same characters on both sides: every real target token has a row, every source token a weight
    assert sorted(alignment.target.indices.tolist()) == np.flatnonzero(b.mask).tolist()
    assert (matrix.sum(0) > 0).nonzero().flatten().tolist() == np.flatnonzero(a.mask).tolist()


@given(texts=texts)
def test_the_same_tokenisation_is_the_identity_with_padding_left_out(
    texts: list[tuple[int, list[int], list[int]]],
):
    a = layout([cut(size, cuts) for size, cuts, _ in texts], front=1)
    assert choose_alignment(a, a, tokens_of(a), tokens_of(a)) == "same"
    for how in ("auto", "offsets"):
        alignment = align_tokens(a, a, tokens_of(a), tokens_of(a), how=how)
        assert (
            alignment.source.indices.tolist()
            == alignment.target.indices.tolist()
            == np.flatnonzero(a.mask).tolist()
        )


def test_overlap_weights_are_shares_of_the_target_token():
    a = layout([[(0, 2), (2, 3), (3, 8)]])
    b = layout([[(0, 4), (4, 8)]])
    matrix = align_tokens(a, b, 3, 2, how="offsets").source.dense(3)
    torch.testing.assert_close(matrix, torch.tensor([[0.5, 0.25, 0.25], [0, 0, 1.0]], dtype=torch.float64))


def test_causal_models_pair_tokens_that_end_together_and_only_the_last_of_one_character():
    a = layout([[(0, 2), (2, 3), (3, 8), (8, 9), (8, 9)]], causal=True)
    b = layout([[(0, 3), (3, 7), (7, 8), (8, 9), (8, 9), (8, 9)]], causal=True)
    assert choose_alignment(a, b, 5, 6) == "ends"
    alignment = align_tokens(a, b, 5, 6)
    assert alignment.target.indices.tolist() == [0, 2, 5]
    assert alignment.source.indices.tolist() == [1, 2, 4]


def test_special_tokens_pair_by_their_place_only():
    a, b = layout([[(0, 3)]], front=1, back=1), layout([[(0, 1), (1, 3)]], back=1)
    alignment = align_tokens(a, b, 3, 3, how="offsets")
    assert alignment.target.indices.tolist() == [0, 1, 2]
    assert alignment.source.indices.tolist() == [1, 1, 2]  # the front special of a has no partner


def test_mean_and_cls_give_one_row_per_input():
    a, b = (
        layout([[(0, 1), (1, 2)], [(0, 2)]], front=1),
        layout([[(0, 2)], [(0, 1), (1, 2)]], front=1, causal=True),
    )
    mean = align_tokens(a, b, 3, 3, how="mean")
    expected = torch.zeros(2, 6, dtype=torch.float64)
    expected[0, :3], expected[1, 3:5] = 1 / 3, 1 / 2
    torch.testing.assert_close(mean.source.dense(6), expected)
    summary = align_tokens(a, b, 3, 3, how="cls")
    assert summary.source.indices.tolist() == [0, 3]
    assert summary.target.indices.tolist() == [1, 5]  # the last token of a causal model has read all


def test_linear_runs_along_the_whole_unpadded_sequence():
    a, b = TokenLayout(1, np.array([[True, True, False]])), TokenLayout(1, np.array([[True] * 4]))
    alignment = align_tokens(a, b, 3, 4, how="linear")
    expected = torch.zeros(4, 3, dtype=torch.float64)
    expected[:, :2] = torch.from_numpy(resample_weights(2, 4))
    torch.testing.assert_close(alignment.source.dense(3), expected)


@given(most=st.integers(1, 5), seed=st.integers(0, 5))
def test_the_cap_draws_the_same_tokens_whatever_batch_an_input_is_in(most: int, seed: int):
    spans = [[(n, n + 1) for n in range(size)] for size in (3, 9, 6)]
    together = layout(spans)
    whole = align_tokens(together, together, 9, 9, tokens_per_input=most, seed=seed, numbers=[10, 11, 12])
    for number, row in enumerate(spans):
        alone = layout([row])
        alignment = align_tokens(
            alone, alone, len(row), len(row), tokens_per_input=most, seed=seed, numbers=[10 + number]
        )
        assert alignment.target.rows == min(most, len(row))
        mine = whole.target.indices[torch.from_numpy(whole.inputs == number)] - 9 * number
        assert mine.tolist() == alignment.target.indices.tolist()


def test_the_first_token_can_be_left_out():
    a = layout([[(0, 1), (1, 2)]])
    assert align_tokens(a, a, 2, 2, skip_first=True).target.indices.tolist() == [1]


@pytest.mark.parametrize(("window", "shift"), [(2, 0), (2, 1), (3, 1)])
def test_window_places_undo_the_cutting_of_shifted_windows(window: int, shift: int):
    height, width, size = 5, 4, 2
    image = torch.arange(size * height * width).reshape(size, height, width)
    bottom, right = -height % window, -width % window
    padded = functional.pad(image, (0, right, 0, bottom), value=-1).roll((-shift, -shift), (1, 2))
    windows = padded.unfold(1, window, window).unfold(2, window, window).reshape(-1)
    torch.testing.assert_close(windows[window_places(size, (height, width), window, shift)], image.flatten())


def test_lengths_that_cannot_pair_are_refused():
    with pytest.raises(MatchError, match="cannot pair position by position"):
        align_tokens(TokenLayout(1), TokenLayout(1), 3, 4, how="same")
    with pytest.raises(MatchError, match="no character offsets"):
        align_tokens(TokenLayout(1), TokenLayout(1), 3, 4, how="offsets")
    with pytest.raises(MatchError, match="no patch grid"):
        align_tokens(TokenLayout(1), TokenLayout(1), 3, 4, how="grid")


def test_wordpiece_and_byte_pairs_of_real_tokenizers_align_by_characters(models_dir: Path):
    """Every row joins tokens whose characters meet; the first and last are the specials."""
    from transformers import AutoTokenizer

    text = "Unbelievably, the gráphs of 3 naïve tokenizers 😀 differ!"
    by_name = {}
    for name in ("minilm-l6", "granite-small"):
        tokenizer = AutoTokenizer.from_pretrained(models_dir / name)
        encoded = tokenizer(
            [text], return_offsets_mapping=True, return_special_tokens_mask=True, return_tensors="np"
        )
        by_name[name] = TokenLayout(
            1,
            encoded["attention_mask"].astype(bool),
            encoded["special_tokens_mask"].astype(bool),
            encoded["offset_mapping"],
        )
    a, b = by_name["minilm-l6"], by_name["granite-small"]
    assert choose_alignment(a, b, tokens_of(a), tokens_of(b)) == "offsets"
    aligned = align_tokens(a, b, tokens_of(a), tokens_of(b))
    matrix = aligned.source.dense(tokens_of(a))
    torch.testing.assert_close(matrix.sum(1), torch.ones(len(matrix), dtype=torch.float64))
    assert a.offsets is not None
    assert b.offsets is not None
    assert matrix[0, 0] == 1.0
    assert matrix[-1, -1] == 1.0
    for row, token in zip(matrix[1:-1], aligned.target.indices[1:-1].tolist(), strict=True):
        start, end = b.offsets[0, token]
        for source in row.nonzero().flatten().tolist():
            assert max(start, a.offsets[0, source, 0]) < min(end, a.offsets[0, source, 1])
    assert aligned.target.rows >= tokens_of(b) - 1  # at most a lone space has no partner


def test_a_loaded_models_batch_knows_its_tokens(minilm: Path):
    model = load_model(minilm)
    batch = model.preprocess(["a dog barks", "hi"])
    layout_of = batch.layout("text")
    assert layout_of.mask is not None
    assert layout_of.mask.sum(1).tolist() == [
        6,
        3,
    ]
    assert layout_of.offsets is not None
    assert layout_of.offsets[0, 2].tolist() == [2, 5]
