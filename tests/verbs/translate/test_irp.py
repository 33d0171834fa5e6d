"""Inverse relative projection against the paper's steps written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paired_rows import pairs as paired_rows

from transship.errors import OptionError, TransshipWarning
from transship.verbs.translate import InverseRelativeProjection
from transship.verbs.translate.fit.anchors import choose_rows
from transship.verbs.translate.maps.anchoring import (
    angular_distances,
    farthest_points,
    invert_anchors,
    subspace_indices,
    tikhonov_anchors,
)


def spaces(count: int = 200, source: int = 24, target: int = 16, seed: int = 0):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(count, 10)) * np.linspace(2, 0.3, 10)
    return tuple(
        hidden @ rng.normal(size=(10, width)) + 0.2 * rng.normal(size=(count, width)) + rng.normal(size=width)
        for width in (source, target)
    )


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def step_by_step(x, source, target, lists):
    """Centre, normalise, project on every subspace, invert, average, de-normalise: Sec. 4 of the paper."""
    anchors_x, anchors_y = unit(source - source.mean(0)), unit(target - target.mean(0))
    scale = np.linalg.norm(target - target.mean(0), axis=1).mean()
    rows = unit(x - source.mean(0))
    decoded = [rows @ anchors_x[i].T @ np.linalg.pinv(anchors_y[i].T) for i in lists]
    return target.mean(0) + scale * np.mean(decoded, axis=0)


def reference_fps(distances, start, delta):
    taken = [start]
    while len(taken) < len(distances):
        rest = [i for i in range(len(distances)) if i not in taken]
        nearest = [min(distances[i][j] for j in taken) for i in rest]
        if max(nearest) < delta:
            break
        taken.append(rest[int(np.argmax(nearest))])
    return taken


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), delta=st.floats(0, 1), count=st.integers(1, 25))
def test_farthest_points_equal_a_ten_line_reference(seed: int, delta: float, count: int):
    rows = torch.from_numpy(np.random.default_rng(seed).normal(size=(count, 3)))
    distances = angular_distances(rows)
    expected = reference_fps(distances.numpy(), seed % count, delta)
    assert farthest_points(distances, start=seed % count, delta=delta).tolist() == expected


def test_opposite_directions_are_as_near_as_equal_ones():
    rows = torch.tensor([[1.0, 0.0], [-2.0, 0.0], [0.0, 1.0]])
    torch.testing.assert_close(angular_distances(rows), torch.tensor([[0.0, 0, 1], [0, 0, 1], [1, 1, 0]]))


@pytest.mark.parametrize("prune_on", ["source", "target", "both"])
def test_the_exact_fold_equals_the_paper_step_by_step(prune_on: str):
    source, target = spaces()
    fitted = InverseRelativeProjection(delta=0.5, subspaces=5, prune_on=prune_on).fit(source, target)
    rows = spaces(seed=1)[0]
    np.testing.assert_allclose(
        fitted.transform(rows), step_by_step(rows, source, target, fitted.lists_), atol=1e-6, rtol=0
    )
    np.testing.assert_allclose(
        fitted.inverse_transform(target),
        step_by_step(target, target, source, fitted.lists_),
        atol=1e-6,
        rtol=0,
    )


def test_the_exact_fold_in_float32_stays_within_its_rounding():
    source, target = spaces()
    fitted = InverseRelativeProjection(delta=0.5, subspaces=5).fit(source, target)
    single = fitted.transform(source.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, fitted.transform(source), atol=2e-5)


def test_one_product_with_the_folded_matrix_gives_direction_and_length():
    source, target = spaces()
    fitted = InverseRelativeProjection(subspaces=4).fit(source, target)
    both = source @ fitted.fold_exact()
    length = np.sqrt(np.square(source).sum(1) - 2 * both[:, -1] + fitted.source_mean_ @ fitted.source_mean_)
    moved = (both[:, :-1] - fitted.source_mean_ @ fitted.matrix_) * (fitted.target_scale_ / length)[:, None]
    np.testing.assert_allclose(moved + fitted.target_mean_, fitted.transform(source), atol=1e-9)


def test_the_affine_fold_keeps_centred_directions_and_not_lengths():
    source, target = spaces()
    fitted = InverseRelativeProjection(subspaces=4).fit(source, target)
    weight, bias = fitted.fold_affine()
    exact, folded = fitted.transform(source) - target.mean(0), source @ weight + bias - target.mean(0)
    np.testing.assert_allclose(unit(exact), unit(folded), atol=1e-9)
    lengths = np.linalg.norm(folded, axis=1) / np.linalg.norm(exact, axis=1)
    expected = np.linalg.norm(source - source.mean(0), axis=1) / fitted.source_scale_
    np.testing.assert_allclose(lengths, expected, atol=1e-9)


def test_completed_anchors_give_least_squares_on_the_pruned_ones():
    source, target = spaces()
    fitted = InverseRelativeProjection(delta=0.6, subspaces=1, completion=True).fit(source, target)
    near, far = (unit(part - part.mean(0))[fitted.lists_[0]] for part in (source, target))
    assert np.linalg.matrix_rank(near) == np.linalg.matrix_rank(far) == len(near)
    np.testing.assert_allclose(fitted.matrix_, np.linalg.lstsq(near, far, rcond=None)[0], atol=1e-8)
    # Sec. 3.3 to the letter: push the identity through both projections, use the images as anchors of Eq. (2)
    images = np.eye(near.shape[1]) @ near.T @ np.linalg.pinv(far.T)
    np.testing.assert_allclose(fitted.matrix_, np.linalg.pinv(images.T, rcond=1e-8), atol=1e-8)


def test_completion_with_dependent_anchors_still_inverts_the_completed_ones():
    source, target = spaces(count=40, source=6, target=5)
    fitted = InverseRelativeProjection(delta=0.0, subspaces=1, n_anchors=None, completion=True).fit(
        source, target
    )
    near, far = (unit(part - part.mean(0))[fitted.lists_[0]] for part in (source, target))
    images = near.T @ np.linalg.pinv(far.T)
    np.testing.assert_allclose(fitted.matrix_, np.linalg.pinv(images.T, rcond=1e-8), atol=1e-7)


def test_pseudo_inverses_report_rank_and_condition():
    rows = unit(np.random.default_rng(0).normal(size=(30, 8)))
    for part in (rows, rows[:5]):
        result = invert_anchors(torch.from_numpy(part))
        np.testing.assert_allclose(result.matrix.numpy(), np.linalg.pinv(part.T), atol=1e-10)
        np.testing.assert_allclose(result.condition, np.linalg.cond(part))
        assert result.rank == min(part.shape)


def test_centring_by_the_own_mean_leaves_one_rank_less_and_no_blow_up():
    rows = np.random.default_rng(0).normal(size=(6, 9))
    result = invert_anchors(torch.from_numpy(rows - rows.mean(0)))
    assert result.rank == 5
    assert result.condition < 100


def test_the_tikhonov_form_is_a_regularised_inverse_without_chance():
    source, target = spaces()
    fitted = InverseRelativeProjection(regularize=1.0).fit(source, target)
    again = InverseRelativeProjection(regularize=1.0, seed=9).fit(source, target)
    near, far = (unit(part - part.mean(0)) for part in (source, target))
    gram = far.T @ far
    expected = near.T @ far @ np.linalg.inv(gram + np.trace(gram) / 16 * np.eye(16))
    np.testing.assert_allclose(fitted.matrix_, expected, atol=1e-9)
    np.testing.assert_array_equal(fitted.transform(source), again.transform(source))
    round_trip = far @ far.T @ tikhonov_anchors(torch.from_numpy(far), 1.0).matrix.numpy()
    np.testing.assert_allclose(
        fitted.gain_ / fitted.target_scale_, 1 / np.linalg.norm(round_trip, axis=1).mean()
    )


@pytest.mark.filterwarnings("ignore:the condition number")
def test_the_danger_zone_is_left_by_cutting_the_list():
    source, target = spaces(count=120, source=40, target=40)
    wild = InverseRelativeProjection(delta=0.0, subspaces=2, n_anchors=40)
    free = InverseRelativeProjection(delta=0.0, subspaces=2, n_anchors=None).fit(source, target)
    guarded = InverseRelativeProjection(delta=0.45, subspaces=2).fit(source, target)
    assert {len(each) for each in free.lists_} == {120}
    assert all(len(each) <= 20 for each in guarded.lists_)
    assert max(wild.fit(source, target).conditions_) > 3 * max(guarded.conditions_)


def test_same_seed_same_map_and_another_seed_another():
    source, target = spaces()
    first, same, other = (
        InverseRelativeProjection(seed=seed, subspaces=2).fit(source, target).matrix_ for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, same)
    assert np.abs(first - other).max() > 1e-6


def test_impossible_settings_are_one_sentence():
    source, target = spaces()
    for wrong in ({"delta": 1.5}, {"subspaces": 0}):
        with pytest.raises(OptionError, match="delta lies in"):
            InverseRelativeProjection(**wrong).fit(source, target)


@pytest.mark.parametrize("way", ["random", "farthest", "kmeans"])
def test_anchors_are_chosen_without_repeats_and_by_seed(way: str):
    rows = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
    chosen = choose_rows(rows, 40, way=way, seed=3)
    assert len(set(chosen.tolist())) == 40
    np.testing.assert_array_equal(chosen, choose_rows(rows, 40, way=way, seed=3))
    np.testing.assert_array_equal(chosen, np.sort(chosen))


def test_farthest_anchors_reach_every_cluster():
    rng = np.random.default_rng(0)
    centres = np.eye(8) * 10
    rows = np.vstack([centres[i % 8] + 0.1 * rng.normal(size=8) for i in range(400)])
    chosen = choose_rows(rows, 8, way="farthest")
    assert {int(rows[i].argmax()) for i in chosen} == set(range(8))


@pytest.mark.filterwarnings("ignore:the condition number")
@pytest.mark.parametrize("options", [{}, {"prune_on": "both"}, {"regularize": 1.0}, {"completion": True}])
def test_maps_onto_one_target_are_those_fitted_one_by_one(options: dict):
    target = spaces(seed=3)[1]
    sources = [spaces(source=width, seed=3)[0] for width in (24, 9, 16)]
    method = InverseRelativeProjection(delta=0.4, subspaces=3, **options)
    for source, shared in zip(sources, method.fit_each(sources, target), strict=True):
        alone = InverseRelativeProjection(delta=0.4, subspaces=3, **options).fit(source, target)
        np.testing.assert_array_equal(shared.transform(source), alone.transform(source))
        np.testing.assert_array_equal(shared.inverse_transform(target), alone.inverse_transform(target))
        assert shared.n_anchors_ == len(source)


def test_without_the_way_back_the_map_is_the_same_and_says_so():
    source, target = spaces()
    whole = InverseRelativeProjection(subspaces=3).fit(source, target)
    half = InverseRelativeProjection(subspaces=3, inverse=False).fit(source, target)
    np.testing.assert_array_equal(half.transform(source), whole.transform(source))
    with pytest.raises(ValueError, match="fit with inverse=True"):
        half.inverse_transform(target)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), delta=st.floats(0, 1), count=st.integers(1, 25), most=st.integers(1, 30))
def test_subspaces_that_step_together_are_those_picked_one_by_one(
    seed: int, delta: float, count: int, most: int
):
    distances = angular_distances(torch.from_numpy(np.random.default_rng(seed).normal(size=(count, 3))))
    actual = subspace_indices(distances, subspaces=4, delta=delta, most=most, seed=seed)
    for each in actual:
        expected = reference_fps(distances.numpy(), int(each[0]), delta)[:most]
        assert each.tolist() == expected


def test_nearly_dependent_anchors_are_inverted_as_the_dense_reference_does():
    rng = np.random.default_rng(0)
    rows = unit(rng.normal(size=(7, 12)))
    for distance in (1e-2, 1e-4):  # condition numbers of about 1e2 and 1e4
        near = unit(np.vstack([rows, rows[:1] + distance * rng.normal(size=(1, 12))]))
        actual = invert_anchors(torch.from_numpy(near))
        expected = np.linalg.pinv(near.T)
        np.testing.assert_allclose(actual.matrix.numpy(), expected, atol=1e-6 * np.abs(expected).max())
        np.testing.assert_allclose(actual.condition, np.linalg.cond(near), rtol=1e-6)
        assert actual.rank == 8
    twice = invert_anchors(torch.from_numpy(np.vstack([rows, rows[:1]])))
    assert twice.rank == 7
    np.testing.assert_allclose(
        twice.matrix.numpy(), np.linalg.pinv(np.vstack([rows, rows[:1]]).T, rcond=1e-6), atol=1e-9
    )


def test_irp_warns_where_the_inverse_amplifies_noise():
    x, y = paired_rows(count=400, source=30, target=30)
    with pytest.warns(TransshipWarning, match="condition number"):
        InverseRelativeProjection(delta=0.0, n_anchors=30, subspaces=2).fit(x, y)
