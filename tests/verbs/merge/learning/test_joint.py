"""Joint merges in memory: the recipes' own methods, TSV-M, OTMF, and multi-task training."""

from __future__ import annotations

import numpy as np
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


def test_tsvm_is_the_dense_formula_and_its_bases_are_orthonormal(tasks: Tasks, origin: ModuleOrigin):
    chosen = list(tasks.values())
    found = merge_updates_of(origin.weights, chosen, "tsvm")
    name = "layers.0.left.weight"  # [7, 5], three models: one triplet of each
    us, ss, vs = [], [], []
    for task in chosen:
        u, s, vt = np.linalg.svd(task.update()[name].double().numpy(), full_matrices=False)
        us.append(u[:, :1])
        ss.append(s[:1])
        vs.append(vt[:1].T)

    def polar(matrix: np.ndarray) -> np.ndarray:
        p, _, qt = np.linalg.svd(matrix, full_matrices=False)
        assert np.allclose((p @ qt).T @ (p @ qt), np.eye(3))
        return p @ qt

    expected = polar(np.hstack(us)) @ np.diag(np.concatenate(ss)) @ polar(np.hstack(vs)).T
    np.testing.assert_allclose(found[name].numpy(), expected, atol=1e-5)
    torch.testing.assert_close(
        found["scale"], sum(task.update()["scale"] for task in chosen) / 3, rtol=1e-4, atol=1e-6
    )


def test_tsvm_of_one_model_is_that_model(tasks: Tasks, origin: ModuleOrigin):
    found = merge_updates_of(origin.weights, [tasks["a"]], "tsvm")
    for name, change in tasks["a"].update().items():
        torch.testing.assert_close(found[name], change, rtol=1e-4, atol=1e-5)


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
    found = merge_updates_of(origin.weights, list(tasks.values()), "otmf", options={"iterations": 4})
    plain = merge_updates_of(origin.weights, list(tasks.values()), "otmf", options={"iterations": 0})
    assert any(not torch.equal(found[name], plain[name]) for name in found)


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
    found = joint(network, fine_tunes, inputs, "multitask", labels=labels, options=options)
    nothing = {name: torch.zeros_like(change) for name, change in found.items()}
    assert loss(found) < loss(nothing) - 0.2
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
    found = joint(network, fine_tunes, inputs, "multitask", labels=labels, options=options)
    for name, slope in slopes.items():
        steep = slope.abs() > 1e-5  # elsewhere rounding decides the sign
        expected = begin[name] - 0.01 * slope.sign()
        torch.testing.assert_close(found[name][steep], expected[steep], rtol=0, atol=1e-4)
        assert steep.any()


def test_an_unknown_method_names_the_nearest(network: nn.Module, fine_tunes: dict[str, dict[str, Tensor]]):
    with pytest.raises(OptionError, match="did you mean 'regmean'"):
        joint(network, fine_tunes, {}, "regmeann")
