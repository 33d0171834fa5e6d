"""Heads: label transport, and dense outputs whose every place belongs to its patch."""

from __future__ import annotations

import pytest
import torch

from transship.verbs.adapt.model.backbone import Backbone
from transship.verbs.adapt.model.network import (
    DenseHead,
    HeadShape,
    TransportHead,
    add_lora,
    merge_lora,
    silence,
)


def transport(source: int, outputs: int) -> TransportHead:
    torch.manual_seed(0)
    head = HeadShape("transport", 6, outputs, source=source).build()
    assert isinstance(head, TransportHead)
    return head


def test_rows_of_the_plan_sum_to_one():
    head = transport(4, 3)
    torch.nn.init.normal_(head.table)
    torch.testing.assert_close(head.plan.sum(1), torch.ones(4))


def test_an_identity_plan_gives_the_sources_prediction_back():
    head, states = transport(4, 4), torch.randn(5, 3, 6)
    weight, bias = torch.randn(4, 6), torch.randn(4)
    head.start(weight, bias, torch.eye(4))
    expected = (states.mean(1) @ weight.T + bias).softmax(1)
    torch.testing.assert_close(head(states).exp(), expected, atol=1e-4, rtol=1e-4)
    head.table.data = 200.0 * torch.eye(4)  # the identity to the last digit
    torch.testing.assert_close(head(states).exp(), expected)


def test_transport_is_the_plan_applied_to_the_sources_probabilities():
    head, states = transport(4, 3), torch.randn(5, 2, 6)
    plan = torch.rand(4, 3).softmax(1)
    head.start(torch.randn(4, 6), torch.randn(4), plan)
    source = head.source(states.mean(1)).softmax(1)
    torch.testing.assert_close(head(states).exp(), source @ plan, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("size", "grid"), [((13,), (1, 4)), ((7, 9), (2, 3))])
@pytest.mark.parametrize("predictor", ["linear", "pooled"])
def test_each_state_fills_its_own_patch_of_a_dense_output(
    size: tuple[int, ...], grid: tuple[int, int], predictor: str
):
    torch.manual_seed(0)
    head = HeadShape(predictor, 60, 2, size, grid, prefix=1).build()  # type: ignore[arg-type]
    assert isinstance(head, DenseHead)
    states = torch.randn(3, 1 + grid[0] * grid[1], 60)
    output = head(states)
    assert output.shape == (3, 2, *size)
    moved = states.clone()
    moved[:, 0] += 1.0  # the class token is not of the field
    torch.testing.assert_close(head(moved), output)
    moved[:, -1] += 1.0
    changed = (head(moved) != output).any(1)[0]
    corner = tuple(
        slice(side - side % -(-side // parts) if side % -(-side // parts) else side - -(-side // parts), None)
        for side, parts in zip(size, grid if len(size) == 2 else (grid[1],), strict=True)
    )
    assert bool(changed[corner].all())
    changed[corner] = False
    assert not bool(changed.any())


def test_a_silenced_head_gives_zeros():
    head = HeadShape("linear", 6, 3).build()
    silence(head)
    assert not bool(head(torch.randn(4, 2, 6)).any())


@pytest.mark.filterwarnings("error")
def test_factors_are_added_to_the_weights_and_leave_nothing_else_behind(tiny_bert: Backbone):
    body = tiny_bert.body()
    before = {name: value.clone() for name, value in body.named_parameters()}
    add_lora(body, 2, seed=0)  # factors that have not learned are a product with zero
    with torch.no_grad():
        key = next(name for name, _ in body.named_parameters() if "lora_B" in name)
        body.get_parameter(key).fill_(0.5)
        half = body.get_parameter(key.replace("lora_B", "lora_A")).sum(0)
    merge_lora(body)
    after = dict(body.named_parameters())
    assert after.keys() == before.keys()
    changed = key.partition(".lora_B")[0] + ".weight"
    torch.testing.assert_close(after[changed], before[changed] + 2 * 0.5 * half)  # alpha = 2·rank
    for name, value in before.items():
        assert name == changed or torch.equal(value, after[name])
    add_lora(body, 2, seed=0)  # as if there had been none before
