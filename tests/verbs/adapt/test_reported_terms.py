"""Theorem 7 with the terms as `bound` reports them, and stage 1's own gradients through the frozen source."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from transship.data import Dataset
from transship.verbs.adapt.bound.terms import Bound, bound_of
from transship.verbs.adapt.model.backbone import Backbone
from transship.verbs.adapt.model.embedders import shape_for
from transship.verbs.adapt.model.heads import HeadShape
from transship.verbs.adapt.model.network import Network, new_embedder
from transship.verbs.adapt.source.model import open_source
from transship.verbs.adapt.train.learner import Bench, Rows
from transship.verbs.adapt.train.losses import find_loss
from transship.verbs.adapt.train.objectives import LabelDistortion

EACH = 60  # rows at each of the four features


def world(seed: int) -> tuple[Bound, dict[str, float]]:
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
    found = bound_of(
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
    return found, expected


@pytest.mark.parametrize("seed", range(25))
def test_theorem_7_holds_in_finite_worlds_with_the_terms_that_are_reported(seed: int):
    found, expected = world(seed)
    assert found.distortion == pytest.approx(expected["distortion"], abs=1e-9)
    assert found.err_target == pytest.approx(expected["err_target"], abs=1e-9)
    assert found.fitting == pytest.approx(expected["fitting"], abs=0.02)  # a pseudo-count of labels is spread
    assert found.holds
    assert found.err_target <= found.total_greedy + 0.02
    assert found.distortion_least - 1e-9 <= found.distortion_greedy <= found.distortion + math.log(2)


@pytest.fixture
def bench(tiny_bert: Backbone, proxy: Dataset, waves: Any, tmp_path: Path) -> Bench:
    shape = shape_for(tiny_bert.theta, (37,), 1, tokens=8)
    head = HeadShape("linear", 32, 3).build()
    network = Network(new_embedder(shape, tiny_bert.theta, 0), tiny_bert.body(), head).double()
    network.train_only({"embedder"})
    codes = torch.from_numpy(np.unique(waves[1], return_inverse=True)[1]).long()
    rows = Rows(torch.from_numpy(waves[0]).double()[:, None], codes, codes)
    source = open_source(tiny_bert, proxy, items=90, omega=0.5, seed=0, cache=tmp_path)
    scale, loss = (torch.zeros(1), torch.ones(1)), find_loss(None, "classification")
    return Bench(network, rows, rows, 3, loss, scale, tiny_bert, source, 0, torch.device("cpu"))


def counted(bench: Bench) -> float:
    """Return H[Z'|Z] of the expected counts, cell by cell."""
    with torch.no_grad():
        given = bench.source_probabilities(bench.embedded(torch.arange(60))).numpy()
    codes, total = bench.train.codes.numpy(), 0.0
    for label in range(given.shape[1]):
        mass = given[:, label].mean()
        for code in range(3):
            cell = given[codes == code, label].sum() / 60
            total -= cell * math.log(cell / mass)
    return total


def test_the_gradient_of_stage_one_through_the_frozen_body_is_that_of_finite_differences(bench: Bench):
    objective = LabelDistortion()
    objective.begin(bench)
    loss = objective.loss(bench, torch.arange(60), 0, 1)
    assert loss.item() == pytest.approx(counted(bench), rel=1e-5)
    bias = bench.network.embedder.project.bias
    assert bias is not None
    (slope,) = torch.autograd.grad(loss, bias)
    places = slope.abs().topk(4).indices.tolist()
    for place in places:
        values = []
        for step in (1e-4, -1e-4):
            with torch.no_grad():
                bias[place] += step
            values.append(counted(bench))
            with torch.no_grad():
                bias[place] -= step
        assert slope[place].item() == pytest.approx((values[0] - values[1]) / 2e-4, rel=1e-2)
