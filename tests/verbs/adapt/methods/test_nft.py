"""NFT: naive fine-tuning."""

from __future__ import annotations

from collections.abc import Callable

from transship.registry import build_method
from transship.verbs.adapt import Recraft
from transship.verbs.adapt.train.problem import LearningProblem, TargetLoss


def test_it_has_no_stage_one_and_trains_every_part_on_the_targets(
    fit_of: Callable[[str], Recraft], problem: LearningProblem
):
    method = build_method("adapt", "nft")
    assert not method.phases()
    assert method.trains == {"embedder", "body", "head"}
    assert type(method.objective(problem)) is TargetLoss
    assert fit_of("nft").stage1_ == []
