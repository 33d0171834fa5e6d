"""Frozen: the body stays as it is."""

from __future__ import annotations

from collections.abc import Callable

import torch

from transship.verbs.adapt import Recraft


def test_the_embedder_moves_as_that_of_naive_fine_tuning_does_and_the_body_stays(
    fit_of: Callable[[str], Recraft],
):
    frozen, start = fit_of("frozen").adapted_, fit_of("linear").adapted_
    assert not torch.equal(frozen.network.embedder.project.weight, start.network.embedder.project.weight)
    for name, value in frozen.pristine.named_parameters():
        assert torch.equal(value, frozen.network.body.get_parameter(name)), name
