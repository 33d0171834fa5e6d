"""Stitching heads to other encoders, and the scale probe."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

from transship.errors import DataError, MatchError
from transship.verbs.translate import (
    InverseRelativeProjection,
    Procrustes,
    Ridge,
    Stitch,
    scale_probe,
    stitching_matrix,
)
from transship.verbs.translate.stitch import rescaled

# the views are rotated and cut, so that the least λ is the best, which ridge warns of
pytestmark = pytest.mark.filterwarnings("ignore:ridge_loo")


@pytest.fixture(scope="module")
def encoders():
    """Three views of the digits: rotated pixels, principal axes of another half, random features."""
    digits = load_digits()
    x, y = digits.data / 16.0, digits.target
    rng = np.random.default_rng(0)
    views = {
        "rotated": x @ np.linalg.qr(rng.normal(size=(64, 64)))[0],
        "axes": PCA(30, random_state=0).fit(x[:600]).transform(x),
        "random": np.tanh(x @ rng.normal(size=(64, 64)) / 4),
    }
    train, test = slice(0, 1200), slice(1200, None)
    heads = {
        name: LogisticRegression(max_iter=200).fit(rows[train], y[train]) for name, rows in views.items()
    }
    anchors = {name: rows[train][:500] for name, rows in views.items()}
    return anchors, heads, {name: rows[test] for name, rows in views.items()}, y[test]


def test_heads_work_on_other_encoders_with_translation_and_not_without(encoders):
    for method in (Ridge(), InverseRelativeProjection(regularize=1.0), Procrustes()):
        result = stitching_matrix(method, *encoders)
        assert result.native > 0.85
        assert result.stitched > 0.7
        off = result.absolute[np.isfinite(result.absolute) & ~np.eye(3, dtype=bool)]
        assert off.max() < 0.4
        assert result.achievable == 2  # only the two of equal width
        assert set(result.by_encoder()) == set(result.by_head()) == {"rotated", "axes", "random"}
        np.testing.assert_allclose(np.mean(list(result.by_encoder().values())), result.stitched)
        np.testing.assert_allclose(np.diagonal(result.similarity), 1.0)


def test_a_stitch_is_encoder_translator_and_head(encoders):
    anchors, heads, test, labels = encoders
    fitted = Ridge().fit(anchors["axes"], anchors["rotated"])
    stitch = Stitch(lambda rows: rows[:, :30], fitted, heads["rotated"].predict)
    wide = np.hstack([test["axes"], np.zeros((len(labels), 3))])
    assert stitch.score(wide, labels) == Stitch(None, fitted, heads["rotated"]).score(test["axes"], labels)


def test_encoders_of_other_items_are_refused(encoders):
    anchors, heads, test, labels = encoders
    with pytest.raises(DataError, match="different numbers of rows"):
        stitching_matrix(Ridge(), {**anchors, "axes": anchors["axes"][:100]}, heads, test, labels)
    with pytest.raises(DataError, match="not of the same encoders"):
        stitching_matrix(Ridge(), anchors, {"axes": heads["axes"]}, test, labels)


def test_rescaling_gives_every_vector_the_same_length_and_leaves_the_model_as_it_was():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    rows = torch.randn(5, 4)
    before = model(rows)
    seen = []
    model[1].register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].norm(dim=-1)))
    with rescaled(model, "0", 2.5):
        model(rows)
    torch.testing.assert_close(seen[0], torch.full((5,), 2.5))
    torch.testing.assert_close(model(rows), before)
    with pytest.raises(MatchError, match="has no layer 'nowhere'"), rescaled(model, "nowhere", 1.0):
        pass


def test_a_relu_network_without_biases_is_scale_invariant_and_a_cosine_one_is_not():
    torch.manual_seed(0)
    rows = torch.randn(300, 8)
    labels = (rows[:, 0] > 0).long()

    class Cosine(torch.nn.Module):
        def forward(self, x):
            return torch.cos(x)

    results = {}
    for name, bend in (("relu", torch.nn.ReLU()), ("cosine", Cosine())):
        model = torch.nn.Sequential(
            torch.nn.Identity(),
            torch.nn.Linear(8, 32, bias=False),
            bend,
            torch.nn.Linear(32, 2, bias=name == "cosine"),
        )
        optimiser = torch.optim.Adam(model.parameters(), 0.02)
        for _ in range(150):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(rows), labels).backward()
            optimiser.step()
        accuracy = lambda m: float((m(rows).argmax(1) == labels).float().mean())  # noqa: E731
        results[name] = scale_probe(model, ["0"], [0.1, 3.0, 50.0], accuracy)
    assert np.ptp(results["relu"].accuracy) == 0
    assert results["relu"].accuracy.min() > 0.9
    assert results["cosine"].accuracy.min() < results["relu"].accuracy.min() - 0.1
    assert results["cosine"].baseline > 0.8
