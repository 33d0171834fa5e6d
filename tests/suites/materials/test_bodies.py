from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from transship_suites.materials.bodies import (
    Eye,
    LabelledTask,
    encode,
    from_arrays,
    lower_states,
    pretrained_eye,
    probe,
    to_arrays,
    tune,
    upper_blocks,
    wide,
)
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
    by_name = {name: weight.grad for name, weight in body.named_parameters()}
    plain = upper_blocks(encoder, 2)
    mask, result = torch.zeros(present.shape).masked_fill(~present, -1e9)[:, None, None, :], states
    for block in plain.layer:
        result = block(result, mask)
    features = (result * present[..., None]).sum(1) / present.sum(1, keepdim=True)
    features.square().sum().backward()
    for name, weight in plain.named_parameters():
        torch.testing.assert_close(by_name[name], weight.grad, rtol=1e-3, atol=1e-5)


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


def task(name: str, seed: int, classes: int = 3) -> LabelledTask:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(300, 5, generator=generator)
    labels = (inputs @ torch.randn(5, classes, generator=generator)).argmax(1)
    return LabelledTask(
        name, LabelledRows(inputs[:200], labels[:200]), LabelledRows(inputs[200:], labels[200:]), classes
    )


def base() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 4))


def score(body: nn.Module, head: nn.Linear, rows: LabelledRows) -> float:
    return float((head(encode(body, rows.inputs)).argmax(1) == rows.labels).double().mean())


def test_fine_tuning_beats_the_probe_leaves_the_base_alone_and_repeats_itself():
    start, result = base(), task("one", 1)
    before = copy.deepcopy(start.state_dict())
    probed = probe(encode(start, result.train.inputs), result.train.labels, 3, seed=0)
    settings = {"steps": 200, "rate": 1e-2, "seed": 0, "batch": 32}
    body, heads = tune(start, [result], **settings)
    assert score(body, heads[0], result.test) > score(start, probed, result.test) + 0.05
    assert all(torch.equal(before[name], tensor) for name, tensor in start.state_dict().items())
    again, _ = tune(start, [result], **settings)
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in body.state_dict().items())


def test_dropout_is_drawn_from_the_seed_and_leaves_the_global_draws_alone():
    result = task("one", 1)
    start = nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.5), nn.Linear(16, 4)).eval()
    settings = {"steps": 3, "rate": 1e-2, "batch": 32}
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, _ = tune(start, [result], seed=0, **settings)
    assert torch.equal(torch.rand(1), expected)  # and the next one begins from another state
    again, _ = tune(start, [result], seed=0, **settings)
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in first.state_dict().items())


def test_several_tasks_share_one_body_and_keep_a_head_each():
    tasks = [task("one", 1), task("two", 2, classes=4)]
    body, heads = tune(base(), tasks, steps=150, rate=1e-2, seed=0, batch=32)
    assert [head.out_features for head in heads] == [3, 4]
    assert all(score(body, head, each.test) > 0.6 for head, each in zip(heads, tasks, strict=True))


def test_weights_come_back_from_arrays():
    body, heads = tune(base(), [task("one", 1), task("two", 2)], steps=2, rate=1e-2, seed=0, batch=8)
    back, back_heads = from_arrays(to_arrays(body, heads), base())
    inputs = torch.randn(7, 5)
    torch.testing.assert_close(encode(back, inputs), encode(body, inputs))
    for head, other in zip(heads, back_heads, strict=True):
        torch.testing.assert_close(other.weight, head.weight)
