"""FPT: of the body the norms learn, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import torch

from transship.verbs.adapt import Recraft


def test_norms_move_and_the_other_weights_of_the_body_stay(fit_of: Callable[[str], Recraft]):
    adapted = fit_of("fpt").adapted_
    body = adapted.network.body
    for name, value in adapted.pristine.named_parameters():
        assert torch.equal(value, body.get_parameter(name)) == ("LayerNorm" not in name), name
