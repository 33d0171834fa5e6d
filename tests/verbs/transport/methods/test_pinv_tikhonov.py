"""The penalised problem against dense solves, for layers and for rows."""

import torch

from transship.geometry import Moments
from transship.verbs.transport.methods.pinv import Pinv
from transship.verbs.transport.methods.pinv_tikhonov import PinvTikhonov
from transship.verbs.transport.protocol import LayerPair


def test_tikhonov_solves_the_penalised_problem(layers):
    pair, acts = layers.layer_pair(5, 4, 3, 2)
    update = layers.gaussian(4, 5, seed=9)
    gram = acts["in_a"] @ update.T @ acts["out_a"].T
    second_in, second_out = acts["in_b"].T @ acts["in_b"], acts["out_b"].T @ acts["out_b"]
    penalty = 0.1 * second_in.diagonal().mean() * second_out.diagonal().mean()
    system = torch.kron(second_out, second_in) + penalty * torch.eye(6, dtype=torch.float64)
    right = (acts["in_b"].T @ gram @ acts["out_b"]).T.reshape(-1)
    expected = torch.linalg.solve(system, right).reshape(2, 3)
    torch.testing.assert_close(PinvTikhonov(penalty=0.1).transport(update, pair), expected, atol=1e-9, rtol=0)


def test_tikhonov_per_side_replaces_each_inverse(layers):
    pair, acts = layers.layer_pair(5, 4, 3, 2)
    update = layers.gaussian(4, 5, seed=9)
    inverses = []
    for side in ("in", "out"):
        second = acts[f"{side}_b"].T @ acts[f"{side}_b"]
        inverses.append(
            torch.linalg.inv(second + 0.1 * second.diagonal().mean() * torch.eye(len(second)).double())
        )
    expected = (
        inverses[1] @ acts["out_b"].T @ acts["out_a"] @ update @ acts["in_a"].T @ acts["in_b"] @ inverses[0]
    )
    method = PinvTikhonov(penalty=0.1, form="per-side")
    torch.testing.assert_close(method.transport(update, pair), expected, atol=1e-10, rtol=0)


def test_a_tiny_penalty_makes_tikhonov_the_pseudo_inverse(layers):
    pair, _ = layers.layer_pair(5, 4, 3, 2)
    update = layers.gaussian(4, 5, seed=9)
    for form in ("exact", "per-side"):
        moved = PinvTikhonov(penalty=1e-13, form=form).transport(update, pair)
        torch.testing.assert_close(moved, Pinv().transport(update, pair), atol=1e-8, rtol=0)


def test_tikhonov_moves_rows_by_the_dense_penalised_solution():
    a, b = (
        torch.randn(60, width, generator=torch.Generator().manual_seed(width), dtype=torch.float64)
        for width in (4, 6)
    )
    pair = LayerPair("stream", (6, 6), inputs=Moments.of(a, b))
    space_map = PinvTikhonov(penalty=0.1).space_map(pair)
    second = b.T @ b
    penalty = 0.1 * second.diagonal().mean() * torch.eye(6).double()
    expected = a.T @ b @ torch.linalg.inv(second + penalty)
    torch.testing.assert_close(space_map.matrix, expected, atol=1e-10, rtol=0)
    # a row that is moved so is felt alike: a bias of the same space takes the same map
    row = a[0]
    outputs = LayerPair("stream", (6,), outputs=pair.inputs)
    torch.testing.assert_close(
        PinvTikhonov(penalty=0.1).transport_vector(row, outputs), row @ space_map.matrix, atol=1e-10, rtol=0
    )
