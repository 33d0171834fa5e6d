"""What may move: strengths of an update, weights, factors."""

import numpy as np
import pytest
import torch

from transship.finish.movables import Factored, Strengths, Weights, fresh_factors


def tensors(seed: int, **shapes: tuple[int, ...]) -> dict[str, torch.Tensor]:
    draws = np.random.default_rng(seed)
    return {name: torch.from_numpy(draws.normal(size=shape)).float() for name, shape in shapes.items()}


SHAPES = {"matrix": (3, 4), "vector": (5,), "table": (1, 2, 3), "scalar": ()}


@pytest.mark.parametrize("per", ["tensor", "row"])
def test_one_strength_for_all_is_contained(per: str):
    base, change = tensors(0, **SHAPES), tensors(1, **SHAPES)
    movable = Strengths(base, change, per=per, strength=1.5)
    weights = movable.weights(movable.start())
    for name in base:
        torch.testing.assert_close(weights[name], base[name] + 1.5 * change[name])


def test_a_strength_per_row_scales_the_rows_and_contains_one_per_tensor():
    base, change = tensors(0, **SHAPES), tensors(1, **SHAPES)
    movable = Strengths(base, change, per="row")
    learnt = movable.start()
    assert {name: len(strengths) for name, strengths in learnt.items()} == {
        "matrix": 3,
        "vector": 5,
        "table": 1,
        "scalar": 1,
    }
    learnt["matrix"] = torch.tensor([0.0, 2.0, -1.0])
    weights = movable.weights(learnt)
    for row, strength in enumerate((0.0, 2.0, -1.0)):
        expected = base["matrix"][row] + strength * change["matrix"][row]
        torch.testing.assert_close(weights["matrix"][row], expected)


def test_weights_start_as_copies_of_what_they_are():
    given = tensors(0, matrix=(2, 2))
    movable = Weights(given)
    learnt = movable.start()
    learnt["matrix"].zero_()
    assert bool(given["matrix"].any())


def test_factors_begin_with_the_product_that_they_came_with_and_with_sides_of_one_size():
    base, factors = tensors(0, matrix=(6, 5)), tensors(1, up=(6, 2), down=(2, 5))
    movable = Factored(base, {"matrix": (100 * factors["up"], factors["down"])}, {})
    learnt = movable.start()
    expected = base["matrix"] + 100 * factors["up"] @ factors["down"]
    torch.testing.assert_close(movable.weights(learnt)["matrix"], expected, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(learnt["matrix.up"].norm(), learnt["matrix.down"].norm())


def test_fresh_factors_change_nothing_and_still_have_a_slope():
    base = tensors(0, matrix=(4, 3))
    movable = Factored(base, fresh_factors(base, rank=8, seed=0), tensors(2, bias=(4,)))
    learnt = {name: tensor.requires_grad_() for name, tensor in movable.start().items()}
    weights = movable.weights(learnt)
    assert learnt["matrix.down"].shape == (3, 3)  # no more rank than the matrix has
    assert torch.equal(weights["matrix"], base["matrix"])
    weights["matrix"].sum().backward()
    assert bool(learnt["matrix.up"].grad.any())
