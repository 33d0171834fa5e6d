"""Every method against its equation, written densely in a few lines, and a property of its paper."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transship.errors import OptionError
from transship.registry import build_method
from transship.verbs.merge.maths import operands as operands_module
from transship.verbs.merge.maths.operands import Operands

Make = Callable[..., Operands]
SHAPE = (7, 12)


def gaussian(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def merged(name: str, given: Operands, **fields: Any) -> np.ndarray:
    method = build_method("merge", name, fields)
    parts = [np.array(part) for part in method.merge(given)]
    return np.concatenate(parts).reshape(given.shape)


@pytest.fixture
def inputs() -> tuple[np.ndarray, list[np.ndarray]]:
    base = gaussian(*SHAPE, seed=0)
    return base, [base + 0.1 * gaussian(*SHAPE, seed=seed) for seed in (1, 2, 3)]


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)


def top(update: np.ndarray, count: int) -> np.ndarray:
    """The mask of the `count` largest magnitudes, the lower index first."""
    order = np.argsort(-np.abs(update).ravel(), kind="stable")[:count]
    mask = np.zeros(update.size, bool)
    mask[order] = True
    return mask.reshape(update.shape)


def elected(parts: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sum and weight of the entries of `parts` [models, …] that have the sign of the sum."""
    sign = np.where(parts.sum(axis=0) >= 0, 1, -1)
    agree = np.sign(parts) == sign
    shaped = weights.reshape(-1, *[1] * (parts.ndim - 1))
    return (parts * agree).sum(axis=0), (shaped * agree).sum(axis=0)


def over(total: np.ndarray, divisor: np.ndarray) -> np.ndarray:
    return total / np.where(divisor == 0, 1, divisor)


def test_linear_is_the_weighted_mean(operands: Make, inputs: Any):
    _, models = inputs
    given = operands(models, weight=[1.0, 2.0, 5.0])
    close(merged("linear", given), (models[0] + 2 * models[1] + 5 * models[2]) / 8)
    close(merged("linear", given, normalize=False), models[0] + 2 * models[1] + 5 * models[2])


def test_linear_with_one_model_is_that_model(operands: Make, inputs: Any):
    _, models = inputs
    for weight in (1.0, 0.3, -7.1, 1e-30):
        found = merged("linear", operands(models[:1], weight=weight), normalize=True)
        assert found.tobytes() == models[0].tobytes()
    given = operands(models[:1], weight=0.3)
    np.testing.assert_array_equal(merged("linear", given, normalize=False), models[0] * np.float32(0.3))


def test_linear_refuses_weights_that_sum_to_nothing(operands: Make, inputs: Any):
    with pytest.raises(OptionError, match="sum to 0"):
        merged("linear", operands(inputs[1], weight=[1.0, -1.0, 0.0]))


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
def test_slerp_is_the_formula_on_the_flattened_tensors(operands: Make, t: float):
    base, model = gaussian(*SHAPE, seed=0), gaussian(*SHAPE, seed=1)
    angle = np.arccos(np.sum(base * model) / np.linalg.norm(base) / np.linalg.norm(model))
    expected = (np.sin((1 - t) * angle) * base + np.sin(t * angle) * model) / np.sin(angle)
    close(merged("slerp", operands([model], base), t=t), expected)


@given(seed=st.integers(0, 1000), t=st.floats(0, 1))
def test_slerp_of_unit_vectors_stays_on_the_sphere(seed: int, t: float):
    rows = gaussian(2, 30, seed=seed)
    base, model = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    make = Operands("x", (30,), [lambda a, b: model[a:b]], lambda a, b: base[a:b])
    assert np.linalg.norm(merged("slerp", make, t=t)) == pytest.approx(1.0, abs=1e-5)


def test_slerp_of_tensors_in_line_is_the_straight_line(operands: Make, inputs: Any):
    base, _ = inputs
    close(merged("slerp", operands([2 * base], base), t=0.25), 1.25 * base)
    close(merged("slerp", operands([np.zeros_like(base)], base), t=0.25), base * np.sin(0.75 * np.pi / 2))


@pytest.mark.parametrize(("flatten", "rows"), [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize("with_base", [False, True])
def test_nuslerp_is_slerp_along_an_axis(
    operands: Make, inputs: Any, flatten: bool, rows: bool, with_base: bool
):
    base, (one, other, _) = inputs
    origin = base if with_base else np.zeros_like(base)
    axis = None if flatten else 0 if rows else 1
    first, second = one - origin, other - origin
    dot, a, b = (
        np.sum(x * y, axis=axis, keepdims=True)
        for x, y in ((first, second), (first, first), (second, second))
    )
    angle = np.arccos(dot / np.sqrt(a * b))
    expected = origin + (np.sin(0.75 * angle) * first + np.sin(0.25 * angle) * second) / np.sin(angle)
    given = operands([one, other], base if with_base else None, weight=[3.0, 1.0])
    np.testing.assert_allclose(
        merged("nuslerp", given, nuslerp_flatten=flatten, nuslerp_row_wise=rows), expected, atol=1e-4
    )


def test_multislerp_is_one_step_in_the_tangent_space(operands: Make, inputs: Any):
    base, models = inputs
    weights = np.array([0.5, 0.3, 0.2])
    flat = np.stack([(model - base).ravel() for model in models])
    norms = np.linalg.norm(flat, axis=1)
    units = flat / norms[:, None]
    mean = weights @ units / np.linalg.norm(weights @ units)
    tangent = weights @ (units - (units @ mean)[:, None] * mean)
    length = np.linalg.norm(tangent)
    expected = base + (
        (mean * np.cos(length) + tangent * np.sin(length) / length) * (weights @ norms)
    ).reshape(SHAPE)
    close(merged("multislerp", operands(models, base, weight=[5.0, 3.0, 2.0])), expected)


def test_multislerp_refuses_directions_that_cancel(operands: Make, inputs: Any):
    base, (one, *_) = inputs
    with pytest.raises(OptionError, match="cancel"):
        merged("multislerp", operands([one, one], weight=[1.0, -1.0]))
    opposite = operands([base + one, base - one], base, weight=[1.0, 1.0])
    close(merged("multislerp", opposite), base)


def test_karcher_is_the_point_of_least_squared_angle(operands: Make, inputs: Any):
    _, models = inputs
    found = merged("karcher", operands(models), max_iter=100, tol=1e-9).ravel().astype(np.float64)
    flat = np.stack([model.ravel() for model in models]).astype(np.float64)
    units = flat / np.linalg.norm(flat, axis=1)[:, None]
    assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(flat, axis=1).mean(), rel=1e-6)

    def cost(point: np.ndarray) -> float:
        return float(np.sum(np.arccos(np.clip(units @ point / np.linalg.norm(point), -1, 1)) ** 2))

    for seed in range(20):
        assert cost(found) <= cost(found + 1e-3 * gaussian(found.size, seed=seed)) + 1e-12


def test_karcher_of_one_model_is_that_model(operands: Make, inputs: Any):
    np.testing.assert_array_equal(merged("karcher", operands(inputs[1][:1])), inputs[1][0])


def test_task_arithmetic_adds_weighted_updates(operands: Make, inputs: Any):
    base, models = inputs
    expected = base + 0.9 * sum(w * (m - base) for w, m in zip((0.5, -0.2, 0.1), models, strict=True))
    close(
        merged("task-arithmetic", operands(models, base, weight=[0.5, -0.2, 0.1], density=1.0), scale=0.9),
        expected,
    )


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [0.7, -0.4, 0.2]])
@pytest.mark.parametrize("normalize", [True, False])
def test_ties_is_trim_elect_and_merge(operands: Make, inputs: Any, weights: list[float], normalize: bool):
    base, models = inputs
    count = int(0.4 * base.size)
    updates = np.stack(
        [(m - base) * top(m - base, count) * np.float32(w) for m, w in zip(models, weights, strict=True)]
    )
    total, divisor = elected(updates, np.array(weights))
    expected = base + (over(total, divisor) if normalize else total)
    given = operands(models, base, weight=weights, density=0.4)
    close(merged("ties", given, normalize=normalize), expected)


@given(seed=st.integers(0, 10_000), density=st.floats(0.05, 0.95), chunk=st.sampled_from([5, 16, 1 << 17]))
def test_ties_keeps_no_trimmed_entry_and_none_that_opposes_the_elected_sign(
    seed: int, density: float, chunk: int
):
    # few distinct magnitudes, so that many entries tie at the threshold
    updates = np.random.default_rng(seed).integers(-3, 4, (3, 60)).astype(np.float32)
    kept = np.stack([update * top(update, max(1, int(density * 60))) for update in updates])
    total, divisor = elected(kept, np.ones(3))
    given = Operands(
        "x",
        (60,),
        [lambda a, b, one=one: one[a:b] for one in updates],
        lambda a, b: np.zeros(b - a, np.float32),
        {"weight": [1.0] * 3, "density": [density] * 3},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operands_module, "CHUNK", chunk)
        found = merged("ties", given)
    np.testing.assert_allclose(found, over(total, divisor), rtol=1e-6)
    assert (found[(kept == 0).all(axis=0)] == 0).all()
    assert (np.sign(found) * np.sign(kept.sum(axis=0)) >= 0).all()


def test_global_ties_trims_over_the_whole_model(operands: Make):
    base = [np.zeros((4, 9), np.float32), np.zeros(50, np.float32)]
    tuned = [gaussian(4, 9, seed=1), 3 * gaussian(50, seed=2)]
    tensors = [operands([t], b, weight=1.0, density=0.3) for t, b in zip(tuned, base, strict=True)]
    method = build_method("merge", "ties", {"trim": "global"})
    assert method.wants_survey
    thresholds = method.survey(lambda: iter(tensors))
    everything = np.concatenate([tensor.ravel() for tensor in tuned])
    expected = np.sort(np.abs(everything))[::-1][int(0.3 * everything.size) - 1]
    assert thresholds == [pytest.approx(float(expected), abs=0)]
    for tensor, values in zip(tensors, tuned, strict=True):
        surveyed = dataclasses.replace(tensor, survey=thresholds)
        found = np.concatenate(list(method.merge(surveyed))).reshape(values.shape)
        np.testing.assert_array_equal(found, values * (np.abs(values) >= expected))


def test_global_ties_needs_one_density(operands: Make):
    tensors = [operands([np.ones(4)], np.zeros(4), weight=1.0, density=density) for density in (0.5, 0.6)]
    with pytest.raises(OptionError, match="density differs"):
        build_method("merge", "ties", {"trim": "global"}).survey(lambda: iter(tensors))


@pytest.mark.parametrize(("name", "elects"), [("dare-linear", False), ("dare-ties", True)])
def test_dare_drops_at_random_and_restores_the_norm_or_the_mean(operands: Make, name: str, elects: bool):
    base, model = gaussian(200, 100, seed=0), gaussian(200, 100, seed=1)
    given = operands([model], base, weight=1.0, density=0.3)
    plain = merged(name, given, rescale=False) - base
    kept = np.abs(plain) > 1e-6
    assert kept.mean() == pytest.approx(0.3, abs=0.02)
    close(plain[kept], (model - base)[kept])
    by_norm = merged(name, given) - base
    assert np.abs(by_norm).sum() == pytest.approx(np.abs(model - base).sum(), rel=1e-4)
    np.testing.assert_allclose(merged(name, given, rescale_by="density") - base, plain / 0.3, atol=1e-5)
    close(merged(name, operands([model], base, weight=1.0, density=1.0)), model)


def test_dare_keeps_the_expectation(operands: Make):
    """With 1/density the mean over many draws is the update itself: the claim of the paper's Theorem."""
    base, model = np.zeros(2000, np.float32), np.ones(2000, np.float32)
    draws = [
        merged(
            "dare-linear", operands([model], base, weight=1.0, density=0.4, seed=seed), rescale_by="density"
        )
        for seed in range(50)
    ]
    assert np.mean(draws) == pytest.approx(1.0, abs=0.02)


def test_random_draws_depend_on_seed_tensor_and_model_and_on_nothing_else(operands: Make, monkeypatch: Any):
    base, models = np.zeros((30, 40), np.float32), [np.ones((30, 40), np.float32)] * 2
    first = merged("dare-linear", operands(models, base, weight=[1.0, 0.0], density=0.5))
    np.testing.assert_array_equal(
        first, merged("dare-linear", operands(models, base, weight=[1.0, 0.0], density=0.5))
    )
    for changed in (
        operands(models, base, weight=[1.0, 0.0], density=0.5, seed=1),
        operands(models, base, weight=[1.0, 0.0], density=0.5, name="other"),
        operands(models, base, weight=[0.0, 1.0], density=0.5),
    ):
        assert not np.array_equal(first, merged("dare-linear", changed))
    monkeypatch.setattr(operands_module, "CHUNK", 100)
    np.testing.assert_array_equal(
        first, merged("dare-linear", operands(models, base, weight=[1.0, 0.0], density=0.5))
    )


@pytest.mark.parametrize("name", ["della", "della-linear"])
def test_della_keeps_large_entries_more_often(operands: Make, name: str):
    base, model = np.zeros((400, 50), np.float32), np.tile(np.arange(1.0, 51.0, dtype=np.float32), (400, 1))
    given = operands([model], base, weight=1.0, density=0.5, epsilon=0.2)
    kept = (merged(name, given, rescale=False) != 0).mean(axis=0)
    expected = 0.3 + 0.4 * np.arange(50) / 49
    np.testing.assert_allclose(kept, expected, atol=0.12)
    assert np.corrcoef(kept, expected)[0, 1] > 0.9
    unbiased = merged(name, given, rescale_by="density")
    np.testing.assert_allclose(unbiased.mean(axis=0) / model[0], 1.0, atol=0.35)
    assert np.abs(merged(name, given)).sum() == pytest.approx(model.sum(), rel=1e-4)


def test_della_refuses_probabilities_outside_the_unit_interval(operands: Make):
    with pytest.raises(OptionError, match="smaller epsilon"):
        merged("della", operands([np.ones((2, 3))], np.zeros((2, 3)), weight=1.0, density=0.9, epsilon=0.15))


@pytest.mark.parametrize(("name", "elects"), [("breadcrumbs", False), ("breadcrumbs-ties", True)])
@pytest.mark.parametrize(("density", "gamma"), [(0.5, 0.1), (0.95, 0.2), (1.0, 0.1)])
def test_breadcrumbs_drop_outliers_and_small_entries(
    operands: Make, inputs: Any, name: str, elects: bool, density: float, gamma: float
):
    base, models = inputs
    count = int(density * base.size)
    dropped = min(int(gamma * base.size), base.size - count)
    masks = [top(m - base, dropped + count) & ~top(m - base, dropped) for m in models]
    updates = np.stack([(m - base) * mask * np.float32(0.5) for m, mask in zip(models, masks, strict=True)])
    total = elected(updates, np.full(3, 0.5))[0] if elects else updates.sum(axis=0)
    close(merged(name, operands(models, base, weight=0.5, density=density, gamma=gamma)), base + total)


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_sce_selects_calculates_and_erases(operands: Make, inputs: Any, share: float):
    base, models = inputs
    updates = np.stack([model - base for model in models])
    variance = updates.var(axis=0)
    selected = updates * top(variance, int(share * base.size))
    weights = (selected**2).mean(axis=(1, 2))
    weights = weights / weights.sum()
    agree = np.sign(selected) == np.where(selected.sum(axis=0) >= 0, 1, -1)
    shaped = weights[:, None, None] * agree
    expected = base + (selected * shaped).sum(axis=0) / np.maximum(shaped.sum(axis=0), 1e-6)
    close(merged("sce", operands(models, base), select_topk=share), expected)


def test_ram_adds_unique_changes_whole_and_averages_shared_ones(operands: Make, inputs: Any):
    base, models = inputs
    updates = np.stack([np.where(np.abs(model - base) > 0.1, model - base, 0) for model in models])
    count = (updates != 0).sum(axis=0)
    close(
        merged("ram", operands(models, base), epsilon=0.1), base + updates.sum(axis=0) / np.maximum(count, 1)
    )
    alone, shared = (updates != 0) & (count == 1), (updates != 0) & (count > 1)
    ratio = shared.sum(axis=(1, 2)) / alone.sum(axis=(1, 2))
    factor = 1 + 0.3 * np.minimum(ratio, 0.5)
    expected = base + (updates * np.where(alone, factor[:, None, None], 1 / np.maximum(count, 1))).sum(axis=0)
    close(merged("ramplus-tl", operands(models, base), epsilon=0.1, r=0.3, alpha=0.5), expected)


@pytest.mark.parametrize("rows", [False, True])
def test_model_stock_moves_by_the_angle_between_the_updates(operands: Make, inputs: Any, rows: bool):
    base, models = inputs
    updates = [(model - base) if rows else (model - base).reshape(1, -1) for model in models]
    cosines = [
        np.sum(a * b, axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        for a, b in itertools.combinations(updates, 2)
    ]
    cosine = np.mean(cosines, axis=0)
    share = (3 * cosine / (1 + 2 * cosine))[:, None]
    expected = share * np.mean(models, axis=0).reshape(updates[0].shape) + (1 - share) * base.reshape(
        updates[0].shape
    )
    close(merged("model-stock", operands(models, base), filter_wise=rows), expected.reshape(SHAPE))


def test_model_stock_of_equal_models_is_that_model(operands: Make, inputs: Any):
    base, (one, *_) = inputs
    close(merged("model-stock", operands([one, one], base)), one)


def test_nearswap_takes_over_what_is_near(operands: Make, inputs: Any):
    base, (model, *_) = inputs
    share = np.clip(0.05 / np.maximum(np.abs(base - model), 1e-6), 0, 1)
    found = merged("nearswap", operands([model], base), t=0.05)
    close(found, share * model + (1 - share) * base)
    near = np.abs(base - model) <= 0.05
    close(found[near], model[near])


def test_arcee_fusion_takes_over_what_stands_out(operands: Make, inputs: Any):
    base, (model, *_) = inputs

    def softmax(rows: np.ndarray) -> np.ndarray:
        powers = np.exp(rows.astype(np.float64))
        return powers / powers.sum(axis=-1, keepdims=True) + 1e-8

    tuned, origin = softmax(model), softmax(base)
    importance = np.abs(model - base) * np.sum(tuned * np.log(tuned / origin), axis=-1, keepdims=True)
    low, middle, high = (np.sort(importance.ravel())[int(s * (base.size - 1))] for s in (0.25, 0.5, 0.75))
    expected = np.where(importance >= middle + 1.5 * (high - low), model, base)
    close(merged("arcee-fusion", operands([model], base)), expected)
    assert 0 < (expected != base).mean() < 0.5


def test_passthrough_copies_or_scales(operands: Make, inputs: Any):
    _, (model, *_) = inputs
    np.testing.assert_array_equal(merged("passthrough", operands([model], scale=[None])), model)
    close(merged("passthrough", operands([model], scale=[0.5])), model / 2)
