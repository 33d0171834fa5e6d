"""Memory: what is stated is what is taken."""

import ctypes

import pytest
import torch
from torch import nn

from transship.verbs.merge.fusion import Fusion
from transship.verbs.merge.fusion.measure import StepCost, anonymous_memory
from transship.verbs.merge.fusion.steps import plan_add

MB = 1_000_000
WIDTH = 1500


@pytest.mark.parametrize(("granularity", "copies"), [("entry", 8), ("row", 2), ("tensor", 2)])
def test_otmf_takes_the_memory_that_it_states(granularity: str, copies: int):
    torch.manual_seed(0)
    base = nn.Linear(WIDTH, WIDTH)
    size = 4 * WIDTH * (WIDTH + 1)
    fusion = Fusion(
        base,
        "otmf",
        options={"iterations": 2, "granularity": granularity, "batch_size": 8},
        heads="own",
        keep_inputs=8,
    )
    inputs = torch.randn(8, WIDTH)
    tuned = [
        {name: t + 0.001 * torch.randn(t.shape) for name, t in base.state_dict().items()} for _ in range(2)
    ]
    fusion.add(tuned[0], inputs, name="one")
    step = plan_add(
        fusion.fused,
        fusion.origin,
        fusion.choices,
        tuned[1],
        inputs,
        name="two",
        labels=None,
        test=None,
        inputs=None,
        test_rows=None,
    )
    stated = fusion.method.memory({name: t.shape for name, t in fusion.backbone.items()})
    assert copies * size <= stated <= (copies + 0.1) * size
    ctypes.CDLL(None).malloc_trim(0)  # what earlier tests freed would be used again, and not be seen
    before = anonymous_memory()
    with StepCost() as cost:
        fusion.method.add(fusion.state, step.arrival)
    taken = cost.memory - before
    # beside what is stated: one tensor at work, and the sampling's granularity
    assert 0.5 * stated <= taken <= stated + 2 * size + 12 * MB, (taken / size, stated / size)


def test_peak_memory_sees_an_array_that_has_gone():
    ctypes.CDLL(None).malloc_trim(0)
    with StepCost() as cost:
        before = anonymous_memory()
        torch.ones(20_000_000).add_(1.0).sum()
    assert cost.memory - before > 60 * MB
