"""RegMean: the sums, the solve, and that joint and continual merging are the same thing in every order."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from transship.errors import DataError, NumericalError
from transship.verbs.merge.fusion.origin import ModuleOrigin
from transship.verbs.merge.joint import JointTask, joint, merge_updates_of
from transship.verbs.merge.maths.grams import input_grams, linear_maps, shrunk
from transship.verbs.merge.methods.regmean import Regmean
from transship.verbs.merge.methods.regmean_plus_plus import forward_order
from transship.verbs.merge.protocol import Arrival

Tasks = dict[str, JointTask]
Weights = Callable[[str], dict[str, Tensor]]


def step(origin: ModuleOrigin, task: JointTask, number: int = 1) -> Arrival:
    return Arrival(number=number, base=origin.weights, update=task.update(), incoming=task.view())


def largest_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def test_grams_are_the_second_moments_of_what_enters_each_map(
    network: nn.Module, tasks: Tasks, inputs: dict[str, Tensor], weights_of: Weights
):
    found = input_grams(tasks["a"].view(), weights_of("a"), batch_size=7)
    pairs = {f"layers.{n}.left.weight|layers.{n}.right.weight" for n in (0, 1)}
    assert set(found) == pairs | {f"layers.{n}.out.weight" for n in (0, 1)}
    rows = torch.cat([inputs["a"], torch.ones(len(inputs["a"]), 1)], 1).double()
    expected = rows.T @ rows / len(rows)
    torch.testing.assert_close(
        found["layers.0.left.weight|layers.0.right.weight"], expected, rtol=1e-5, atol=1e-5
    )


def test_one_linear_map_is_the_least_squares_solution(
    tasks: Tasks, inputs: dict[str, Tensor], weights_of: Weights
):
    """Without shrinking, W minimises Σ_i mean ‖X_i (W − W_i)‖²: the gradient at the solution is zero."""
    chosen = [tasks[name] for name in "abc"]
    base = {name: weights_of("a")[name] - tasks["a"].update()[name] for name in weights_of("a")}
    found = merge_updates_of(base, chosen, "regmean", options={"keep": 1.0, "ridge": 0.0})
    weight = (base["layers.0.left.weight"] + found["layers.0.left.weight"]).double().requires_grad_()
    bias = (base["layers.0.left.bias"] + found["layers.0.left.bias"]).double().requires_grad_()
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
    found = merge_updates_of(base, list(tasks.values()), "regmean", options={"ridge": 0.0})
    left = right = 0
    for name in "abc":  # the map without a bias
        gram = inputs[name].double().T @ inputs[name].double() / len(inputs[name])
        gram = 0.9 * gram + 0.1 * gram.diagonal().diag()
        left, right = left + gram, right + gram @ weights_of(name)["layers.0.right.weight"].double().T
    expected = torch.linalg.solve(left, right).T.float()
    torch.testing.assert_close(
        base["layers.0.right.weight"] + found["layers.0.right.weight"], expected, rtol=1e-4, atol=1e-5
    )
    mean = sum(weights_of(name)["scale"] for name in "abc") / 3
    torch.testing.assert_close(base["scale"] + found["scale"], mean)


def test_one_model_alone_stays_what_it_is(tasks: Tasks, origin: ModuleOrigin):
    for method in ("regmean", "regmean++"):
        found = merge_updates_of(origin.weights, [tasks["b"]], method)
        assert largest_difference(found, tasks["b"].update()) < 1e-5


def test_an_input_that_no_task_uses_is_averaged_and_not_zeroed(
    network: nn.Module, fine_tunes: dict[str, dict[str, Tensor]], inputs: dict[str, Tensor]
):
    dead = {name: rows * torch.tensor([1.0, 1, 1, 1, 0]) for name, rows in inputs.items()}
    found = joint(network, fine_tunes, dead, "regmean")
    name = "layers.0.right.weight"
    base = network.state_dict()[name]
    # the ridge weighs a model by the size of its inputs
    shares = torch.tensor([float((rows.square().sum(1) + 1).mean()) for rows in dead.values()])
    shares = shares / shares.sum()
    expected = sum(
        share * (state[name] - base)[:, 4] for share, state in zip(shares, fine_tunes.values(), strict=True)
    )
    torch.testing.assert_close(found[name][:, 4], expected, rtol=1e-3, atol=1e-4)


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
        sum(one.numel() for group in state.values() for one in group.values())
        for state in (first, three, back)
    ]
    assert len(set(sizes)) == 1
    alone = method.remove(method.remove(back, step(origin, tasks["c"], 2)), step(origin, tasks["a"], 1))
    assert all(not change.any() for change in method.merged(alone, origin.weights).values())


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


def test_transposed_maps_are_solved_in_their_own_orientation():
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(1)
    module = nn.Sequential(Conv1D(6, 4), nn.Tanh(), nn.Linear(6, 3)).eval()
    plain = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).eval()
    with torch.no_grad():
        plain[0].weight.copy_(module[0].weight.T)
        plain[0].bias.copy_(module[0].bias)
        plain[2].load_state_dict(module[2].state_dict())
    tuned = {}
    for name in "ab":
        generator = torch.Generator().manual_seed(ord(name))
        tuned[name] = {
            key: value + 0.01 * torch.randn(value.shape, generator=generator)
            for key, value in module.state_dict().items()
        }
    flipped = {
        name: {key: value.T if key == "0.weight" else value for key, value in state.items()}
        for name, state in tuned.items()
    }
    data = {name: torch.randn(30, 4) for name in "ab"}
    first, second = joint(module, tuned, data, "regmean"), joint(plain, flipped, data, "regmean")
    torch.testing.assert_close(first["0.weight"].T, second["0.weight"])
    torch.testing.assert_close(first["2.weight"], second["2.weight"])


def test_weights_count_models_more_than_once(tasks: Tasks, origin: ModuleOrigin):
    twice = merge_updates_of(origin.weights, [tasks["a"], tasks["a"], tasks["b"]], "regmean")
    weighted = merge_updates_of(
        origin.weights, [tasks["a"], tasks["b"]], "regmean", values={"weight": [2.0, 1.0]}
    )
    assert largest_difference(twice, weighted) < 1e-5


def test_shrinking_keeps_the_diagonal_and_the_input_untouched():
    gram = torch.tensor([[2.0, 1.0], [1.0, 4.0]])
    torch.testing.assert_close(shrunk(gram, 0.5, 0.0), torch.tensor([[2.0, 0.5], [0.5, 4.0]]))
    assert gram[0, 1] == 1.0


def test_missing_data_and_nan_are_one_clear_error(
    network: nn.Module, fine_tunes: dict[str, dict[str, Tensor]], inputs: dict[str, Tensor], tasks: Tasks
):
    for method in ("regmean", "regmean++"):
        with pytest.raises(DataError, match=r"b: .*inputs of this task"):
            joint(network, fine_tunes, {"a": inputs["a"], "c": inputs["c"]}, method)
    broken = inputs | {"b": inputs["b"] * float("nan")}
    with pytest.raises(NumericalError, match=r"b: what enters .* NaN"):
        joint(network, fine_tunes, broken, "regmean")
    assert len(linear_maps(tasks["a"].view())) == 6
