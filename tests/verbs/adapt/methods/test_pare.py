"""PaRe: patches of the source in the places of the target's."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from transship.registry import build_method
from transship.verbs.adapt.methods.pare import Pare, PatchReplacement
from transship.verbs.adapt.model.backbone import Backbone
from transship.verbs.adapt.train.problem import LearningProblem


def test_pare_has_the_recipe_of_its_backbone():
    plain = Pare()
    assert plain.recipe(vision=False, dense=False) == (0.5, 0.0, 0.1)
    assert plain.recipe(vision=True, dense=False) == (0.64, 0.16, 1.0)
    assert plain.recipe(vision=True, dense=True) == (0.32, 0.16, 1.0)
    method = build_method("adapt", "pare", {"start_share": "0.4", "weight": "0.2"})
    assert method.recipe(vision=True, dense=False) == (0.4, 0.16, 0.2)


@pytest.mark.parametrize(("reads", "shape"), [("text", (60,)), ("vision", (60,)), ("vision", (60, 1, 3, 3))])
def test_the_mixture_has_the_share_and_the_weight_of_the_recipe(
    problem: LearningProblem, monkeypatch: pytest.MonkeyPatch, reads: str, shape: tuple[int, ...]
):
    monkeypatch.setattr(Backbone, "reads", reads)
    problem = dataclasses.replace(
        problem, train=dataclasses.replace(problem.train, targets=torch.zeros(shape))
    )
    objective = PatchReplacement(problem, Pare())
    replaced: list[int] = []

    def mixed(tokens: Any, source: Any, mask: Any, count: int, generator: Any) -> Any:
        replaced.append(count)
        return tokens

    monkeypatch.setattr(objective, "mix", mixed)
    monkeypatch.setattr(LearningProblem, "target_loss", lambda self, outputs, index: outputs.new_zeros(()))
    everything = torch.zeros(4, 9, 32), torch.ones(4, 9, dtype=torch.bool)
    monkeypatch.setattr(LearningProblem, "source_tokens", lambda self, items: everything)
    monkeypatch.setattr("torch.nn.functional.cross_entropy", lambda scores, labels: torch.tensor(1.0))
    losses = [float(objective.loss(torch.arange(4), step, 9).detach()) for step in (0, 8)]
    count = problem.embedded(torch.arange(1)).shape[1]
    start, end, weight = Pare().recipe(vision=reads == "vision", dense=len(shape) > 2)
    wanted = [round(share * count) for share in (start, end)]
    assert replaced == [number for number in wanted if number]
    # λ CE(mixture, z) is all that is left of the loss
    assert losses == pytest.approx([weight * number / count for number in wanted])


def test_pare_puts_the_best_source_patches_where_the_worst_target_patches_were(problem: LearningProblem):
    objective = PatchReplacement(problem, Pare())
    tokens, source = problem.embedded(torch.arange(4)).detach(), torch.randn(4, 6, 32)
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[:, 5] = False
    mixed = objective.mix(tokens, source, mask, 3, None)
    gates = [torch.sigmoid(objective.gate(part)).squeeze(2) for part in (tokens, source)]
    worst = gates[0].argsort(1)[:, :3]
    best = gates[1].masked_fill(~mask, -1.0).topk(3, 1).indices
    for row in range(4):
        torch.testing.assert_close(mixed[row, worst[row]], source[row, best[row]])
        kept = [place for place in range(tokens.shape[1]) if place not in worst[row].tolist()]
        torch.testing.assert_close(mixed[row, kept], tokens[row, kept])
    mixed.square().sum().backward()
    assert objective.gate.weight.grad is not None
    assert float(objective.gate.weight.grad.abs().sum()) > 0


def test_its_loss_is_that_of_stage_two(problem: LearningProblem):
    assert isinstance(build_method("adapt", "pare").objective(problem), PatchReplacement)
