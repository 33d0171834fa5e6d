"""AdaMerging: its descent, and what stays when nothing is learnt."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from transship.errors import DataError, OptionError
from transship.verbs.merge.fusion.origin import ModuleOrigin
from transship.verbs.merge.joint import JointTask, joint, merge_updates_of
from transship.verbs.merge.maths.descent import entropy
from transship.verbs.merge.methods.adamerging import Adamerging
from transship.verbs.merge.protocol import Arrival

Tasks = dict[str, JointTask]


@pytest.mark.parametrize("per", ["task", "tensor"])
def test_without_steps_adamerging_is_task_arithmetic(tasks: Tasks, origin: ModuleOrigin, per: str):
    merged = merge_updates_of(
        origin.weights, list(tasks.values()), "adamerging", options={"steps": 0, "per": per}
    )
    for name, change in merged.items():
        expected = 0.3 * sum(task.update()[name] for task in tasks.values())
        torch.testing.assert_close(change, expected)


@pytest.mark.parametrize("per", ["task", "tensor"])
def test_one_step_is_adam_on_the_derivative_of_the_summed_entropy(
    tasks: Tasks, origin: ModuleOrigin, per: str
):
    """The whole loss in one graph: Adam's first step moves every coefficient by the rate against its sign."""
    chosen = list(tasks.values())
    updates = [task.update() for task in chosen]
    names = [""] if per == "task" else list(origin.weights)
    values = {name: torch.full((3,), 0.3, requires_grad=True) for name in names}
    backbone = {
        name: tensor + sum(values[name if per == "tensor" else ""][k] * updates[k][name] for k in range(3))
        for name, tensor in origin.weights.items()
    }
    loss = torch.zeros(())
    for task in chosen:
        seen = task.view()
        loss = loss + entropy(seen.read(backbone, seen.batch(range(seen.count))).outputs)
    slopes = dict(zip(names, torch.autograd.grad(loss, list(values.values())), strict=True))
    method = Adamerging(steps=1, learning_rate=0.01, batch_size=40, per=per)
    merged, losses = method.mix(origin.weights, updates, [task.view() for task in chosen])
    assert losses == [pytest.approx(float(loss.detach()), rel=1e-5)]
    for name, change in merged.items():
        factors = 0.3 - 0.01 * slopes[name if per == "tensor" else ""].sign()
        expected = sum(factors[k] * updates[k][name] for k in range(3))
        torch.testing.assert_close(change, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("per", ["task", "tensor"])
def test_adamerging_lowers_the_entropy_it_is_about(tasks: Tasks, origin: ModuleOrigin, per: str):
    chosen = list(tasks.values())
    method = Adamerging(steps=60, learning_rate=0.05, batch_size=40, per=per)
    updates, views = [task.update() for task in chosen], [task.view() for task in chosen]
    _, losses = method.mix(origin.weights, updates, views)
    assert losses[-1] < losses[0] - 0.05


def test_one_after_another_it_learns_on_the_pair(tasks: Tasks, origin: ModuleOrigin):
    steps = [
        Arrival(
            number=number,
            base=origin.weights,
            update=tasks[name].update(),
            incoming=tasks[name].view(),
            previous=tasks["a"].view() if number > 1 else None,
        )
        for number, name in ((1, "a"), (2, "b"))
    ]
    method = Adamerging(steps=3, per="task")
    state = method.first(steps[0])
    assert torch.equal(method.merged(state, origin.weights)["scale"], tasks["a"].update()["scale"])
    both = method.merged(method.add(state, steps[1]), origin.weights)
    expected = merge_updates_of(
        origin.weights, [tasks["a"], tasks["b"]], "adamerging", options={"steps": 3, "per": "task"}
    )
    for key, change in expected.items():
        torch.testing.assert_close(both[key], change)


def test_hostile_tasks_are_one_clear_error_each(
    network: nn.Module, fine_tunes: dict[str, dict[str, Tensor]], inputs: dict[str, Tensor]
):
    with pytest.raises(DataError, match="b: adamerging reads inputs"):
        joint(network, fine_tunes, {"a": inputs["a"]}, "adamerging")
    single = fine_tunes["b"] | {"head.weight": torch.ones(1, 5), "head.bias": torch.ones(1)}
    with pytest.raises(OptionError, match=r"b: .* two classes"):
        joint(network, fine_tunes | {"b": single}, inputs, "adamerging")
