from types import SimpleNamespace

import numpy as np
import pytest
import torch

from transship.errors import DataError, OptionError
from transship.geometry import wasserstein_exact
from transship.verbs.adapt.bound.coupling import divergence, entropy, least_entropy_coupling
from transship.verbs.adapt.bound.terms import bound_of, label_frequencies, measure_bound


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
    tensor, masses = torch.tensor(points), (torch.tensor(source_mass), torch.tensor(target_mass))
    distance = float(wasserstein_exact(tensor, tensor, weights_x=masses[1], weights_y=masses[0]).value)
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
        found = world(seed)
        target = found.pop("err_target")
        gaps.append(sum(found.values()) - target)
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
    given = arrays()
    found = bound_of(**given)
    assert found.err_target == pytest.approx(
        -np.log(given["predicted"][np.arange(120), given["codes"]]).mean()
    )
    assert found.alignment == pytest.approx(0.3 * found.distance)
    assert found.total == pytest.approx(0.7 + found.alignment + found.distortion + found.fitting)
    assert found.lipschitz == pytest.approx(np.quantile(given["norms"], 0.99))
    assert found.distortion_least <= found.distortion_greedy <= found.distortion_least + np.log(2) + 1.5
    assert found.distortion <= found.entropy_target + 1e-9
    assert (
        found.distance > found.distance_source
    )  # features of other places lie further than source from source
    assert found.holds == (found.err_target <= found.total)
    assert sum(found.bars().values()) == pytest.approx(found.total)


def test_a_near_feature_counts_and_no_row_is_one_hot():
    given = arrays()
    shares = label_frequencies(given["features"], given["codes"], 3, 10)
    np.testing.assert_allclose(shares.sum(1), 1.0)
    assert shares.min() > 0
    assert (shares.argmax(1) == given["codes"]).mean() > 0.9


def test_the_same_seed_gives_the_same_terms_and_they_are_json():
    import json

    first, again = (bound_of(**arrays(), seed=5).to_dict() for _ in "ab")
    assert json.dumps(first) == json.dumps(again)
    assert {"total", "holds", "estimators", "caveats", "gap"} <= set(first)


def fitted(given: dict) -> SimpleNamespace:
    numbered = lambda rows: np.asarray(rows)[:, 0].astype(int)  # noqa: E731
    return SimpleNamespace(
        source_=SimpleNamespace(
            features=given["source_features"], error=0.7, omega=0.3, norms=given["norms"]
        ),
        classes_=np.arange(3),
        embedded=lambda rows: given["features"][numbered(rows)],
        source_probabilities=lambda rows: given["given"][numbered(rows)],
        source_gradient_norms=lambda rows, labels=None: np.full(len(rows), 0.1),
        target_codes=lambda labels: np.asarray(labels),
        predict_proba=lambda rows: given["predicted"][numbered(rows)],
    )


def test_a_fitted_model_is_measured_through_its_own_functions():
    given = arrays()
    rows = np.arange(120.0)[:, None]
    found = measure_bound(fitted(given), rows, given["codes"])
    expected = bound_of(**{**given, "norms": np.concatenate([given["norms"], np.full(120, 0.1)])})
    assert found == expected


def test_what_has_no_bound_is_refused():
    given = arrays()
    rows, model = np.arange(120.0)[:, None], fitted(given)
    model.source_ = None
    with pytest.raises(OptionError, match="no source head"):
        measure_bound(model, rows, given["codes"])
    with pytest.raises(DataError, match="2 rows"):
        bound_of(
            **{
                key: value[:2] if key in ("features", "given", "predicted", "codes") else value
                for key, value in given.items()
            }
        )
    model = fitted(given)
    model.classes_ = None
    with pytest.raises(OptionError, match="cross-entropies"):
        measure_bound(model, rows, given["codes"])
