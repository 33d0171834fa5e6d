"""Linear: only a head."""

from __future__ import annotations

from collections.abc import Callable

import torch

from transship.numerics import derive_seed
from transship.verbs.adapt import Recraft
from transship.verbs.adapt.model.network import new_embedder


def test_the_embedder_is_that_of_the_seed_and_the_head_has_learned(fit_of: Callable[[str], Recraft]):
    adapted = fit_of("linear").adapted_
    assert adapted.backbone is not None
    embedder = adapted.network.embedder
    start = new_embedder(embedder.shape, adapted.backbone.theta, derive_seed(0, "embedder"))
    for name, value in start.named_parameters():
        assert torch.equal(value, embedder.get_parameter(name)), name
    assert bool(adapted.network.head.linear.bias.any())  # it begins at zero
