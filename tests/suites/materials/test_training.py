from __future__ import annotations

import copy

import torch
from torch import nn

from transship_suites.materials.bodies import LabelledTask, encode, from_arrays, probe, to_arrays, tune
from transship_suites.materials.small_vision import LabelledRows


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
    start, one = base(), task("one", 1)
    before = copy.deepcopy(start.state_dict())
    probed = probe(encode(start, one.train.inputs), one.train.labels, 3, seed=0)
    settings = {"steps": 200, "rate": 1e-2, "seed": 0, "batch": 32}
    body, heads = tune(start, [one], **settings)
    assert score(body, heads[0], one.test) > score(start, probed, one.test) + 0.05
    assert all(torch.equal(before[name], tensor) for name, tensor in start.state_dict().items())
    again, _ = tune(start, [one], **settings)
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in body.state_dict().items())


def test_dropout_is_drawn_from_the_seed_and_leaves_the_global_draws_alone():
    one = task("one", 1)
    start = nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.5), nn.Linear(16, 4)).eval()
    settings = {"steps": 3, "rate": 1e-2, "batch": 32}
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, _ = tune(start, [one], seed=0, **settings)
    assert torch.equal(torch.rand(1), expected)  # and the next one begins from another state
    again, _ = tune(start, [one], seed=0, **settings)
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in first.state_dict().items())


def test_several_tasks_share_one_body_and_keep_a_head_each():
    tasks = [task("one", 1), task("two", 2, classes=4)]
    body, heads = tune(base(), tasks, steps=150, rate=1e-2, seed=0, batch=32)
    assert [head.out_features for head in heads] == [3, 4]
    assert all(score(body, head, one.test) > 0.6 for head, one in zip(heads, tasks, strict=True))


def test_weights_come_back_from_arrays():
    body, heads = tune(base(), [task("one", 1), task("two", 2)], steps=2, rate=1e-2, seed=0, batch=8)
    back, back_heads = from_arrays(to_arrays(body, heads), base())
    inputs = torch.randn(7, 5)
    torch.testing.assert_close(encode(back, inputs), encode(body, inputs))
    for head, other in zip(heads, back_heads, strict=True):
        torch.testing.assert_close(other.weight, head.weight)
