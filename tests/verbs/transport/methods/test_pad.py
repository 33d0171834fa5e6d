"""Padding lays the update into a corner."""

import pytest
import torch

from transship.verbs.transport.methods.pad import Pad


def test_pad_lays_the_update_into_the_corner_or_cuts_it(layers):
    update = layers.gaussian(3, 4)
    wide = Pad().transport(update, layers.layer_pair(4, 3, 6, 5)[0])
    assert torch.equal(wide[:3, :4], update)
    assert float(wide.norm()) == pytest.approx(float(update.norm()))
    assert torch.equal(Pad().transport(update, layers.layer_pair(4, 3, 2, 2)[0]), update[:2, :2])
