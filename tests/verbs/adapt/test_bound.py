"""The bound: its couplings, Theorem 7 in finite worlds, and the terms that are reported."""

from __future__ import annotations

import itertools
import json
import math
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import ot
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transship.errors import DataError, OptionError
from transship.verbs.adapt.bound import (
    Bound,
    bound_of,
    distortions,
    divergence,
    entropy,
    greedy_couplings,
    label_frequencies,
    least_distortions,
    measure_bound,
    table_distortion,
)

seeds = st.integers(0, 10_000)
EACH = 60  # rows at each of the four features of a world of rows


def simplex(*shape: int, seed: int, sharpness: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(shape[-1], sharpness), shape[:-1])


def least_entropy_coupling(first: Any, second: Any) -> np.ndarray:
    """Return the coupling [n, m] of least entropy, by listing every vertex; for a handful of labels only."""
    p, q = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    n, m = len(p), len(q)
    kept, inverses = bases(n, m)
    solved = inverses @ np.concatenate([p, q])[:-1]
    valid = (solved >= -1e-12).all(1)
    tables = np.zeros((int(valid.sum()), n * m))
    np.put_along_axis(tables, kept[valid], solved[valid].clip(min=0.0), 1)
    best: np.ndarray = tables[entropy(tables).argmin()].reshape(n, m)
    return best


@cache
def bases(n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sets of n + m − 1 entries that the sums determine, and the inverses of their systems."""
    system = np.zeros((n + m, n * m))
    for i in range(n):
        system[i, i * m : (i + 1) * m] = 1.0
    for j in range(m):
        system[n + j, j::m] = 1.0
    chosen = np.array(list(itertools.combinations(range(n * m), n + m - 1)))
    squares = system[:-1, chosen].transpose(1, 0, 2)  # the last sum follows from the others
    regular = np.abs(np.linalg.det(squares)) > 0.5  # the system is totally unimodular
    return chosen[regular], np.linalg.inv(squares[regular])


@given(seed=seeds, n=st.integers(1, 5), m=st.integers(1, 5))
def test_couplings_have_the_sums_they_should(seed: int, n: int, m: int):
    p, q = simplex(4, n, seed=seed), simplex(4, m, seed=seed + 1)
    table = greedy_couplings(p, q)
    np.testing.assert_allclose(table.sum(2), p, atol=1e-12)
    np.testing.assert_allclose(table.sum(1), q, atol=1e-12)
    assert table.min() >= 0


@given(seed=seeds)
def test_the_greedy_coupling_lies_within_a_bit_of_the_least_entropy(seed: int):
    p, q = simplex(1, 3, seed=seed), simplex(1, 2, seed=seed + 1)
    least = least_entropy_coupling(p[0], q[0])
    np.testing.assert_allclose(least.sum(1), p[0], atol=1e-9)
    np.testing.assert_allclose(least.sum(0), q[0], atol=1e-9)
    bottom, greedy = float(entropy(least.ravel())), float(entropy(greedy_couplings(p, q).ravel()))
    assert bottom - 1e-9 <= greedy <= bottom + np.log(2)
    assert bottom >= max(float(entropy(p[0])), float(entropy(q[0]))) - 1e-9
    assert float(least_distortions(p, q)[0]) <= bottom - float(entropy(p[0])) + 1e-9


def test_no_coupling_of_a_fine_grid_has_less_entropy_than_the_vertex_found():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.4])
    least = float(entropy(least_entropy_coupling(p, q).ravel()))
    for a in np.linspace(0, 0.5, 41):
        for b in np.linspace(0, 0.3, 25):
            c = 0.6 - a - b
            if 0 <= c <= 0.2:
                table = np.array([[a, 0.5 - a], [b, 0.3 - b], [c, 0.2 - c]])
                assert float(entropy(table.ravel())) >= least - 1e-9
    # 0.6 = 0.3 + 0.2 + 0.1 or 0.5 + 0.1: one row is split, and the smallest split is best
    assert least == pytest.approx(float(entropy(np.array([0.5, 0.3, 0.1, 0.1]))))


def test_distortion_is_zero_where_source_labels_decide_and_all_of_the_target_where_there_is_one():
    decided = simplex(5, 4, seed=0)
    assert distortions(decided, decided).max() < 1e-12
    assert distortions(np.ones((5, 1)), decided) == pytest.approx(entropy(decided))


def test_the_table_of_the_whole_set_is_counted_on_one_hot_predictions():
    generator = np.random.default_rng(0)
    z, codes = generator.integers(0, 4, 200), generator.integers(0, 3, 200)
    counted = 0.0
    for label in range(4):
        inside = codes[z == label]
        shares = np.bincount(inside, minlength=3) / len(inside)
        counted -= len(inside) / 200 * sum(share * np.log(share) for share in shares if share > 0)
    assert table_distortion(np.eye(4)[z], codes, 3) == pytest.approx(counted)
    assert table_distortion(np.eye(3)[codes], codes, 3) == pytest.approx(0.0, abs=1e-12)
    independent = np.repeat(simplex(1, 4, seed=1), 200, 0)
    shares = np.bincount(codes) / 200
    assert table_distortion(independent, codes, 3) == pytest.approx(float(entropy(shares)))


def test_divergence_is_zero_of_itself_and_positive_of_others():
    p, q = simplex(6, 4, seed=0), simplex(6, 4, seed=1)
    assert divergence(p, p) == pytest.approx(np.zeros(6))
    assert (divergence(p, q) > 0).all()
    assert divergence([[1.0, 0.0]], [[0.5, 0.5]]) == pytest.approx([np.log(2)])


def world(seed: int) -> dict[str, float]:
    """Return both sides of Theorem 7 in a finite world where every distribution is known.

    Four features, three source labels, two target labels, p_s = D_s. δ is Euclidean, τ_δ the least constant
    for which the source loss is Lipschitz on the four features, W₁ a linear programme, FLD the coupling of
    least entropy among all vertices, TF Eq. (48).
    """
    generator = np.random.default_rng(seed)
    points = generator.normal(size=(4, 2))
    sharpness = 10 ** generator.uniform(-1, 1)
    source_given = generator.dirichlet(np.full(3, sharpness), 4)
    target_given = generator.dirichlet(np.full(2, sharpness), 4)
    predictor = generator.dirichlet(np.full(2, 10 ** generator.uniform(-1, 1)), 4)
    source_mass, target_mass = generator.dirichlet(np.ones(4), 2)
    loss = entropy(source_given)
    pairs = [(i, j) for i in range(4) for j in range(i)]
    constant = max(abs(loss[i] - loss[j]) / np.linalg.norm(points[i] - points[j]) for i, j in pairs)
    distance = ot.emd2(target_mass, source_mass, ot.dist(points, points, "euclidean"))
    distortion = np.array(
        [
            float(entropy(least_entropy_coupling(given, wanted).ravel())) - float(entropy(given))
            for given, wanted in zip(source_given, target_given, strict=True)
        ]
    )
    fitting = divergence(target_given, predictor)
    crossed = -(target_given * np.log(predictor)).sum(1)
    return {
        "err_source": float(source_mass @ loss),
        "alignment": constant * distance,
        "distortion": float(target_mass @ distortion),
        "fitting": float(target_mass @ fitting),
        "err_target": float(target_mass @ crossed),
    }


def test_theorem_7_holds_in_random_finite_worlds():
    gaps = []
    for seed in range(250):
        result = world(seed)
        target = result.pop("err_target")
        gaps.append(sum(result.values()) - target)
    assert min(gaps) > -1e-9
    assert np.mean(gaps) < 2.0  # and it is no empty statement


def test_without_the_distortion_the_inequality_fails_in_some_worlds():
    def short(found: dict[str, float]) -> float:
        return found["err_source"] + found["alignment"] + found["fitting"] - found["err_target"]

    assert min(short(world(seed)) for seed in range(60)) < 0


def arrays(rows: int = 120, classes: int = 3, seed: int = 0) -> dict:
    generator = np.random.default_rng(seed)
    codes = generator.integers(0, classes, rows)
    features = 4 * np.eye(classes, 5)[codes] + generator.normal(size=(rows, 5))
    logits = 2 * np.eye(classes)[codes] + generator.normal(size=(rows, classes))
    predicted = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return {
        "err_source": 0.7,
        "omega": 0.3,
        "norms": generator.random(50),
        "source_features": generator.normal(size=(300, 5)),
        "features": features,
        "given": generator.dirichlet(np.ones(4), rows),
        "predicted": predicted,
        "codes": codes,
    }


def test_terms_are_what_they_say():
    terms = arrays()
    bound = bound_of(**terms)
    assert bound.err_target == pytest.approx(
        -np.log(terms["predicted"][np.arange(120), terms["codes"]]).mean()
    )
    assert bound.alignment == pytest.approx(0.3 * bound.distance)
    assert bound.total == pytest.approx(0.7 + bound.alignment + bound.distortion + bound.fitting)
    assert bound.lipschitz == pytest.approx(np.quantile(terms["norms"], 0.99))
    assert bound.distortion_least <= bound.distortion_greedy <= bound.distortion_least + np.log(2) + 1.5
    assert bound.distortion <= bound.entropy_target + 1e-9
    assert (
        bound.distance > bound.distance_source
    )  # features of other places lie further than source from source
    assert bound.holds == (bound.err_target <= bound.total)
    assert sum(bound.bars().values()) == pytest.approx(bound.total)


def test_a_near_feature_counts_and_no_row_is_one_hot():
    terms = arrays()
    shares = label_frequencies(terms["features"], terms["codes"], 3, 10)
    np.testing.assert_allclose(shares.sum(1), 1.0)
    assert shares.min() > 0
    assert (shares.argmax(1) == terms["codes"]).mean() > 0.9


def test_the_same_seed_gives_the_same_terms_and_they_are_json():
    first, again = (bound_of(**arrays(), seed=5).to_dict() for _ in "ab")
    assert json.dumps(first) == json.dumps(again)
    assert {"total", "holds", "estimators", "caveats", "gap"} <= set(first)


def adapted(terms: dict) -> SimpleNamespace:
    numbered = lambda rows: np.asarray(rows)[:, 0].astype(int)  # noqa: E731
    return SimpleNamespace(
        source=SimpleNamespace(
            features=torch.as_tensor(terms["source_features"]),
            error=0.7,
            omega=0.3,
            norms=torch.as_tensor(terms["norms"]),
        ),
        base=None,
        targets=SimpleNamespace(classes=np.arange(3), label_codes=np.asarray, scores=lambda outputs: outputs),
        outputs=lambda rows: terms["predicted"][numbered(rows)],
        embedded=lambda rows: terms["features"][numbered(rows)],
        source_probabilities=lambda rows: terms["given"][numbered(rows)],
        source_gradient_norms=lambda rows: np.full(len(rows), 0.1),
    )


def test_a_fitted_model_is_measured_through_its_own_functions():
    terms = arrays()
    rows = np.arange(120.0)[:, None]
    bound = measure_bound(adapted(terms), rows, terms["codes"])  # type: ignore[arg-type]
    assert bound == bound_of(**{**terms, "norms": np.concatenate([terms["norms"], np.full(120, 0.1)])})


def test_what_has_no_bound_is_refused():
    terms = arrays()
    rows, model = np.arange(120.0)[:, None], adapted(terms)
    model.source = None
    with pytest.raises(OptionError, match="no source head"):
        measure_bound(model, rows, terms["codes"])  # type: ignore[arg-type]
    with pytest.raises(DataError, match="2 rows"):
        bound_of(
            **{
                key: value[:2] if key in ("features", "given", "predicted", "codes") else value
                for key, value in terms.items()
            }
        )
    model = adapted(terms)
    model.targets.classes = None
    with pytest.raises(OptionError, match="cross-entropies"):
        measure_bound(model, rows, terms["codes"])  # type: ignore[arg-type]


def rows_of_a_world(seed: int) -> tuple[Bound, dict[str, float]]:
    """Return the reported terms of a finite world, and what they should be, by plain sums.

    Four features of equal mass on both sides, three source labels with p_s = D_s, two target labels. Rows
    repeat, so that their frequencies are the distributions; ω is the least Lipschitz constant there.
    """
    generator = np.random.default_rng(seed)
    points, moved = generator.normal(size=(4, 2)), generator.normal(0, 0.3, 2)
    given = generator.dirichlet(np.full(3, 10 ** generator.uniform(-1, 1)), 4)
    first = generator.integers(5, EACH - 5, 4)  # rows of the first target label
    wanted = np.stack([first, EACH - first], 1) / EACH
    predictor = generator.dirichlet(np.ones(2), 4)
    place = np.repeat(np.arange(4), EACH)
    codes = np.concatenate([[0] * count + [1] * (EACH - count) for count in first])
    losses = [-sum(p * math.log(p) for p in row) for row in given]
    ends = [(points[i], losses[i]) for i in range(4)] + [(points[i] + moved, losses[i]) for i in range(4)]
    omega = max(
        abs(a - b) / np.linalg.norm(x - y) for x, a in ends for y, b in ends if np.linalg.norm(x - y) > 1e-9
    )
    bound = bound_of(
        err_source=float(np.mean(losses)),
        omega=float(omega),
        norms=np.array([omega]),
        source_features=np.repeat(points + moved, 2 * EACH, 0),
        features=points[place],
        given=given[place],
        predicted=predictor[place],
        codes=codes,
        neighbours=EACH - 1,
    )
    joint = np.array([[np.mean(given[:, z] * wanted[:, t]) for t in range(2)] for z in range(3)])
    expected = {
        "distortion": -sum(
            joint[z, t] * math.log(joint[z, t] / joint[z].sum()) for z in range(3) for t in (0, 1)
        ),
        "fitting": float(np.mean((wanted * np.log(wanted / predictor)).sum(1))),
        "err_target": float(-np.mean((wanted * np.log(predictor)).sum(1))),
    }
    return bound, expected


@pytest.mark.parametrize("seed", range(25))
def test_theorem_7_holds_in_finite_worlds_with_the_terms_that_are_reported(seed: int):
    result, expected = rows_of_a_world(seed)
    assert result.distortion == pytest.approx(expected["distortion"], abs=1e-9)
    assert result.err_target == pytest.approx(expected["err_target"], abs=1e-9)
    assert result.fitting == pytest.approx(
        expected["fitting"], abs=0.02
    )  # a pseudo-count of labels is spread
    assert result.holds
    assert result.err_target <= result.total_greedy + 0.02
    assert result.distortion_least - 1e-9 <= result.distortion_greedy <= result.distortion + math.log(2)
