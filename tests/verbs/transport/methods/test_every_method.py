"""The contract that all methods share, and cases in which several are exact."""

import pytest
import torch

from transship.geometry import Moments
from transship.registry import build_method, describe, method_names
from transship.verbs.transport.methods.gradient import Gradient
from transship.verbs.transport.methods.identity import Identity
from transship.verbs.transport.methods.pad import Pad
from transship.verbs.transport.methods.pinv import Pinv
from transship.verbs.transport.methods.theseus import Theseus
from transship.verbs.transport.protocol import LayerPair, SidedMethod, move_factors

NAMES = method_names("transport")


@pytest.mark.parametrize(("width_a", "width_b"), [(4, 7), (7, 4), (5, 5)])
def test_maps_have_orthonormal_rows_or_columns(layers, width_a: int, width_b: int):
    pair, _ = layers.layer_pair(width_a, width_a, width_b, width_b)
    for method in (Theseus(), Gradient(), Gradient(blend=1.0)):
        for each in (method.input_map(pair), method.output_map(pair)):
            matrix = each.matrix if width_a <= width_b else each.matrix.T
            identity = torch.eye(min(width_a, width_b), dtype=torch.float64)
            torch.testing.assert_close(matrix @ matrix.T, identity, atol=1e-12, rtol=0)


def test_one_model_gives_its_own_update_back(layers):
    rows_in, rows_out, grad = (
        layers.gaussian(60, 6),
        layers.gaussian(60, 5, seed=1),
        layers.gaussian(60, 5, seed=2),
    )
    pair = LayerPair(
        "same", (5, 6), Moments.of(rows_in, rows_in), Moments.of(rows_out, rows_out), Moments.of(grad, grad)
    )
    update = layers.gaussian(5, 6, seed=3)
    for method in (
        Theseus(),
        Theseus(centre=True),
        Gradient(),
        Gradient(blend=1.0),
        Pinv(),
        Pad(),
        Identity(),
    ):
        torch.testing.assert_close(method.transport(update, pair), update, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_keeps_the_contract(layers, name: str):
    method = build_method("transport", name)
    square = method.needs.same_shape
    pair, _ = layers.layer_pair(*((4, 3, 4, 3) if square else (4, 3, 6, 5)))
    update = layers.gaussian(3, 4, seed=1).float()
    before = update.clone()
    moved = method.transport(update, pair)
    assert moved.shape == pair.shape
    assert moved.dtype == update.dtype
    assert torch.equal(update, before), "the update is not touched"
    assert torch.equal(moved, method.transport(update, pair)), "two calls agree"
    assert float(method.transport(torch.zeros_like(update), pair).abs().max()) == 0
    vector = method.transport_vector(update[:, 0], layers.for_vector(pair))
    assert vector.shape == (pair.shape[0],)
    assert vector.dtype == update.dtype


@pytest.mark.parametrize("name", NAMES)
def test_every_method_explains_itself(name: str):
    card = describe("transport", name)
    assert card.paper
    assert all(parameter.help for parameter in card.parameters)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if isinstance(build_method("transport", name), SidedMethod)]
)
def test_factors_move_one_by_one_and_keep_the_rank(layers, name: str):
    method = build_method("transport", name)
    pair, _ = layers.layer_pair(*((6, 5, 6, 5) if method.needs.same_shape else (6, 5, 9, 8)))
    up, down = layers.gaussian(5, 2), layers.gaussian(2, 6, seed=1)
    moved = move_factors(up, down, method.input_map(pair), method.output_map(pair))
    assert moved[0].shape[1] == moved[1].shape[0] == 2
    torch.testing.assert_close(moved[0] @ moved[1], method.transport(up @ down, pair), atol=1e-10, rtol=1e-10)
