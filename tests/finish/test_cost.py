"""What a finish is said to cost."""

import torch

from transship.finish.cost import estimate
from transship.finish.lessons import Lesson, divergence
from transship.finish.settings import Finish


def test_the_estimate_grows_with_steps_and_weights_and_says_both():
    inputs = torch.ones(40, 3)

    def read(weights, rows):
        outputs = inputs[list(rows)] @ weights["w"].T
        return outputs, outputs

    lesson = Lesson("task", 40, read, divergence)
    weights = {"w": torch.ones(5, 3)}
    cost = estimate([lesson], weights, 15, Finish.parse("weights:160"))
    assert cost.steps == 3 * 40 + 160
    assert cost.memory == 2 * 4 * 15 + 5 * 4 * 15
    assert cost.seconds >= 0.0
    assert "280 steps at most" in str(cost)
