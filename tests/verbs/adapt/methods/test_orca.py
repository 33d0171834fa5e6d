"""ORCA: optimal transport dataset distance."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from transship.registry import build_method
from transship.verbs.adapt.methods.orca import DatasetDistance
from transship.verbs.adapt.train.problem import LearningProblem


def test_dataset_distance_prefers_the_source_itself(problem: LearningProblem):
    objective, source = DatasetDistance(problem), problem.known
    near = objective.distance(source.features[source.labels == 1])
    far = objective.distance(source.features[source.labels == 1] + 1.0)
    assert float(near) < float(far)


@pytest.mark.parametrize(("most", "embedded"), [(5, 5), (128, 20)])
def test_orca_takes_so_many_rows_of_each_class(
    problem: LearningProblem, monkeypatch: pytest.MonkeyPatch, most: int, embedded: int
):
    (phase,) = build_method("adapt", "orca", {"per_class": most}).phases()
    assert phase.batch is None  # all rows, of which it takes its own
    sizes: list[int] = []
    distance = DatasetDistance.distance

    def watched(self: DatasetDistance, rows: Tensor) -> Tensor:
        sizes.append(len(rows))
        return distance(self, rows)

    monkeypatch.setattr(DatasetDistance, "distance", watched)
    phase.objective(problem).loss(torch.randperm(60), 0, 1).backward()
    assert sizes == [embedded] * 3
    assert float(problem.network.embedder.project.weight.grad.norm()) > 0  # type: ignore[union-attr]


def test_orca_weighs_classes_by_their_share_of_all_rows(
    problem: LearningProblem, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(DatasetDistance, "distance", lambda self, rows: rows.new_tensor(float(len(rows))))
    codes = problem.train.codes
    index = torch.cat([(codes == code).nonzero()[:count, 0] for code, count in ((0, 20), (1, 10), (2, 2))])
    loss = DatasetDistance(problem, per_class=4).loss(index, 0, 1)
    assert loss.item() == pytest.approx((20 * 4 + 10 * 4 + 2 * 2) / 32)
