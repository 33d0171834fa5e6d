"""RegMean++: RegMean under the merged layers below."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from transship.errors import DataError
from transship.verbs.merge.fusion.origin import ModuleOrigin
from transship.verbs.merge.joint import JointTask, joint, merge_updates_of
from transship.verbs.merge.maths.grams import input_grams
from transship.verbs.merge.methods.regmean_plus_plus import forward_order

Tasks = dict[str, JointTask]
Weights = Callable[[str], dict[str, Tensor]]


def test_regmean_plus_plus_differs_from_regmean_above_the_first_layer_only(
    tasks: Tasks, origin: ModuleOrigin
):
    plain = merge_updates_of(origin.weights, list(tasks.values()), "regmean")
    refined = merge_updates_of(origin.weights, list(tasks.values()), "regmean++")
    assert plain.keys() == refined.keys()
    for name in plain:
        same = float((plain[name] - refined[name]).abs().max()) < 1e-5
        assert same != name.startswith(("layers.1.left", "layers.1.right", "layers.1.out")), name


def test_regmean_plus_plus_takes_the_grams_under_the_merged_layers_below(
    tasks: Tasks, origin: ModuleOrigin, inputs: dict[str, Tensor], weights_of: Weights
):
    refined = merge_updates_of(origin.weights, list(tasks.values()), "regmean++", options={"ridge": 0.0})
    name = "layers.1.right.weight"
    left = right = 0
    for task in "abc":
        lower = {
            key: origin.weights[key] + refined[key] if key.startswith("layers.0") else value
            for key, value in weights_of(task).items()
        }
        gram = input_grams(tasks[task].view(), lower)["layers.1.left.weight|layers.1.right.weight"][:5, :5]
        gram = 0.9 * gram + 0.1 * gram.diagonal().diag()
        left, right = left + gram, right + gram @ tasks[task].update()[name].double().T
    torch.testing.assert_close(refined[name], torch.linalg.solve(left, right).T.float(), rtol=1e-4, atol=1e-5)


def test_layers_are_found_in_the_order_in_which_an_input_passes_them(tasks: Tasks, origin: ModuleOrigin):
    order = forward_order(tasks["a"].view(), origin.weights)
    assert [layer for layer, _ in order] == ["layers.0.", "layers.1."]
    assert order[0][1] == ["layers.0.left.weight", "layers.0.right.weight", "layers.0.out.weight"]


def test_missing_data_is_one_clear_error(
    network: nn.Module, fine_tunes: dict[str, dict[str, Tensor]], inputs: dict[str, Tensor]
):
    with pytest.raises(DataError, match=r"b: .*inputs of this task"):
        joint(network, fine_tunes, {"a": inputs["a"], "c": inputs["c"]}, "regmean++")
