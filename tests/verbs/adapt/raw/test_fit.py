import time

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV

from transship.errors import DataError, OptionError
from transship.geometry.ridge import STRENGTHS
from transship.numerics import derive_seed
from transship.verbs.adapt.raw.fit import fit_raw, raw_baselines, raw_names
from transship.verbs.adapt.raw.models import RawModel
from transship.verbs.adapt.rows.metrics import METRICS


def classes(rows: int = 120, channels: int = 1, length: int = 32, count: int = 3, seed: int = 0):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, count, rows)
    centres = np.random.default_rng(99).normal(size=(count, channels, length))
    return (centres[labels] + generator.normal(size=(rows, channels, length))).astype(np.float32), labels


def waves(rows: int, seed: int):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, rows)
    phase = generator.random((rows, 1)) + 3 * np.arange(96) / 96
    wave = np.where(labels[:, None] == 0, np.sin(2 * np.pi * phase), np.sign(np.sin(2 * np.pi * phase)))
    return wave[:, None].astype(np.float32), labels


def test_ridge_agrees_with_scikit_learn_at_its_own_penalty():
    inputs, _ = classes(rows=50, length=8)
    targets = inputs[:, 0] @ np.arange(8.0) + np.random.default_rng(1).normal(size=50)
    model = fit_raw("ridge", inputs, targets, task="regression")
    flat = inputs.reshape(50, -1)
    scaled = (flat - flat.mean(0)) / flat.std(0)
    centred = scaled - scaled.mean(0)
    grid = np.array(STRENGTHS) * np.linalg.eigvalsh(centred.T @ centred).mean()
    expected = RidgeCV(alphas=grid).fit(scaled, targets)
    assert model.details["lambda"] == pytest.approx(expected.alpha_, rel=1e-4)
    np.testing.assert_allclose(model.predict(inputs), expected.predict(scaled), atol=1e-4)


@pytest.mark.parametrize("count", [2, 4])
def test_logistic_regression_agrees_with_scikit_learn(count: int):
    inputs, labels = classes(length=6, count=count)
    model = fit_raw("logistic", inputs, labels, task="classification")
    flat = inputs.reshape(len(inputs), -1)
    scaled = (flat - flat.mean(0)) / flat.std(0)
    expected = LogisticRegression(max_iter=200).fit(scaled, labels).predict_proba(scaled)
    np.testing.assert_allclose(model.scores(inputs), expected, atol=1e-4)


def test_linear_models_fail_on_a_random_phase_where_random_convolutions_do_not():
    by_name = {
        result.name: result.validation
        for result in raw_baselines(*waves(160, 0), *waves(200, 1), task="classification")
    }
    assert min(by_name["logistic"], by_name["ridge"]) > 0.3
    assert by_name["rocket"] < 0.05


def test_baselines_come_best_first_with_seconds_and_models():
    outcome = raw_baselines(*classes(seed=0), *classes(seed=1), task="classification", kernels=200)
    assert [result.name for result in outcome][-1] == "constant"
    assert {result.name for result in outcome} == set(raw_names("classification"))
    figures = [result.validation for result in outcome]
    assert figures == sorted(figures)
    best, (inputs, labels) = outcome[0], classes(seed=1)
    assert METRICS["error"](labels, best.model.predict(inputs)) == best.validation
    assert all(result.seconds >= 0 for result in outcome)


@pytest.mark.parametrize("shape", [(20,), (3, 20), (2, 9, 9)])
@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
def test_every_baseline_takes_rows_series_and_grids(task: str, shape: tuple[int, ...]):
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(60, *shape)).astype(np.float32)
    signal = inputs.reshape(60, -1)[:, :3]
    targets = {
        "classification": signal.argmax(1),
        "multilabel": (signal > 0).astype(int),
        "regression": signal[:, 0],
    }[task]
    for result in raw_baselines(inputs, targets, inputs[:30], targets[:30], task=task, kernels=40):
        predictions = result.model.predict(inputs)
        assert predictions.shape == targets.shape
        scores = result.model.scores(inputs)
        if task == "regression":
            assert scores is None
        else:
            assert scores is not None
            assert scores.min() >= 0
            if task == "classification":
                np.testing.assert_allclose(scores.sum(1), 1.0, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 24), (2, 24), (1, 10, 10)])
def test_dense_targets_come_back_in_their_shape(shape: tuple[int, ...]):
    inputs = np.random.default_rng(0).normal(size=(150, *shape)).astype(np.float32)
    targets = 2 * inputs + 1
    outcome = raw_baselines(inputs, targets, inputs, targets, task="dense", kernels=64)
    assert {result.name for result in outcome} == {"constant", "ridge", "rocket"}
    for result in outcome:
        assert result.model.predict(inputs).shape == targets.shape
    figures = {result.name: result.validation for result in outcome}
    assert figures["ridge"] < 0.2
    assert figures["rocket"] < 0.5 * figures["constant"]
    flat = raw_baselines(inputs, targets[:, 0], inputs, targets[:, 0], task="dense", kernels=32)
    assert flat[0].model.predict(inputs).shape == targets[:, 0].shape


def test_a_dense_target_on_other_places_has_no_convolutions():
    inputs = np.random.default_rng(0).normal(size=(20, 1, 16)).astype(np.float32)
    outcome = raw_baselines(inputs, inputs[:, :, :5], inputs, inputs[:, :, :5], task="dense")
    assert {result.name for result in outcome} == {"constant", "ridge"}


def symbols(rows: int, seed: int, length: int = 24) -> tuple[np.ndarray, np.random.Generator]:
    generator = np.random.default_rng(seed)
    return generator.integers(0, 4, (rows, length)), generator


def counted(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Symbols whose class is how often one of them occurs, anywhere."""
    ids, generator = symbols(rows, seed)
    labels = generator.integers(0, 2, rows)
    ids[(generator.random(ids.shape) < 0.4) & (labels == 1)[:, None]] = 2
    return ids, labels


def placed(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Symbols whose class stands at one place."""
    ids, _ = symbols(rows, seed)
    return ids, (ids[:, 7] // 2).astype(int)


def ordered(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Symbols of equal counts and places; in one class 1 and 2 are neighbours, in either order."""
    ids, generator = symbols(rows, seed, length=12)
    labels, ids = generator.integers(0, 2, rows), 3 * (ids // 2)
    for row, label in enumerate(labels):
        first = generator.integers(0, 12)
        second = (first + (generator.choice([1, 11]) if label else generator.integers(3, 10))) % 12
        ids[row, [first, second]] = [1, 2]
    return ids, labels


@pytest.mark.parametrize(
    ("problem", "sees", "blind"),
    [
        (counted, {"ngrams", "logistic", "rocket"}, set()),
        (placed, {"logistic", "ridge", "forest"}, {"ngrams"}),
        (ordered, {"ngrams", "rocket"}, {"logistic", "ridge"}),
    ],
)
def test_symbols_are_decided_by_what_a_raw_model_of_them_sees(problem, sees: set[str], blind: set[str]):
    (ids, labels), (fresh, truth) = problem(300, 0), problem(300, 1)
    one_hot = [np.eye(4, dtype=np.float32)[part].transpose(0, 2, 1) for part in (ids, fresh)]
    by_name = {
        result.name: result.validation
        for result in raw_baselines(one_hot[0], labels, one_hot[1], truth, task="classification", tokens=True)
    }
    assert set(by_name) == {"constant", "logistic", "ridge", "ngrams", "rocket", "forest"}
    assert max(by_name[name] for name in sees) < 0.15
    assert min((by_name[name] for name in blind), default=0.5) > 0.3


def test_symbols_of_many_kinds_are_counted_and_their_places_left_out():
    assert raw_names("classification", (1024, 60), tokens=True) == ("constant", "ngrams", "rocket")


@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
def test_a_forest_says_what_scikit_learns_does_and_what_trees_say_of_rows_they_have_not_seen(task: str):
    inputs, labels = classes()
    targets = {
        "classification": labels,
        "multilabel": np.eye(3, dtype=int)[labels],
        "regression": inputs[:, 0, 3],
    }[task]
    model = fit_raw("forest", inputs, targets, task=task)
    same = RandomForestRegressor(
        300,
        max_features=1 / 3 if task == "regression" else "sqrt",
        oob_score=True,
        random_state=derive_seed(0, "raw forest") % 2**32,
    )
    flat = inputs.reshape(len(inputs), -1)
    same.fit(flat, np.eye(3)[labels] if task == "classification" else targets)
    fresh = classes(seed=3)[0]
    expected = same.predict(fresh.reshape(len(fresh), -1))
    scores = model.scores(fresh) if task != "regression" else model.outputs(fresh)
    np.testing.assert_allclose(scores.reshape(expected.shape), expected, atol=5e-3)
    unseen = model.unseen(inputs)
    if task == "regression":
        np.testing.assert_allclose(unseen.reshape(-1), same.oob_prediction_.reshape(-1), atol=1e-6)
    else:
        assert ((unseen > np.log(1 / 3)) == (same.oob_prediction_ > 1 / 3)).mean() > 0.9


def test_missing_values_are_filled_with_the_mean_of_their_place():
    inputs, labels = classes()
    holes = inputs.copy()
    holes[::7, 0, 3] = np.nan
    holes[:, 0, 5] = np.nan
    model = fit_raw("ridge", holes, labels, task="classification")
    assert np.isfinite(model.outputs(holes)).all()
    assert model.fill[0, 3] == pytest.approx(np.nanmean(holes[:, 0, 3]), rel=1e-5)
    assert model.fill[0, 5] == 0.0


def test_a_class_that_training_lacks_gets_an_output():
    inputs, labels = classes(count=3)
    for name in raw_names("classification"):
        model = fit_raw(name, inputs, labels, task="classification", classes=5, kernels=20)
        assert model.scores(inputs).shape == (120, 5)
        assert model.predict(inputs).max() < 3


@pytest.mark.parametrize("name", ["constant", "logistic", "ridge", "rocket", "minirocket", "forest"])
def test_a_model_comes_back_from_plain_arrays(name: str):
    inputs, labels = classes()
    model = fit_raw(name, inputs, labels, task="classification", kernels=30)
    back = RawModel.from_state({key: np.copy(array) for key, array in model.state().items()})
    np.testing.assert_array_equal(back.scores(inputs), model.scores(inputs))


def test_the_same_seed_gives_the_same_bytes():
    inputs, labels = classes()
    first, again = (
        fit_raw("rocket", inputs, labels, task="classification", kernels=50, seed=4) for _ in "ab"
    )
    assert first.weight.tobytes() == again.weight.tobytes()


def test_probabilities_of_ridge_are_sharpened_to_fit_rows_left_out():
    inputs, labels = classes()
    model = fit_raw("ridge", inputs, labels, task="classification")
    fresh, truth = classes(seed=5)
    sharp = METRICS["cross-entropy"](truth, model.predict(fresh), model.scores(fresh))
    plain = np.exp(model.outputs(fresh)) / np.exp(model.outputs(fresh)).sum(1, keepdims=True)
    assert sharp < METRICS["cross-entropy"](truth, model.predict(fresh), plain)


@pytest.mark.slow
def test_four_times_the_kernels_cost_about_four_times_the_work():
    inputs, labels = waves(300, 0)

    def spent(kernels: int) -> float:
        start = time.process_time()
        fit_raw("rocket", inputs, labels, task="classification", kernels=kernels).predict(inputs)
        return time.process_time() - start

    spent(500)  # what is loaded once is not the kernels' work
    assert spent(8_000) < 8 * spent(2_000)  # work that grew with the square would be 16 times as much


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"targets": np.zeros(120, int)}, "one class"),
        ({"targets": np.zeros(120)}, "no classes"),
        ({"targets": np.zeros(3, int)}, "120 inputs and 3 targets"),
        ({"inputs": np.full((120, 1, 4), np.inf)}, "infinite"),
        ({"inputs": np.zeros(120)}, "neither rows, series nor grids"),
        ({"name": "rockett"}, "did you mean 'rocket'"),
        ({"task": "sorting"}, "no task 'sorting'"),
        ({"task": "regression", "targets": np.full(120, np.nan)}, "targets hold NaN"),
        ({"task": "regression", "name": "logistic"}, "no raw baseline of regression 'logistic'"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_a_sentence(change: dict, words: str):
    inputs, labels = classes()
    asked = {"name": "ridge", "inputs": inputs, "targets": labels, "task": "classification"} | change
    with pytest.raises((DataError, OptionError), match=words):
        fit_raw(**asked)
