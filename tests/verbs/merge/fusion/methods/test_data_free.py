"""Continual methods that need no data, each against a dense reference of a few lines."""

from itertools import permutations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from transship.verbs.merge.maths.states import norm
from transship.verbs.merge.methods.opcm import beside
from transship.verbs.merge.methods.ties import agree, trim
from transship.verbs.merge.methods.tsvm import singular_bases
from transship.verbs.merge.protocol import Arrival, continual_method

SHAPES = {"a.weight": (7, 5), "a.bias": (7,), "embed.weight": (9, 4), "b.weight": (4, 6)}
LINEAR = {"a.weight": "a", "b.weight": "b"}


def update(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


BASE = update(99)


def step(number: int, seed: int) -> Arrival:
    incoming: Any = SimpleNamespace(matrices=LINEAR)
    return Arrival(number, BASE, update(seed), incoming)


def run(name: str, seeds: list[int], **options: Any) -> tuple[dict[str, Tensor], Any]:
    method = continual_method(name, options)
    state = method.first(step(1, seeds[0]))
    for number, seed in enumerate(seeds[1:], 2):
        state = method.add(state, step(number, seed))
    return method.merged(state, BASE), (method, state)


def flat(vector: dict[str, Tensor]) -> np.ndarray:
    return np.concatenate([vector[name].numpy().ravel() for name in SHAPES])


@pytest.mark.parametrize("order", list(permutations([1, 2, 3])))
def test_average_is_the_mean_in_every_order(order: tuple[int, ...]):
    merged, _ = run("average", list(order))
    expected = np.mean([flat(update(seed)) for seed in (1, 2, 3)], axis=0)
    np.testing.assert_allclose(flat(merged), expected, atol=1e-6)


def test_task_arithmetic_sums_at_one_scale():
    merged, _ = run("task-arithmetic", [1, 2, 3], scale=0.4)
    np.testing.assert_allclose(flat(merged), 0.4 * sum(flat(update(seed)) for seed in (1, 2, 3)), atol=1e-6)


@pytest.mark.parametrize("name", ["average", "task-arithmetic", "base"])
def test_a_model_taken_out_was_never_there(name: str):
    _, (method, state) = run(name, [1, 2, 3])
    left = method.merged(method.remove(state, step(3, 2)), BASE)
    np.testing.assert_allclose(flat(left), flat(run(name, [1, 3])[0]), atol=1e-6)


def test_the_base_stays_the_base():
    assert norm(run("base", [1, 2])[0]) == 0.0


def ties_reference(old: np.ndarray, new: np.ndarray, density: float, scale: float) -> np.ndarray:
    rows = np.stack([old, new])
    for row in rows:
        row[np.argsort(-np.abs(row), kind="stable")[int(density * row.size) :]] = 0
    signs = np.sign(rows.sum(0))
    signs[signs == 0] = np.sign(signs.sum())
    return old + scale * np.where(np.sign(rows) == signs, rows, 0).sum(0)


def test_ties_equals_its_reference_and_feeds_itself():
    expected = 0.5 * flat(update(1))
    for seed in (2, 3):
        expected = ties_reference(expected, flat(update(seed)), 0.2, 0.5)
    np.testing.assert_allclose(flat(run("ties", [1, 2, 3])[0]), expected, atol=1e-6)


def test_ties_keeps_exactly_its_share_and_no_entry_against_the_elected_sign():
    row = torch.tensor([3.0, -1.0, 1.0, 1.0, 0.5, -2.0, 1.0, 0.0, 0.0, 0.1])
    trim(row, 0.4)
    assert row.tolist() == [3.0, -1.0, 1.0, 0.0, 0.0, -2.0, 0.0, 0.0, 0.0, 0.0]  # of equal ones the first
    rows = torch.randn(2, 500)
    for one in rows:
        trim(one, 0.3)
        assert int((one != 0).sum()) == 150
    joined = agree(rows)
    elected = rows.sum(0).sign()
    assert bool((joined * elected >= 0).all())
    assert bool((joined[(rows == 0).all(0)] == 0).all())


def test_tsvm_equals_its_reference():
    merged, _ = run("tsvm", [1, 2])
    one, two = update(1), update(2)
    for name, shape in SHAPES.items():
        if len(shape) == 1:
            expected = (one[name] + two[name]).numpy() / 2
        else:
            found = [np.linalg.svd(t[name].double().numpy(), full_matrices=False) for t in (one, two)]
            rank = min(shape) // 2
            u = np.hstack([u[:, :rank] for u, _, _ in found])
            v = np.hstack([vt[:rank].T for _, _, vt in found])
            s = np.concatenate([s[:rank] for _, s, _ in found])
            u, v = (p @ q for p, _, q in (np.linalg.svd(m, full_matrices=False) for m in (u, v)))
            expected = u @ np.diag(s) @ v.T
        np.testing.assert_allclose(merged[name].numpy(), expected, atol=1e-5)


def test_tsvm_bases_are_orthonormal():
    u, s, v = singular_bases([torch.randn(9, 6), torch.randn(9, 6)])
    for basis in (u, v):
        torch.testing.assert_close(basis.T @ basis, torch.eye(s.numel(), dtype=torch.float64))


def opcm_reference(old: np.ndarray, new: np.ndarray, kept: float) -> np.ndarray:
    u, s, vt = np.linalg.svd(old.astype(np.float64))  # full factors, as the paper's code has them
    rank = int(np.argmax(np.cumsum(s) / s.sum() > kept))
    inside = u.T @ new @ vt.T
    np.fill_diagonal(inside, 0)
    inside[:rank, :rank] = 0
    return u @ inside @ vt


def test_opcm_equals_its_reference_over_three_models():
    merged, norms, scaling = update(1), [norm(update(1))], 1.0
    for seed in (2, 3):
        new = update(seed)
        norms.append(norm(new))
        raw = {
            name: scaling * merged[name].double()
            + torch.from_numpy(opcm_reference(merged[name].numpy(), new[name].numpy(), 0.5))
            if name in LINEAR
            else scaling * merged[name].double() + new[name]
            for name in SHAPES
        }
        scaling = norm(raw) / np.mean(norms)
        merged = {name: tensor / scaling for name, tensor in raw.items()}
    found, _ = run("opcm", [1, 2, 3])
    np.testing.assert_allclose(flat(found), flat(merged), atol=1e-5)
    assert norm(found) == pytest.approx(np.mean(norms), rel=1e-5)


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


@pytest.mark.parametrize("name", ["average", "task-arithmetic", "ties", "tsvm", "opcm", "base"])
def test_a_method_changes_neither_its_state_nor_the_update(name: str):
    method = continual_method(name)
    state = method.first(step(1, 1))
    before = {group: {key: value.clone() for key, value in vector.items()} for group, vector in state.items()}
    arriving = step(2, 2)
    method.add(state, arriving)
    for group, vector in before.items():
        for key, value in vector.items():
            assert torch.equal(state[group][key], value)
    assert np.array_equal(flat(dict(arriving.update)), flat(update(2)))
