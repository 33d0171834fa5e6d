"""RECRAFT: feature-label distortion through the frozen source, the embedder that is chosen, its path."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from transship.verbs.adapt import Recraft
from transship.verbs.adapt.methods.recraft import LabelDistortion
from transship.verbs.adapt.train.problem import LearningProblem

pytestmark = pytest.mark.filterwarnings("ignore::transship.errors.TransshipWarning")


def test_distortion_reaches_the_embedder_through_the_frozen_source(problem: LearningProblem):
    values = []
    for weight in (0.0, 1.0):
        loss = LabelDistortion(problem, alignment=weight).loss(torch.arange(60), 0, 1)
        values.append(loss.item())
        loss.backward()
    assert values[1] > values[0]  # Eq. (22) has ω·W₁ on top
    assert float(problem.network.embedder.project.weight.grad.norm()) > 0  # type: ignore[union-attr]
    assert all(parameter.grad is None for parameter in problem.network.body.parameters())
    assert all(parameter.grad is None for parameter in problem.network.head.parameters())


def counted(problem: LearningProblem) -> float:
    """Return H[Z'|Z] of the expected counts, cell by cell."""
    with torch.no_grad():
        given = problem.source_probabilities(problem.embedded(torch.arange(60))).numpy()
    codes, total = problem.train.codes.numpy(), 0.0
    for label in range(given.shape[1]):
        mass = given[:, label].mean()
        for code in range(3):
            cell = given[codes == code, label].sum() / 60
            total -= cell * math.log(cell / mass)
    return total


def test_the_gradient_of_stage_one_through_the_frozen_body_is_that_of_finite_differences(
    problem: LearningProblem,
):
    problem.network.double()
    rows = dataclasses.replace(problem.train, inputs=problem.train.inputs.double())
    problem = dataclasses.replace(problem, train=rows)
    loss = LabelDistortion(problem).loss(torch.arange(60), 0, 1)
    assert loss.item() == pytest.approx(counted(problem), rel=1e-5)
    bias = problem.network.embedder.project.bias
    assert bias is not None
    (slope,) = torch.autograd.grad(loss, bias)
    places = slope.abs().topk(4).indices.tolist()
    for place in places:
        values = []
        for step in (1e-4, -1e-4):
            with torch.no_grad():
                bias[place] += step
            values.append(counted(problem))
            with torch.no_grad():
                bias[place] -= step
        assert slope[place].item() == pytest.approx((values[0] - values[1]) / 2e-4, rel=1e-2)


@pytest.mark.parametrize("task", ["regression", "multilabel", "dense", "grid"])
def test_recraft_takes_every_task(task: str, quick: dict[str, Any], waves: Any):
    inputs, labels = waves
    wanted: Any = {
        "regression": inputs.mean(1).astype(float),
        "multilabel": np.stack([labels == "slow", labels != "noise"], 1).astype(int),
        "dense": np.roll(inputs, 3, axis=1).astype(float),
        "grid": inputs[:, :36].reshape(60, 6, 6).astype(float),
    }[task]
    if task == "grid":
        inputs, task = wanted[:, None].astype(np.float32), "dense"
    short = quick | {"method_options": {"fa_steps": 4, "fld_steps": 4}, "steps": 6}
    model = Recraft(**short, task=task).fit(inputs, wanted)
    assert model.predict(inputs).shape == wanted.shape
    assert np.isfinite(list(model.evaluate(inputs, wanted).values())).all()
    assert model.stage1_[-1]["entropy_target"] > 0.3  # k-means codes stand for the labels


@pytest.mark.parametrize("left_out", ["fa_steps", "fld_steps"])
def test_a_phase_of_no_steps_is_left_out(left_out: str, quick: dict[str, Any], waves: Any):
    options = {"fa_steps": 3, "fld_steps": 3} | {left_out: 0}
    model = Recraft(**quick | {"method_options": options, "steps": 3}).fit(*waves)
    phases = {row["phase"] for row in model.stage1_}
    assert left_out.removesuffix("_steps") not in phases
    assert len(phases) > 1
