"""Fisher merging: the information against its definition, and sums that know no order."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from transship.errors import DataError, NumericalError, OptionError
from transship.verbs.merge.fusion.origin import ModuleOrigin
from transship.verbs.merge.joint import JointTask, joint, merge_updates_of
from transship.verbs.merge.maths.states import norm
from transship.verbs.merge.methods.fisher import Fisher
from transship.verbs.merge.protocol import Arrival

Tasks = dict[str, JointTask]
Weights = Callable[[str], dict[str, Tensor]]


def dense_information(network: nn.Module, state: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """E_x Σ_y p(y|x) (∂ log p(y|x))², by the definition."""
    network.load_state_dict({key: value for key, value in state.items() if not key.startswith("head.")})
    total = {name: torch.zeros_like(tensor) for name, tensor in network.named_parameters()}
    for row in rows:
        for place in range(len(state["head.bias"])):
            network.zero_grad()
            logs = (network(row[None]) @ state["head.weight"].T + state["head.bias"]).log_softmax(-1)[0]
            logs[place].backward()
            for name, tensor in network.named_parameters():
                total[name] += float(logs[place].detach().exp()) * tensor.grad.square() / len(rows)
    return total


def test_the_information_is_the_expectation_over_inputs_and_classes(
    network: nn.Module,
    tasks: Tasks,
    fine_tunes: dict[str, dict[str, Tensor]],
    inputs: dict[str, Tensor],
    weights_of: Weights,
):
    information = Fisher().information(tasks["b"].view(), weights_of("b"), inputs=9)
    expected = dense_information(network, fine_tunes["b"], inputs["b"][:9])
    assert information.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(information[name], tensor, rtol=1e-4, atol=1e-8)


def test_drawn_classes_have_the_same_mean(tasks: Tasks, weights_of: Weights):
    exact = Fisher().information(tasks["b"].view(), weights_of("b"), inputs=4)
    drawn, task = Fisher(definition="drawn"), tasks["b"].view()
    draws = [drawn.information(task, weights_of("b"), inputs=4, seed=seed)["scale"] for seed in range(400)]
    torch.testing.assert_close(torch.stack(draws).mean(0), exact["scale"], rtol=0.15, atol=1e-4)
    assert not torch.equal(draws[0], draws[1])


def test_the_batch_definition_squares_a_gradient_summed_over_the_batch(
    network: nn.Module,
    tasks: Tasks,
    fine_tunes: dict[str, dict[str, Tensor]],
    inputs: dict[str, Tensor],
    weights_of: Weights,
):
    information = Fisher(definition="batch", batch_size=4).information(
        tasks["a"].view(), weights_of("a"), inputs=8
    )
    state = fine_tunes["a"]
    network.load_state_dict(weights_of("a"))
    total = torch.zeros_like(state["scale"])
    for rows in inputs["a"][:8].split(4):
        network.zero_grad()
        logs = (network(rows) @ state["head.weight"].T + state["head.bias"]).log_softmax(-1)
        (logs.detach().exp().sqrt() * logs).sum().backward()
        total += network.scale.grad.square() / 2
    torch.testing.assert_close(information["scale"], total, rtol=1e-4, atol=1e-8)


def test_the_merge_is_the_weighted_mean_of_the_equation(
    tasks: Tasks, origin: ModuleOrigin, weights_of: Weights
):
    merged = merge_updates_of(
        origin.weights, list(tasks.values()), "fisher", values={"weight": [2.0, 1.0, 0.5]}
    )
    above = below = 0
    for name, share in zip("abc", (2.0, 1.0, 0.5), strict=True):
        information = Fisher().information(tasks[name].view(), weights_of(name))
        scaled = share * (information["scale"] / norm(information) + 1e-6)
        above, below = above + scaled * weights_of(name)["scale"], below + scaled
    torch.testing.assert_close(origin.weights["scale"] + merged["scale"], above / below, rtol=1e-5, atol=1e-6)


def test_weights_that_no_prediction_hangs_on_are_averaged(
    network: nn.Module, fine_tunes: dict[str, dict[str, Tensor]], inputs: dict[str, Tensor]
):
    dead = {name: rows * torch.tensor([1.0, 1, 1, 1, 0]) for name, rows in inputs.items()}
    result = joint(network, fine_tunes, dead, "fisher")
    name = "layers.0.left.weight"
    updates = [(state[name] - network.state_dict()[name])[:, 4] for state in fine_tunes.values()]
    torch.testing.assert_close(result[name][:, 4], torch.stack(updates).mean(0), rtol=1e-4, atol=1e-6)


def test_continual_fisher_is_joint_fisher_in_every_order_and_remove_undoes_add(
    tasks: Tasks, origin: ModuleOrigin
):
    def step(name: str, number: int) -> Arrival:
        task = tasks[name]
        return Arrival(number=number, base=origin.weights, update=task.update(), incoming=task.view())

    method = Fisher(inputs=40)
    expected = merge_updates_of(origin.weights, list(tasks.values()), "fisher")
    for order in itertools.permutations("abc"):
        state = method.first(step(order[0], 1))
        for number, name in enumerate(order[1:], 2):
            state = method.add(state, step(name, number))
        merged = method.merged(state, origin.weights)
        assert max(float((merged[name] - expected[name]).abs().max()) for name in expected) < 1e-5
    back = method.merged(method.remove(state, step("b", 3)), origin.weights)
    without = merge_updates_of(origin.weights, [tasks["a"], tasks["c"]], "fisher")
    assert max(float((back[name] - without[name]).abs().max()) for name in without) < 1e-4


def test_hostile_tasks_are_one_clear_error_each(
    network: nn.Module, fine_tunes: dict[str, dict[str, Tensor]], inputs: dict[str, Tensor]
):
    with pytest.raises(DataError, match="b: fisher reads inputs"):
        joint(network, fine_tunes, {"a": inputs["a"]}, "fisher")
    bare = {key: value for key, value in fine_tunes["b"].items() if not key.startswith("head.")}
    with pytest.raises(OptionError, match=r"b: .* no head"):
        joint(network, fine_tunes | {"b": bare}, inputs, "fisher")
    single = fine_tunes["b"] | {"head.weight": torch.ones(1, 5), "head.bias": torch.ones(1)}
    with pytest.raises(OptionError, match=r"b: .* two classes"):
        joint(network, fine_tunes | {"b": single}, inputs, "fisher")
    with pytest.raises(NumericalError, match=r"b: .* NaN"):
        joint(network, fine_tunes, inputs | {"b": inputs["b"] * float("nan")}, "fisher")
