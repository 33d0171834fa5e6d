"""Permutations of rows and columns."""

import torch

from transship.verbs.transport.methods.transfusion import Transfusion


def test_transfusion_permutes_rows_and_columns(layers):
    pair, _ = layers.layer_pair(4, 3, 4, 3)
    update = layers.gaussian(3, 4, seed=4)
    moved = Transfusion().transport(update, pair)
    assert torch.equal(moved, update[pair.output_order][:, pair.input_order])
    assert torch.equal(Transfusion().transport_vector(update[:, 0], pair), update[pair.output_order, 0])
