"""LoRA on a body: factors that are taken out leave nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from transship.verbs.adapt.model.lora import add_lora, drop_lora


@pytest.mark.filterwarnings("error")
def test_factors_that_are_dropped_leave_the_body_as_it_was(tiny_bert: Any):
    body = tiny_bert.body()
    before = {name: value.clone() for name, value in body.named_parameters()}
    add_lora(body, 2, seed=0)
    with torch.no_grad():
        for name, value in body.named_parameters():
            if "lora_" in name:
                value.fill_(1.0)
    drop_lora(body)
    after = dict(body.named_parameters())
    assert after.keys() == before.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    add_lora(body, 2, seed=0)  # as if there had been none before
