"""RegMean: the sums, the solve, and that joint and continual merging are the same in every order."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from transship.errors import DataError, NumericalError
from transship.verbs.merge.fusion.origin import ModuleOrigin
from transship.verbs.merge.joint import JointTask, joint, merge_updates_of
from transship.verbs.merge.maths.grams import linear_maps
from transship.verbs.merge.methods.regmean import Regmean
from transship.verbs.merge.protocol import Arrival

Tasks = dict[str, JointTask]
Weights = Callable[[str], dict[str, Tensor]]


def step(origin: ModuleOrigin, task: JointTask, number: int = 1) -> Arrival:
    return Arrival(number=number, base=origin.weights, update=task.update(), incoming=task.view())


def largest_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def test_one_linear_map_is_the_least_squares_solution(
    tasks: Tasks, inputs: dict[str, Tensor], weights_of: Weights
):
    """Without shrinking, W minimises Σ_i mean ‖X_i (W − W_i)‖²: the gradient at the solution is zero."""
    chosen = [tasks[name] for name in "abc"]
    base = {name: weights_of("a")[name] - tasks["a"].update()[name] for name in weights_of("a")}
    merged = merge_updates_of(base, chosen, "regmean", options={"keep": 1.0, "ridge": 0.0})
    weight = (base["layers.0.left.weight"] + merged["layers.0.left.weight"]).double().requires_grad_()
    bias = (base["layers.0.left.bias"] + merged["layers.0.left.bias"]).double().requires_grad_()
    loss = torch.zeros((), dtype=torch.float64)
    for name in "abc":
        rows, own = inputs[name].double(), weights_of(name)
        wanted = rows @ own["layers.0.left.weight"].double().T + own["layers.0.left.bias"].double()
        loss = loss + (rows @ weight.T + bias - wanted).square().sum(1).mean()
    for slope in torch.autograd.grad(loss, [weight, bias]):
        torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=2e-5)


def test_the_shrunk_solution_is_the_dense_formula(
    tasks: Tasks, inputs: dict[str, Tensor], weights_of: Weights
):
    base = {name: weights_of("a")[name] - tasks["a"].update()[name] for name in weights_of("a")}
    merged = merge_updates_of(base, list(tasks.values()), "regmean", options={"ridge": 0.0})
    left = right = 0
    for name in "abc":  # the map without a bias
        gram = inputs[name].double().T @ inputs[name].double() / len(inputs[name])
        gram = 0.9 * gram + 0.1 * gram.diagonal().diag()
        left, right = left + gram, right + gram @ weights_of(name)["layers.0.right.weight"].double().T
    expected = torch.linalg.solve(left, right).T.float()
    torch.testing.assert_close(
        base["layers.0.right.weight"] + merged["layers.0.right.weight"], expected, rtol=1e-4, atol=1e-5
    )
    mean = sum(weights_of(name)["scale"] for name in "abc") / 3
    torch.testing.assert_close(base["scale"] + merged["scale"], mean)


def test_one_model_alone_stays_what_it_is(tasks: Tasks, origin: ModuleOrigin):
    for method in ("regmean", "regmean++"):
        merged = merge_updates_of(origin.weights, [tasks["b"]], method)
        assert largest_difference(merged, tasks["b"].update()) < 1e-5


def test_an_input_that_no_task_uses_is_averaged_and_not_zeroed(
    network: nn.Module, fine_tunes: dict[str, dict[str, Tensor]], inputs: dict[str, Tensor]
):
    dead = {name: rows * torch.tensor([1.0, 1, 1, 1, 0]) for name, rows in inputs.items()}
    actual = joint(network, fine_tunes, dead, "regmean")
    name = "layers.0.right.weight"
    base = network.state_dict()[name]
    # the ridge weighs a model by the size of its inputs
    shares = torch.tensor([float((rows.square().sum(1) + 1).mean()) for rows in dead.values()])
    shares = shares / shares.sum()
    expected = sum(
        share * (state[name] - base)[:, 4] for share, state in zip(shares, fine_tunes.values(), strict=True)
    )
    torch.testing.assert_close(actual[name][:, 4], expected, rtol=1e-3, atol=1e-4)


def test_continual_regmean_is_joint_regmean_in_every_order(tasks: Tasks, origin: ModuleOrigin):
    expected = merge_updates_of(origin.weights, list(tasks.values()), "regmean")
    for order in itertools.permutations("abc"):
        method = Regmean()
        state = method.first(step(origin, tasks[order[0]]))
        for number, name in enumerate(order[1:], 2):
            state = method.add(state, step(origin, tasks[name], number))
        assert largest_difference(method.merged(state, origin.weights), expected) < 1e-5


def test_remove_undoes_add_and_the_state_keeps_its_size(tasks: Tasks, origin: ModuleOrigin):
    method = Regmean()
    first = method.first(step(origin, tasks["a"]))
    both = method.add(first, step(origin, tasks["b"], 2))
    three = method.add(both, step(origin, tasks["c"], 3))
    back = method.remove(three, step(origin, tasks["b"], 3))
    expected = merge_updates_of(origin.weights, [tasks["a"], tasks["c"]], "regmean")
    assert largest_difference(method.merged(back, origin.weights), expected) < 1e-5
    sizes = [
        sum(each.numel() for group in state.values() for each in group.values())
        for state in (first, three, back)
    ]
    assert len(set(sizes)) == 1
    alone = method.remove(method.remove(back, step(origin, tasks["c"], 2)), step(origin, tasks["a"], 1))
    assert all(not change.any() for change in method.merged(alone, origin.weights).values())


def test_weights_count_models_more_than_once(tasks: Tasks, origin: ModuleOrigin):
    twice = merge_updates_of(origin.weights, [tasks["a"], tasks["a"], tasks["b"]], "regmean")
    weighted = merge_updates_of(
        origin.weights, [tasks["a"], tasks["b"]], "regmean", values={"weight": [2.0, 1.0]}
    )
    assert largest_difference(twice, weighted) < 1e-5


def test_missing_data_and_nan_are_one_clear_error(
    network: nn.Module, fine_tunes: dict[str, dict[str, Tensor]], inputs: dict[str, Tensor], tasks: Tasks
):
    with pytest.raises(DataError, match=r"b: .*inputs of this task"):
        joint(network, fine_tunes, {"a": inputs["a"], "c": inputs["c"]}, "regmean")
    broken = inputs | {"b": inputs["b"] * float("nan")}
    with pytest.raises(NumericalError, match=r"b: what enters .* NaN"):
        joint(network, fine_tunes, broken, "regmean")
    assert len(linear_maps(tasks["a"].view())) == 6
