"""OTMF against its own definition."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from transship.geometry import cost_matrix, sinkhorn, sinkhorn_cost
from transship.verbs.merge.fusion import Fusion
from transship.verbs.merge.fusion.origin import ModuleOrigin
from transship.verbs.merge.joint import JointTask, merge_updates_of
from transship.verbs.merge.methods.otmf import MaskedUpdate, Otmf, mask_shape, mix
from transship.verbs.merge.protocol import Arrival

Tasks = dict[str, JointTask]
TIGHT: Any = {"iterations": 3000, "tolerance": 1e-12}


def joined(toy: Any, method: Any, count: int = 3, **more: Any) -> Fusion:
    fusion = Fusion(toy.base, method, heads="own", keep_inputs=64, **more)
    for number in range(count):
        toy.join(fusion, number)
    return fusion


def test_without_iterations_it_is_the_mix(toy: Any):
    fusion = joined(toy, "otmf", options={"iterations": 0, "alpha": 0.8})
    first, two, three = ({name: t[name] - base for name, base in fusion.backbone.items()} for t in toy.tuned)
    for name, tensor in fusion.vector.items():
        expected = 0.8 * (0.8 * first[name] + 0.2 * two[name]) + 0.2 * three[name]
        torch.testing.assert_close(tensor, expected)


def test_with_a_running_share_and_without_iterations_it_is_the_average(toy: Any):
    fusion = joined(toy, "otmf", options={"iterations": 0, "alpha": "running"})
    average = joined(toy, "average")
    for name, tensor in average.vector.items():
        torch.testing.assert_close(fusion.vector[name], tensor)


def problem(toy: Any, granularity: str) -> tuple[Any, Any, Any]:
    """Two updates under their masks, in double, and a task to read."""
    fusion = joined(toy, "average", 2)
    base = {name: tensor.double() for name, tensor in fusion.backbone.items()}
    updates = [{name: t[name].double() - base[name] for name in base} for t in toy.tuned[:2]]
    sides = (MaskedUpdate(updates[0], 0.8, granularity), MaskedUpdate(updates[1], 0.2, granularity))
    generator = torch.Generator().manual_seed(3)
    for side in sides:
        for mask in side.masks.values():
            mask.add_(0.2 * torch.randn(mask.shape, generator=generator, dtype=mask.dtype))
    return base, sides, fusion.tasks[0].store.model().over(toy.inputs[:24].double())


class Tight(Otmf):
    """The same loss at an optimum that is tight enough for finite differences."""

    def distance(self, features: Tensor, reference: Tensor) -> Tensor:
        return sinkhorn(features, reference, **TIGHT).cost


@pytest.mark.parametrize("granularity", ["entry", "row", "tensor"])
@pytest.mark.parametrize("turn", [0, 1])
def test_the_mask_gradient_equals_finite_differences(toy: Any, granularity: str, turn: int):
    # ⟨P, C⟩ with P held fixed has the derivative of OT_ε, whose ε is a constant: a share of the mean cost
    # would move with the features, so the absolute ε of the start is what differences are taken at
    base, sides, task = problem(toy, granularity)
    reference = functional.normalize(torch.randn(24, 12, dtype=torch.float64), dim=1)
    weights = {name: base[name] + change for name, change in mix(sides).items()}
    with torch.no_grad():
        features = functional.normalize(task.read(weights, task.batch(range(24))).features, dim=1)
        epsilon = sinkhorn(features, reference).epsilon

    def value() -> float:
        moved = {name: base[name] + change for name, change in mix(sides).items()}
        with torch.no_grad():
            moved_features = functional.normalize(task.read(moved, task.batch(range(24))).features, dim=1)
            costs = cost_matrix(moved_features, reference)
            options = {"relative": False, "iterations": 5000, "tolerance": 1e-14}
            return float(sinkhorn_cost(costs, epsilon=epsilon, **options).value)

    _, slopes = Tight().slopes(base, sides, task, range(24), reference)
    for name in ("0.weight", "3.bias"):
        slope = sides[turn].chain(name, slopes[name].clone())
        assert slope.shape == sides[turn].masks[name].shape
        place = tuple(int(number) for number in np.unravel_index(int(slope.abs().argmax()), slope.shape))
        mask = sides[turn].masks[name]
        differences = []
        for change in (1e-4, -1e-4):
            mask[place] += change
            differences.append(value())
            mask[place] -= change
        expected = (differences[0] - differences[1]) / 2e-4
        assert float(slope[place]) == pytest.approx(expected, rel=1e-4, abs=1e-9)


def test_one_iteration_moves_the_first_mask_and_leaves_the_other(toy: Any, monkeypatch: pytest.MonkeyPatch):
    entries: list[MaskedUpdate] = []
    original = MaskedUpdate.__init__

    def watched(self: MaskedUpdate, *arguments: Any) -> None:
        original(self, *arguments)
        entries.append(self)

    monkeypatch.setattr(MaskedUpdate, "__init__", watched)
    joined(toy, "otmf", 2, options={"iterations": 1})
    pre, post = entries
    assert all(bool((mask == 1).all()) for mask in post.masks.values())
    moved = torch.cat([(mask - 1).abs().reshape(-1) for mask in pre.masks.values()])
    assert float(moved.max()) == pytest.approx(0.01, rel=1e-3)  # Adam's first step is its rate
    entries.clear()
    joined(toy, "otmf", 2, options={"iterations": 2})
    assert any(bool((mask != 1).any()) for mask in entries[1].masks.values())


def test_references_are_read_once_and_masks_start_anew(toy: Any, monkeypatch: pytest.MonkeyPatch):
    read: list[int] = []
    original = Otmf._features

    def counted(self: Otmf, task: Any, backbone: Any) -> Tensor:
        read.append(task.count)
        return original(self, task, backbone)

    monkeypatch.setattr(Otmf, "_features", counted)
    fusion = joined(toy, "otmf", 3, options={"iterations": 10})
    assert read == [64, 160, 64, 160]  # kept inputs of the task before, all of the new one, once a step
    details = fusion.history[-1].details
    assert 0.9 <= details["mask_least"] < 1 < details["mask_most"] <= 1.1  # 5 steps of 0.01 from one


def test_training_brings_features_nearer_to_the_merged_model_before(toy: Any):
    details = joined(toy, "otmf", 2, options={"iterations": 40}).history[-1].details
    assert details["loss_pre_last"] < details["loss_pre_first"]


def test_a_step_is_the_same_twice_and_depends_on_the_seed(toy: Any):
    runs = [joined(toy, "otmf", 2, options={"iterations": 4}, seed=seed).vector for seed in (0, 0, 1)]
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])
    assert any(not torch.equal(runs[0][name], runs[2][name]) for name in runs[0])


@pytest.mark.parametrize("options", [{"loss": "paired"}, {"debiased": True}])
def test_other_losses_vanish_where_features_agree(options: dict[str, Any]):
    features = functional.normalize(torch.randn(20, 6, dtype=torch.float64), dim=1)
    assert float(Otmf(**options).distance(features, features)) == pytest.approx(0, abs=1e-6)
    assert float(Otmf(**options).distance(features, features.flip(1))) > 0.1


def test_stated_memory_follows_the_granularity():
    sizes = {"w": torch.Size([100, 50]), "b": torch.Size([100])}
    assert Otmf().memory(sizes) == 4 * 8 * 5100
    assert Otmf(granularity="row").memory(sizes) == 4 * (2 * 5100 + 6 * 200)
    assert Otmf(granularity="tensor").memory(sizes) == 4 * (2 * 5100 + 6 * 2)
    assert mask_shape(torch.Size([3, 4, 5]), "row") == torch.Size([3, 1, 1])


def test_it_says_when_inputs_are_missing(toy: Any):
    method = Otmf()
    fusion = joined(toy, "average", 1)
    step = Arrival(2, fusion.backbone, fusion.vector, fusion.tasks[0].store.model())
    with pytest.raises(Exception, match="needs inputs of this task and of the one before"):
        method.add({"merged": fusion.vector}, step)


def test_otmf_without_iterations_is_the_running_mean_or_the_mix_in_the_given_order(
    tasks: Tasks, origin: ModuleOrigin
):
    chosen = list(tasks.values())
    mean = merge_updates_of(origin.weights, chosen, "otmf", options={"iterations": 0, "alpha": "running"})
    mix = merge_updates_of(origin.weights, chosen, "otmf", options={"iterations": 0})
    for name in origin.weights:
        a, b, c = (task.update()[name] for task in chosen)
        torch.testing.assert_close(mean[name], (a + b + c) / 3, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(mix[name], 0.8 * (0.8 * a + 0.2 * b) + 0.2 * c, rtol=1e-4, atol=1e-6)


def test_otmf_folds_the_continual_method(tasks: Tasks, origin: ModuleOrigin):
    merged = merge_updates_of(origin.weights, list(tasks.values()), "otmf", options={"iterations": 4})
    plain = merge_updates_of(origin.weights, list(tasks.values()), "otmf", options={"iterations": 0})
    assert any(not torch.equal(merged[name], plain[name]) for name in merged)
