"""Second moments of what enters each linear map, and the weights they lead to."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from transship.verbs.merge.joint import JointTask, joint
from transship.verbs.merge.maths.grams import input_grams, shrunk

Tasks = dict[str, JointTask]
Weights = Callable[[str], dict[str, Tensor]]


def test_grams_are_the_second_moments_of_what_enters_each_map(
    network: nn.Module, tasks: Tasks, inputs: dict[str, Tensor], weights_of: Weights
):
    actual = input_grams(tasks["a"].view(), weights_of("a"), batch_size=7)
    pairs = {f"layers.{n}.left.weight|layers.{n}.right.weight" for n in (0, 1)}
    assert set(actual) == pairs | {f"layers.{n}.out.weight" for n in (0, 1)}
    rows = torch.cat([inputs["a"], torch.ones(len(inputs["a"]), 1)], 1).double()
    expected = rows.T @ rows / len(rows)
    torch.testing.assert_close(
        actual["layers.0.left.weight|layers.0.right.weight"], expected, rtol=1e-5, atol=1e-5
    )


def test_shrinking_keeps_the_diagonal_and_the_input_untouched():
    gram = torch.tensor([[2.0, 1.0], [1.0, 4.0]])
    torch.testing.assert_close(shrunk(gram, 0.5, 0.0), torch.tensor([[2.0, 0.5], [0.5, 4.0]]))
    assert gram[0, 1] == 1.0


def test_transposed_maps_are_solved_in_their_own_orientation():
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(1)
    module = nn.Sequential(Conv1D(6, 4), nn.Tanh(), nn.Linear(6, 3)).eval()
    plain = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).eval()
    with torch.no_grad():
        plain[0].weight.copy_(module[0].weight.T)
        plain[0].bias.copy_(module[0].bias)
        plain[2].load_state_dict(module[2].state_dict())
    tuned = {}
    for name in "ab":
        generator = torch.Generator().manual_seed(ord(name))
        tuned[name] = {
            key: value + 0.01 * torch.randn(value.shape, generator=generator)
            for key, value in module.state_dict().items()
        }
    flipped = {
        name: {key: value.T if key == "0.weight" else value for key, value in state.items()}
        for name, state in tuned.items()
    }
    data = {name: torch.randn(30, 4) for name in "ab"}
    first, second = joint(module, tuned, data, "regmean"), joint(plain, flipped, data, "regmean")
    torch.testing.assert_close(first["0.weight"].T, second["0.weight"])
    torch.testing.assert_close(first["2.weight"], second["2.weight"])
