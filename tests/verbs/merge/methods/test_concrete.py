"""Concrete: its descent through random masks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from transship.errors import DataError, OptionError
from transship.numerics import derive_seed
from transship.verbs.merge.fusion.origin import ModuleOrigin
from transship.verbs.merge.joint import JointTask, joint, merge_updates_of
from transship.verbs.merge.maths.descent import entropy
from transship.verbs.merge.methods.concrete import Concrete, relaxed
from transship.verbs.merge.protocol import Arrival

Tasks = dict[str, JointTask]


def test_concrete_lowers_the_entropy_and_its_final_mask_is_fixed_by_the_seed(
    tasks: Tasks, origin: ModuleOrigin
):
    chosen = list(tasks.values())
    updates, views = [task.update() for task in chosen], [task.view() for task in chosen]
    method = Concrete(steps=150, learning_rate=0.1, batch_size=40)
    merged, losses = method.mix(origin.weights, updates, views)
    assert sum(losses[-30:]) < sum(losses[:30])
    again, _ = method.mix(origin.weights, updates, views)
    other, _ = method.mix(origin.weights, updates, views, seed=1)
    for name, change in merged.items():
        assert torch.equal(change, again[name])
        assert not torch.equal(change, other[name])
        mask = change / (0.3 * sum(update[name] for update in updates))
        assert float(mask.mean()) == pytest.approx(1.0, abs=1e-3)
        assert float(mask.min()) >= 0


def test_one_step_of_concrete_is_adam_on_the_derivative_through_the_drawn_mask(
    tasks: Tasks, origin: ModuleOrigin
):
    """The whole loss in one graph, on the same draws: Adam's first step is the rate against the sign."""
    chosen = list(tasks.values())
    updates = [task.update() for task in chosen]
    generator = torch.Generator().manual_seed(derive_seed(0, "concrete"))
    logits = {name: torch.zeros_like(tensor, requires_grad=True) for name, tensor in origin.weights.items()}
    backbone = {}
    for name, tensor in origin.weights.items():
        chance = torch.rand(tensor.shape, generator=generator).clamp(1e-6, 1 - 1e-6)
        mask = torch.sigmoid((torch.logit(chance) + logits[name]) / 0.5)
        backbone[name] = tensor + 0.3 * mask / mask.mean() * sum(update[name] for update in updates)
    loss = torch.zeros(())
    for task in chosen:
        seen = task.view()
        loss = loss + entropy(seen.read(backbone, seen.batch(range(seen.count))).outputs)
    slopes = dict(zip(logits, torch.autograd.grad(loss, list(logits.values())), strict=True))
    views = [task.view() for task in chosen]
    merged, losses = Concrete(steps=1, learning_rate=0.01, batch_size=40).mix(origin.weights, updates, views)
    assert losses == [pytest.approx(float(loss.detach()), rel=1e-5)]
    for name, slope in slopes.items():
        steep = slope.abs() > 1e-5  # elsewhere rounding decides the sign
        final = torch.Generator().manual_seed(derive_seed(0, "concrete", name))
        mask = relaxed(-0.01 * slope.sign(), 0.5, final)
        expected = 0.3 * mask * sum(update[name] for update in updates)
        torch.testing.assert_close(merged[name][steep], expected[steep], rtol=1e-3, atol=1e-5)
        assert steep.any()


def test_relaxed_masks_are_those_of_torch_distributions():
    logits = torch.linspace(-2, 2, 20000)
    generator = torch.Generator().manual_seed(0)
    own = relaxed(logits, 0.5, generator)
    reference = torch.distributions.RelaxedBernoulli(torch.tensor(0.5), logits=logits)
    torch.manual_seed(1)
    drawn = reference.sample()
    drawn = drawn / drawn.mean()
    for part in (slice(0, 5000), slice(15000, 20000)):
        assert float(own[part].mean()) == pytest.approx(float(drawn[part].mean()), abs=0.03)


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
    method = Concrete(steps=3)
    state = method.first(steps[0])
    assert torch.equal(method.merged(state, origin.weights)["scale"], tasks["a"].update()["scale"])
    both = method.merged(method.add(state, steps[1]), origin.weights)
    expected = merge_updates_of(origin.weights, [tasks["a"], tasks["b"]], "concrete", options={"steps": 3})
    for key, change in expected.items():
        torch.testing.assert_close(both[key], change)


def test_hostile_tasks_are_one_clear_error_each(
    network: nn.Module, fine_tunes: dict[str, dict[str, Tensor]], inputs: dict[str, Tensor]
):
    with pytest.raises(DataError, match="b: concrete reads inputs"):
        joint(network, fine_tunes, {"a": inputs["a"]}, "concrete")
    single = fine_tunes["b"] | {"head.weight": torch.ones(1, 5), "head.bias": torch.ones(1)}
    with pytest.raises(OptionError, match=r"b: .* two classes"):
        joint(network, fine_tunes | {"b": single}, inputs, "concrete")
