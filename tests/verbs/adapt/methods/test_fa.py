"""FA: feature alignment alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from transship.registry import build_method
from transship.verbs.adapt.methods.fa import FeatureAlignment
from transship.verbs.adapt.model.network import AdaptedNetwork
from transship.verbs.adapt.train.losses import SinkhornAlignment
from transship.verbs.adapt.train.problem import LearningProblem


def test_alignment_does_not_run_the_body_and_moves_only_the_embedder(
    problem: LearningProblem, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(AdaptedNetwork, "states", lambda *arguments: pytest.fail("the body ran"))
    FeatureAlignment(problem).loss(torch.arange(60), 0, 1).backward()
    assert problem.network.embedder.project.weight.grad is not None
    assert all(parameter.grad is None for parameter in problem.network.body.parameters())


def test_the_loss_is_omega_times_the_distance_of_token_means(problem: LearningProblem):
    index = torch.arange(60)
    loss = FeatureAlignment(problem, 2.0).loss(index, 0, 1).item()
    alone = SinkhornAlignment(problem.known.features)(problem.embedded(index).mean(1)).item()
    assert loss == pytest.approx(2.0 * problem.known.omega * alone)


def test_its_path_is_shorter_alignments():
    path: Any = build_method("adapt", "fa").path(3)
    assert [options for options, _ in path] == [{"fa_steps": 0}, {"fa_steps": 30}, {"fa_steps": 60}]
    assert [name for _, name in path] == ["no stage 1: NFT", "30 steps of stage 1", "all of stage 1"]
