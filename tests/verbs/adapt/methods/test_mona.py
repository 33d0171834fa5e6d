"""MoNA: the outer loss through one inner step."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from transship.verbs.adapt.methods.mona import Bilevel, Mona
from transship.verbs.adapt.train.problem import LearningProblem


def test_monas_outer_gradient_is_that_of_finite_differences(problem: LearningProblem):
    problem.network.double()
    rows = dataclasses.replace(problem.train, inputs=problem.train.inputs.double())
    objective = Bilevel(dataclasses.replace(problem, train=rows), Mona(source_weight=0.0, inner_rate=0.5))
    index = torch.arange(12)
    bias = problem.network.embedder.project.bias
    assert bias is not None
    (slope,) = torch.autograd.grad(objective.loss(index, 0, 1), bias)
    values = []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            bias[3] += step
        values.append(objective.loss(index, 0, 1).item())
        with torch.no_grad():
            bias[3] -= step
    assert slope[3].item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-3, abs=1e-8)
