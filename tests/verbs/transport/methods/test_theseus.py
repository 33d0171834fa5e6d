"""THESEUS against dense Procrustes maps, and what its maps depend on."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transship.errors import MatchError
from transship.geometry import Moments
from transship.verbs.transport.methods.theseus import Theseus
from transship.verbs.transport.protocol import LayerPair


def test_theseus_is_the_product_of_two_dense_procrustes_maps(layers):
    pair, acts = layers.layer_pair(5, 4, 8, 7)
    update = layers.gaussian(4, 5, seed=9)
    expected = (
        layers.polar_of(acts["out_a"].T @ acts["out_b"]).T
        @ update
        @ layers.polar_of(acts["in_a"].T @ acts["in_b"])
    )
    torch.testing.assert_close(Theseus().transport(update, pair), expected, atol=1e-12, rtol=0)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 1000), wider_in=st.integers(0, 5), wider_out=st.integers(0, 5))
def test_theseus_keeps_the_norm_towards_a_wider_model(layers, seed: int, wider_in: int, wider_out: int):
    pair, _ = layers.layer_pair(5, 4, 5 + wider_in, 4 + wider_out, seed=seed)
    update = layers.gaussian(4, 5, seed=seed + 1)
    moved = Theseus().transport(update, pair)
    assert abs(float(moved.norm() - update.norm())) < 1e-10 * float(update.norm())


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 1000), shrink=st.integers(1, 3))
def test_theseus_never_grows_an_update_towards_a_narrower_model(layers, seed: int, shrink: int):
    pair, _ = layers.layer_pair(6, 5, 6 - shrink, 5 - shrink, seed=seed)
    update = layers.gaussian(5, 6, seed=seed + 1)
    assert float(Theseus().transport(update, pair).norm()) <= float(update.norm()) * (1 + 1e-12)


def test_a_rotated_twin_gets_the_rotated_update(layers):
    turn_in, turn_out = layers.polar_of(layers.gaussian(6, 6)), layers.polar_of(layers.gaussian(5, 5, seed=1))
    rows_in, rows_out = layers.gaussian(60, 6, seed=2), layers.gaussian(60, 5, seed=3)
    pair = LayerPair(
        "twin", (5, 6), Moments.of(rows_in, rows_in @ turn_in), Moments.of(rows_out, rows_out @ turn_out)
    )
    update = layers.gaussian(5, 6, seed=4)
    torch.testing.assert_close(
        Theseus().transport(update, pair), turn_out.T @ update @ turn_in, atol=1e-10, rtol=0
    )


def test_maps_do_not_depend_on_row_order_duplication_or_a_positive_scale(layers):
    a, b = layers.gaussian(50, 5), layers.gaussian(50, 8, seed=1)
    shuffled = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    plain = Theseus().input_map(LayerPair("x", (1, 8), Moments.of(a, b))).matrix
    for rows_a, rows_b in (
        (a[shuffled], b[shuffled]),
        (torch.cat([a, a]), torch.cat([b, b])),
        (3 * a, 0.5 * b),
    ):
        other = Theseus().input_map(LayerPair("x", (1, 8), Moments.of(rows_a, rows_b))).matrix
        torch.testing.assert_close(other, plain, atol=1e-12, rtol=0)


def test_moments_merged_from_shards_give_the_maps_of_one_pass(layers):
    a, b = layers.gaussian(90, 6), layers.gaussian(90, 9, seed=1)
    whole = Theseus().input_map(LayerPair("x", (1, 9), Moments.of(a, b)))
    merged = Moments.of(a[:31], b[:31]) + Moments.of(a[31:], b[31:])
    parts = Theseus().input_map(LayerPair("x", (1, 9), merged))
    torch.testing.assert_close(parts.matrix, whole.matrix, atol=1e-10, rtol=0)
    assert parts.rank == whole.rank


@pytest.mark.parametrize("rows", [3, 300])
def test_one_or_two_threads_give_the_same_maps_and_rank(layers, rows: int):
    a, b = layers.gaussian(rows, 40), layers.gaussian(rows, 64, seed=1)
    entries = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            entries.append(Theseus().input_map(LayerPair("x", (1, 64), Moments.of(a, b))))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(entries[0].matrix, entries[1].matrix, atol=1e-8, rtol=0)
    assert entries[0].rank == entries[1].rank == min(rows, 40)


def test_unseen_directions_are_dropped_and_the_rank_says_so(layers):
    a = layers.gaussian(60, 6)
    a[:, 4:] = 0
    pair = LayerPair(
        "x", (5, 6), Moments.of(a, a), Moments.of(layers.gaussian(60, 5), layers.gaussian(60, 5))
    )
    update = layers.gaussian(5, 6, seed=3)
    moved = Theseus().transport(update, pair)
    assert Theseus().input_map(pair).rank == 4
    torch.testing.assert_close(moved[:, :4], update[:, :4], atol=1e-10, rtol=0)
    assert float(moved[:, 4:].abs().max()) == 0
    full = Theseus(complete="identity").transport(update, pair)
    torch.testing.assert_close(full, update, atol=1e-10, rtol=0)


def test_missing_moments_are_named(layers):
    pair = LayerPair("text.2.mlp.in", (5, 6))
    with pytest.raises(MatchError, match=r"text\.2\.mlp\.in: there are no Moments of its inputs"):
        Theseus().transport(layers.gaussian(3, 4), pair)
