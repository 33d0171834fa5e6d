"""The pseudo-inverse against one dense least-squares problem."""

import torch

from transship.verbs.transport.methods.pinv import Pinv


def test_pinv_solves_the_papers_least_squares_problem(layers):
    pair, acts = layers.layer_pair(5, 4, 3, 2)
    update = layers.gaussian(4, 5, seed=9)
    # Eq. (4) as one dense system: vec(H_in τᵀ H_outᵀ) = (H_out ⊗ H_in) vec(τᵀ)
    gram = acts["in_a"] @ update.T @ acts["out_a"].T
    solution = torch.linalg.pinv(acts["in_b"]) @ gram @ torch.linalg.pinv(acts["out_b"]).T
    torch.testing.assert_close(Pinv().transport(update, pair), solution.T, atol=1e-10, rtol=0)
