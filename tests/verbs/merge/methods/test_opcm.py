"""OPCM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from transship.verbs.merge.maths.states import norm
from transship.verbs.merge.methods.opcm import beside


def opcm_reference(old: np.ndarray, new: np.ndarray, kept: float) -> np.ndarray:
    u, s, vt = np.linalg.svd(old.astype(np.float64))  # full factors, as the paper's code has them
    rank = int(np.argmax(np.cumsum(s) / s.sum() > kept))
    inside = u.T @ new @ vt.T
    np.fill_diagonal(inside, 0)
    inside[:rank, :rank] = 0
    return u @ inside @ vt


def test_opcm_equals_its_reference_over_three_models(arrivals: Any):
    merged, norms, scaling = arrivals.update(1), [norm(arrivals.update(1))], 1.0
    for seed in (2, 3):
        new = arrivals.update(seed)
        norms.append(norm(new))
        raw = {
            name: scaling * merged[name].double()
            + torch.from_numpy(opcm_reference(merged[name].numpy(), new[name].numpy(), 0.5))
            if name in arrivals.linear
            else scaling * merged[name].double() + new[name]
            for name in arrivals.shapes
        }
        scaling = norm(raw) / np.mean(norms)
        merged = {name: tensor / scaling for name, tensor in raw.items()}
    result, _ = arrivals.run("opcm", [1, 2, 3])
    np.testing.assert_allclose(arrivals.flat(result), arrivals.flat(merged), atol=1e-5)
    assert norm(result) == pytest.approx(np.mean(norms), rel=1e-5)


@pytest.mark.parametrize("shape", [(8, 5), (5, 8), (6, 6)])
def test_what_opcm_adds_is_orthogonal_to_the_kept_subspace(shape: tuple[int, int]):
    old, new = torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    part = beside(old, new, 0.5)
    u, s, vt = torch.linalg.svd(old, full_matrices=False)
    rank = int(((s.cumsum(0) / s.sum()) > 0.5).double().argmax())
    assert rank >= 1
    inside = u.T @ part @ vt.T
    assert float(inside[:rank, :rank].abs().max()) < 1e-12
    assert float(inside.diagonal().abs().max()) < 1e-12
    torch.testing.assert_close(part, torch.from_numpy(opcm_reference(old.numpy(), new.numpy(), 0.5)))


def test_opcm_takes_a_zero_and_a_rank_one_update():
    new = torch.randn(4, 3)
    assert torch.equal(beside(torch.zeros(4, 3), new, 0.5), new)
    assert bool(torch.isfinite(beside(torch.ones(4, 3), new, 0.5)).all())
