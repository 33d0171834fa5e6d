"""The closed forms that THESEUS is compared with, against problems written out with all rows."""

import numpy as np
import pytest
import torch

from transship.errors import OptionError
from transship.geometry import Moments, tikhonov

ROWS, OUT_A, IN_A, OUT_B, IN_B = 30, 3, 4, 5, 6


@pytest.fixture
def layer():
    draw = np.random.default_rng(0)
    names = {"in_a": IN_A, "in_b": IN_B, "out_a": OUT_A, "out_b": OUT_B}
    rows = {name: draw.normal(size=(ROWS, width)) for name, width in names.items()}
    update = draw.normal(size=(OUT_A, IN_A))
    tensors = {name: torch.from_numpy(array) for name, array in rows.items()}
    inputs = Moments.of(tensors["in_a"], tensors["in_b"])
    outputs = Moments.of(tensors["out_a"], tensors["out_b"])
    return rows, update, inputs, outputs


def kronecker_solution(rows, update, penalty):
    """The ridge solution of the vectorised problem: (K ᵀK + λI)⁻¹ Kᵀ vec, K = H_out ⊗ H_in."""
    design = np.kron(rows["out_b"], rows["in_b"])
    wanted = (rows["in_a"] @ update.T @ rows["out_a"].T).T.ravel()
    solved = np.linalg.solve(design.T @ design + penalty * np.eye(design.shape[1]), design.T @ wanted)
    return solved.reshape(OUT_B, IN_B)


def test_tikhonov_equals_the_vectorised_ridge(layer):
    rows, update, inputs, outputs = layer
    scale = np.trace(rows["in_b"].T @ rows["in_b"]) / IN_B * np.trace(rows["out_b"].T @ rows["out_b"]) / OUT_B
    result = tikhonov(inputs, outputs, torch.from_numpy(update), 0.2)
    np.testing.assert_allclose(result.numpy(), kronecker_solution(rows, update, 0.2 * scale), atol=1e-10)


def test_tikhonov_per_side_equals_two_loaded_inverses(layer):
    rows, update, inputs, outputs = layer
    array = tikhonov(inputs, outputs, torch.from_numpy(update), 0.2, per_side=True).numpy()
    loaded = {}
    for name in ("in_b", "out_b"):
        second = rows[name].T @ rows[name]
        loaded[name] = np.linalg.inv(second + 0.2 * np.trace(second) / len(second) * np.eye(len(second)))
    carried = rows["out_b"].T @ rows["out_a"] @ update @ rows["in_a"].T @ rows["in_b"]
    np.testing.assert_allclose(array, loaded["out_b"] @ carried @ loaded["in_b"], atol=1e-10)


def test_same_model_gives_the_same_update(layer):
    rows, update, *_ = layer
    inputs, outputs = (Moments.of(*[torch.from_numpy(rows[name])] * 2) for name in ("in_a", "out_a"))
    moved = tikhonov(inputs, outputs, torch.from_numpy(update), 1e-14)
    np.testing.assert_allclose(moved.numpy(), update, atol=1e-10)


def test_shapes_and_strengths_that_do_not_fit_are_refused(layer):
    _, update, inputs, outputs = layer
    with pytest.raises(OptionError, match="does not fit Moments of 3 outputs and 4 inputs"):
        tikhonov(inputs, outputs, torch.from_numpy(update.T.copy()), 0.2)
    with pytest.raises(OptionError, match="strength is 0"):
        tikhonov(inputs, outputs, torch.from_numpy(update), 0.0)
