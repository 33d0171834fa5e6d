"""TSV-M, by recipe and one after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from transship.verbs.merge.fusion.origin import ModuleOrigin
from transship.verbs.merge.joint import JointTask, merge_updates_of
from transship.verbs.merge.methods.tsvm import singular_bases

Tasks = dict[str, JointTask]


def test_tsvm_is_the_dense_formula_and_its_bases_are_orthonormal(tasks: Tasks, origin: ModuleOrigin):
    chosen = list(tasks.values())
    merged = merge_updates_of(origin.weights, chosen, "tsvm")
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
    np.testing.assert_allclose(merged[name].numpy(), expected, atol=1e-5)
    torch.testing.assert_close(
        merged["scale"], sum(task.update()["scale"] for task in chosen) / 3, rtol=1e-4, atol=1e-6
    )


def test_tsvm_of_one_model_is_that_model(tasks: Tasks, origin: ModuleOrigin):
    merged = merge_updates_of(origin.weights, [tasks["a"]], "tsvm")
    for name, change in tasks["a"].update().items():
        torch.testing.assert_close(merged[name], change, rtol=1e-4, atol=1e-5)


def test_tsvm_equals_its_reference(arrivals: Any):
    merged, _ = arrivals.run("tsvm", [1, 2])
    update, two = arrivals.update(1), arrivals.update(2)
    for name, shape in arrivals.shapes.items():
        if len(shape) == 1:
            expected = (update[name] + two[name]).numpy() / 2
        else:
            svds = [np.linalg.svd(t[name].double().numpy(), full_matrices=False) for t in (update, two)]
            rank = min(shape) // 2
            u = np.hstack([u[:, :rank] for u, _, _ in svds])
            v = np.hstack([vt[:rank].T for _, _, vt in svds])
            s = np.concatenate([s[:rank] for _, s, _ in svds])
            u, v = (p @ q for p, _, q in (np.linalg.svd(m, full_matrices=False) for m in (u, v)))
            expected = u @ np.diag(s) @ v.T
        np.testing.assert_allclose(merged[name].numpy(), expected, atol=1e-5)


def test_tsvm_bases_are_orthonormal():
    u, s, v = singular_bases([torch.randn(9, 6), torch.randn(9, 6)])
    for basis in (u, v):
        torch.testing.assert_close(basis.T @ basis, torch.eye(s.numel(), dtype=torch.float64))
