"""Joint merges in memory, by the recipes' own methods."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from transship.errors import OptionError
from transship.verbs.merge.fusion.origin import ModuleOrigin
from transship.verbs.merge.joint import JointTask, joint, merge_updates_of

Tasks = dict[str, JointTask]


def test_plain_methods_are_those_of_recipes(tasks: Tasks, origin: ModuleOrigin):
    chosen = list(tasks.values())
    average = merge_updates_of(origin.weights, chosen, "linear")
    arithmetic = merge_updates_of(origin.weights, chosen, "task_arithmetic", options={"weight": 0.3})
    trimmed = merge_updates_of(
        origin.weights, chosen, "ties", options={"weight": 1.0, "density": 0.5, "trim": "global"}
    )
    for name in origin.weights:
        total = sum(task.update()[name] for task in chosen)
        torch.testing.assert_close(average[name], total / 3, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(arithmetic[name], 0.3 * total, rtol=1e-4, atol=1e-6)
        assert trimmed[name].shape == total.shape
    assert any((trimmed[name] == 0).any() for name in trimmed)


def test_an_unknown_method_names_the_nearest(network: nn.Module, fine_tunes: dict[str, dict[str, Tensor]]):
    with pytest.raises(OptionError, match="did you mean 'regmean'"):
        joint(network, fine_tunes, {}, "regmeann")
