"""Warm: a supervised warm-up without any source."""

from __future__ import annotations

import torch

from transship.registry import build_method
from transship.verbs.adapt.train.learner import Learner


def test_the_warm_up_is_the_task_itself_with_a_frozen_body(learner: Learner):
    (phase,) = build_method("adapt", "warm", {"steps": 5}).phases()
    assert (phase.name, phase.steps, phase.trains) == ("warm", 5, {"embedder", "head"})
    index = torch.arange(12)
    expected = torch.nn.functional.cross_entropy(
        learner.network(learner.train.inputs[index]), learner.train.targets[index]
    )
    torch.testing.assert_close(phase.objective(learner).loss(index, 0, 1), expected)
