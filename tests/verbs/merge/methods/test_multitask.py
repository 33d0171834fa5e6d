"""Multi-task training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from transship.errors import OptionError
from transship.verbs.merge.joint import JointTask, joint

Tasks = dict[str, JointTask]


def test_multi_task_training_needs_labels_and_lowers_the_loss(
    network: nn.Module, fine_tunes: dict[str, dict[str, Tensor]], inputs: dict[str, Tensor], tasks: Tasks
):
    labels = {
        name: np.asarray([row % len(fine_tunes[name]["head.bias"]) for row in range(len(rows))])
        for name, rows in inputs.items()
    }

    def loss(update: dict[str, Tensor]) -> float:
        total = 0.0
        for name, task in tasks.items():
            seen = task.view()
            backbone = {key: network.state_dict()[key] + change for key, change in update.items()}
            outputs = seen.read(backbone, seen.batch(range(seen.count))).outputs
            assert outputs is not None
            total += float(nn.functional.cross_entropy(outputs, torch.from_numpy(labels[name])))
        return total

    options = {"steps": 40, "learning_rate": 0.02}
    result = joint(network, fine_tunes, inputs, "multitask", labels=labels, options=options)
    nothing = {name: torch.zeros_like(change) for name, change in result.items()}
    assert loss(result) < loss(nothing) - 0.2
    with pytest.raises(OptionError, match=r"a: multitask .* labels"):
        joint(network, fine_tunes, inputs, "multitask")
    with pytest.raises(OptionError, match=r"a: .*label 10.* 2 classes"):
        joint(network, fine_tunes, inputs, "multitask", labels=labels | {"a": labels["a"] + 9})


@pytest.mark.parametrize("start", ["base", "average"])
def test_one_step_of_multi_task_training_is_adam_on_the_summed_cross_entropy(
    network: nn.Module,
    fine_tunes: dict[str, dict[str, Tensor]],
    inputs: dict[str, Tensor],
    tasks: Tasks,
    start: str,
):
    labels = {name: np.arange(len(rows)) % 2 for name, rows in inputs.items()}
    begin = {
        name: sum(task.update()[name] for task in tasks.values()) / 3
        if start == "average"
        else torch.zeros_like(tensor)
        for name, tensor in network.state_dict().items()
    }
    weights = {name: (tensor + begin[name]).requires_grad_() for name, tensor in network.state_dict().items()}
    loss = torch.zeros(())
    for name, task in tasks.items():
        outputs = task.view().read(weights, inputs[name]).outputs
        assert outputs is not None
        loss = loss + nn.functional.cross_entropy(outputs, torch.from_numpy(labels[name]))
    slopes = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
    options = {"steps": 1, "learning_rate": 0.01, "batch_size": 40, "start": start}
    actual = joint(network, fine_tunes, inputs, "multitask", labels=labels, options=options)
    for name, slope in slopes.items():
        steep = slope.abs() > 1e-5  # elsewhere rounding decides the sign
        expected = begin[name] - 0.01 * slope.sign()
        torch.testing.assert_close(actual[name][steep], expected[steep], rtol=0, atol=1e-4)
        assert steep.any()
