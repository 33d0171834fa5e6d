"""`weights: auto` on models in memory: what it makes small, and that it finds where that is."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from transship.errors import NumericalError
from transship.verbs.merge.fusion.origin import ModuleOrigin
from transship.verbs.merge.joint import JointTask
from transship.verbs.merge.maths.states import Vector
from transship.verbs.merge.protocol import TaskView
from transship.verbs.merge.recipe.run.search import Answers, Factors, Search, answers_of

Tasks = dict[str, JointTask]


@dataclass(frozen=True, eq=False)
class Model:
    origin: ModuleOrigin
    task: JointTask

    @property
    def name(self) -> str:
        return self.task.name

    def weights(self) -> Vector:
        return {name: self.origin.weights[name] + change for name, change in self.task.update().items()}

    def view(self) -> TaskView:
        return self.task.view()


def arithmetic(origin: ModuleOrigin, tasks: list[JointTask], start: float):
    def trial(factors: Factors) -> Vector:
        return {
            name: tensor
            + sum(start * factor * task.update()[name] for factor, task in zip(factors, tasks, strict=True))
            for name, tensor in origin.weights.items()
        }

    return trial


def test_one_model_finds_its_own_weight(tasks: Tasks, origin: ModuleOrigin):
    """At weight 1 the merge is the model itself; the search starts at 1/1.5³."""
    search = Search([Model(origin, tasks["a"])], arithmetic(origin, [tasks["a"]], 1.5**-3))
    result = search.run()
    assert result.factors[0] == pytest.approx(1.5**3)
    assert result.loss == pytest.approx(0.0, abs=1e-6)
    assert result.start > 0.001
    assert result.trials == len(search._known)


def test_the_loss_is_lower_than_on_a_grid_around_the_start(tasks: Tasks, origin: ModuleOrigin):
    chosen = [tasks["a"], tasks["b"]]
    search = Search([Model(origin, task) for task in chosen], arithmetic(origin, chosen, 0.5), rounds=3)
    result = search.run()
    assert result.loss < result.start
    seens = [task.view() for task in chosen]
    own = [answers_of(seen, Model(origin, task).weights()) for seen, task in zip(seens, chosen, strict=True)]
    for first in (0.6, 1.0, 1.6):
        for second in (0.6, 1.0, 1.6):
            assert result.loss <= search._loss((first, second), seens, own) + 0.02


def test_the_same_search_finds_the_same(tasks: Tasks, origin: ModuleOrigin):
    chosen = [tasks["a"], tasks["b"]]
    first, second = (
        Search([Model(origin, task) for task in chosen], arithmetic(origin, chosen, 0.5), objective).run()
        for objective in ("outputs", "outputs")
    )
    assert first == second


def test_distances_are_those_of_their_definitions():
    own = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    other = torch.tensor([[0.0, 1.0], [0.0, 3.0]])
    p, q = own.softmax(1), other.softmax(1)
    divergence = float((p * (p / q).log()).sum(1).mean())
    answers, reference = Answers(other, "classes"), Answers(own, "classes")
    assert answers.distance(reference, "outputs") == pytest.approx(divergence, rel=1e-5)
    assert answers.distance(reference, "agreement") == 0.5
    assert answers.distance(reference, "entropy") == pytest.approx(
        float(-(q * q.log()).sum(1).mean()), rel=1e-4
    )
    assert reference.distance(reference, "outputs") == pytest.approx(0.0, abs=1e-7)
    values = Answers(torch.tensor([[1.0], [3.0]]), "values")
    assert Answers(torch.tensor([[2.0], [3.0]]), "values").distance(values, "outputs") == pytest.approx(0.5)


def test_models_without_a_head_are_compared_by_their_features(
    origin: ModuleOrigin, fine_tunes: dict[str, dict[str, Tensor]], inputs: dict[str, Tensor]
):
    bare = {key: value for key, value in fine_tunes["a"].items() if not key.startswith("head.")}
    arrival = origin.admit(bare, "bare")
    task = JointTask(arrival.update, arrival.model.over(inputs["a"]))
    assert answers_of(task.view(), origin.weights).kind == "features"
    result = Search([Model(origin, task)], arithmetic(origin, [task], 1 / 1.5)).run()
    assert result.factors[0] == pytest.approx(1.5)


def test_answers_that_are_no_numbers_stop_the_search(tasks: Tasks, origin: ModuleOrigin):
    def broken(factors: Factors) -> Vector:
        return {name: tensor * float("nan") for name, tensor in origin.weights.items()}

    with pytest.raises(NumericalError, match=r"weights: auto: .* NaN"):
        Search([Model(origin, tasks["a"])], broken).run()
