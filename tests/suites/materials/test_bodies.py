from __future__ import annotations

from pathlib import Path

import pytest
import torch

from transship_suites.materials.bodies import Eye, lower_states, pretrained_eye, upper_blocks, wide
from transship_suites.materials.encoders import MeanEncoder, wrapped
from transship_suites.materials.small_vision import LabelledRows


@pytest.fixture(scope="module")
def encoder(minilm: Path):
    from transship.activations import load_model

    bare = load_model(minilm)
    return wrapped(bare, MeanEncoder(bare.model))


@pytest.mark.parametrize("blocks", [1, 3])
def test_upper_blocks_on_lower_states_are_the_whole_encoder(encoder, blocks: int):
    texts = ["a", "a longer text than the first", "and one that is cut because it has too many words in it"]
    states = lower_states(encoder, blocks, texts, tokens=10)
    assert states.shape == (3, 10, 384)
    read = encoder.tokenizer(texts, truncation=True, max_length=10, padding=True, return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(
            upper_blocks(encoder, blocks)(states), encoder.model(**read), rtol=1e-4, atol=1e-5
        )
        broad = wide(upper_blocks(encoder, blocks))(states)
    assert broad.shape == (3, min(blocks + 1, 3) * 384)


def test_padding_enters_no_linear_map_and_derivatives_are_those_of_the_blocks_themselves(encoder):
    texts = ["a", "a longer text than the first"]
    states = lower_states(encoder, 2, texts, tokens=10)
    present = (states != 0).any(-1)
    body = upper_blocks(encoder, 2)
    rows: list[int] = []
    for module in body.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _, inputs, __: rows.append(inputs[0].shape[0]))
    body(states).square().sum().backward()
    assert set(rows) == {int(present.sum())}
    assert int(present.sum()) < present.numel()
    found = {name: weight.grad for name, weight in body.named_parameters()}
    plain = upper_blocks(encoder, 2)
    mask, made = torch.zeros(present.shape).masked_fill(~present, -1e9)[:, None, None, :], states
    for block in plain.layer:
        made = block(made, mask)
    features = (made * present[..., None]).sum(1) / present.sum(1, keepdim=True)
    features.square().sum().backward()
    for name, weight in plain.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, rtol=1e-3, atol=1e-5)


def test_an_eye_gives_one_row_per_picture_and_trains_from_its_seed():
    torch.manual_seed(0)
    pictures = LabelledRows(torch.rand(40, 1, 28, 28), torch.arange(40) % 10)
    first, second = (pretrained_eye(pictures, steps=2, seed=3, batch=8) for _ in range(2))
    assert isinstance(first, Eye)
    rows = first(pictures.inputs[:5])
    assert rows.shape == (5, 64)
    torch.testing.assert_close(rows, second(pictures.inputs[:5]))
    broad = wide(first)(pictures.inputs[:5])
    assert broad.shape == (5, 6 * 64)
    torch.testing.assert_close(broad[:, 4 * 64 : 5 * 64], rows)  # the last block's class token is the feature
