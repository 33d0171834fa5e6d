"""Warm: a supervised warm-up without any source."""

from __future__ import annotations

import torch

from transship.registry import build_method
from transship.verbs.adapt.train.problem import LearningProblem


def test_the_warm_up_is_the_task_itself_with_a_frozen_body(problem: LearningProblem):
    (phase,) = build_method("adapt", "warm", {"steps": 5}).phases()
    assert (phase.name, phase.steps, phase.trains) == ("warm", 5, {"embedder", "head"})
    index = torch.arange(12)
    expected = torch.nn.functional.cross_entropy(
        problem.network(problem.train.inputs[index]), problem.train.targets[index]
    )
    torch.testing.assert_close(phase.objective(problem).loss(index, 0, 1), expected)
