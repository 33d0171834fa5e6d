"""Output maps from gradients, blended with activations."""

import torch

from transship.verbs.transport.methods.gradient import Gradient
from transship.verbs.transport.methods.theseus import Theseus


def test_gradient_takes_its_output_map_from_gradients(layers):
    pair, acts = layers.layer_pair(5, 4, 8, 7)
    update = layers.gaussian(4, 5, seed=9)
    expected = (
        layers.polar_of(acts["grad_a"].T @ acts["grad_b"]).T
        @ update
        @ layers.polar_of(acts["in_a"].T @ acts["in_b"])
    )
    torch.testing.assert_close(Gradient(blend=1.0).transport(update, pair), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(
        Gradient(blend=0.0).transport(update, pair), Theseus().transport(update, pair), atol=1e-12, rtol=0
    )


def test_a_blend_weighs_both_moments_by_their_nuclear_norms(layers):
    pair, acts = layers.layer_pair(5, 4, 8, 7)
    sides = [acts["out_a"].T @ acts["out_b"], acts["grad_a"].T @ acts["grad_b"]]
    blended = sum(
        share * side / torch.linalg.svdvals(side).sum() for share, side in zip((0.7, 0.3), sides, strict=True)
    )
    torch.testing.assert_close(
        Gradient(blend=0.3).output_map(pair).matrix, layers.polar_of(blended), atol=1e-12, rtol=0
    )
