"""Random updates have the norm of the layer and know nothing of the update."""

import pytest
import torch

from transship.verbs.transport.methods.random import Random
from transship.verbs.transport.methods.random_aligned import RandomAligned
from transship.verbs.transport.methods.theseus import Theseus


def test_random_updates_have_the_layers_norm_and_do_not_read_the_update(layers):
    pair, _ = layers.layer_pair(4, 3, 7, 5)
    points, other = layers.gaussian(3, 4, seed=1), layers.gaussian(3, 4, seed=2)
    other *= points.norm() / other.norm()
    for method in (Random(), RandomAligned()):
        moved = method.transport(points, pair)
        assert float(moved.norm()) == pytest.approx(float(points.norm()), rel=1e-10)
        torch.testing.assert_close(moved, method.transport(other, pair))
    turned = RandomAligned().transport(points, pair)
    t_in = Theseus().input_map(pair).matrix
    # it stays in the aligned space
    torch.testing.assert_close(turned @ t_in.T @ t_in, turned, atol=1e-12, rtol=0)
