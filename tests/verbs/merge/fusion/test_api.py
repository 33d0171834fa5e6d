"""Fusion in memory: steps, strength, removal, what is measured, and what is refused."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from transship.errors import CheckpointError, DataError, NumericalError, OptionError
from transship.registry import method_names
from transship.verbs.merge.fusion import Fusion
from transship.verbs.merge.fusion.measure import StepReport, quality, shift, summary
from transship.verbs.merge.maths.states import norm


def test_the_merged_model_runs_with_each_tasks_head(toy: Any):
    fusion = Fusion(toy.base, "average", heads="own")
    for number in range(3):
        toy.join(fusion, number)
    encoder = toy._encoder()
    encoder.load_state_dict({name: sum(t[name] for t in toy.tuned) / 3 for name in toy.base.state_dict()})
    for number in range(3):
        expected = nn.functional.linear(
            encoder(toy.inputs), toy.tuned[number]["head.weight"], toy.tuned[number]["head.bias"]
        )
        torch.testing.assert_close(fusion.predict(f"task-{number}", toy.inputs), expected)


def test_the_base_module_is_never_changed(toy: Any):
    before = {name: tensor.clone() for name, tensor in toy.base.state_dict().items()}
    fusion = Fusion(toy.base, "otmf", options={"iterations": 3}, heads="carried", keep_inputs=20)
    for number in range(2):
        toy.join(fusion, number)
    assert all(torch.equal(before[name], tensor) for name, tensor in toy.base.state_dict().items())


def test_history_holds_accuracies_of_all_tasks_seen(toy: Any):
    fusion = Fusion(toy.base, "opcm", heads="carried", keep_inputs=50)
    for number in range(3):
        toy.join(fusion, number)
    assert [set(step.accuracy["carried"]) for step in fusion.history] == [
        {"task-0"},
        {"task-0", "task-1"},
        {"task-0", "task-1", "task-2"},
    ]
    outputs = fusion.predict("task-1", toy.inputs[160:])
    right = float((outputs.argmax(1) == toy.labels[1][160:]).double().mean())
    assert fusion.history[-1].accuracy["carried"]["task-1"] == right
    result = fusion.summary()
    last = fusion.history[-1].accuracy["carried"]
    assert result["heads"]["carried"]["acc"] == pytest.approx(sum(last.values()) / 3)
    moved = [last[f"task-{n}"] - fusion.history[n].accuracy["carried"][f"task-{n}"] for n in range(2)]
    assert result["heads"]["carried"]["bwt"] == pytest.approx(sum(moved) / 2)
    assert result["heads"]["carried"]["bwt_fixed_heads"] == result["heads"]["own"]["bwt"]


@pytest.mark.parametrize(("kept", "strength"), [(30, "norm"), (0, 1.0)])
def test_the_default_is_the_average_at_the_length_of_the_updates_where_inputs_are_kept(
    kept: int, strength: float | str, toy: Any
):
    fusions = [Fusion(toy.base, keep_inputs=kept, finish="none")]
    fusions += [Fusion(toy.base, "average", keep_inputs=kept, strength=strength)]
    for fusion in fusions:
        toy.join(fusion, 0)
        toy.join(fusion, 1)
    first, second = fusions
    assert first.choices.as_dict() == second.choices.as_dict()
    for name, tensor in first.parameters.items():
        assert torch.equal(tensor, second.parameters[name])
    if kept:
        base = toy.base.state_dict()
        lengths = [norm({name: tuned[name] - base[name] for name in base}) for tuned in toy.tuned[:2]]
        assert first.history[-1].norm == pytest.approx(sum(lengths) / 2, rel=1e-5)
    assert Fusion(toy.base, "average", keep_inputs=kept).choices.strength == 1.0


def test_backward_transfer_leaves_the_last_task_out():
    history = [
        StepReport(1, "a", {"own": {"a": 0.9}}),
        StepReport(2, "b", {"own": {"a": 0.7, "b": 0.8}}),
        StepReport(3, "c", {"own": {"a": 0.5, "b": 0.9, "c": 0.1}}),
    ]
    result = quality(history, ["a", "b", "c"], "own")
    assert result is not None
    assert result.acc == pytest.approx(0.5)
    assert result.bwt == pytest.approx((-0.4 + 0.1) / 2)
    assert math.isnan(result.matrix[0][1])
    outcome = quality(history[:1], ["a"], "own")
    assert outcome is not None
    assert math.isnan(outcome.bwt)
    assert summary(history[:1], ["a"], {"a": 1.0})["heads"]["own"]["bwt"] is None


def test_the_shift_is_the_papers_and_zero_where_features_agree():
    own, merged = torch.randn(30, 5), torch.randn(30, 5)
    delta, divergence = shift(merged, own)
    assert delta == pytest.approx(float((merged - own).abs().sum(1).mean()), rel=1e-6)
    assert divergence > 0
    assert shift(own, own) == pytest.approx((0.0, 0.0), abs=1e-6)


def test_a_first_model_under_averaging_has_not_moved(toy: Any):
    fusion = toy.join(Fusion(toy.base, "average", heads="own", keep_inputs=30), 0)
    assert fusion.history[0].shift["task-0"] == pytest.approx(0, abs=1e-5)
    assert fusion.history[0].accuracy["own"]["task-0"] == fusion.tasks[0].individual


def test_strength_by_norm_gives_the_mean_length(toy: Any):
    fusion = Fusion(toy.base, "average", heads="own", strength="norm")
    for number in range(3):
        toy.join(fusion, number)
    mean = sum(task.norm for task in fusion.tasks) / 3
    size = norm({name: tensor - fusion.backbone[name] for name, tensor in fusion.parameters.items()})
    assert size == pytest.approx(mean, rel=1e-4)
    assert fusion.strength > 1


def test_strength_by_validation_is_no_worse_than_one_on_held_out_rows(toy: Any):
    from transship.verbs.merge.fusion.refresh import STRENGTHS, agreement, scaled

    fusion = Fusion(toy.base, "average", heads="carried", strength="validation", keep_inputs=90)
    for number in range(3):
        toy.join(fusion, number)
    scores = {
        strength: agreement(scaled(fusion.backbone, fusion.vector, strength), fusion.tasks, fusion.choices)
        for strength in STRENGTHS
    }
    assert scores[fusion.strength] == max(scores.values())


def test_a_model_taken_out_leaves_the_fusion_of_the_others(toy: Any):
    fusion = Fusion(toy.base, "average", keep_inputs=40)
    for number in range(3):
        toy.join(fusion, number)
    fusion.remove(toy.tuned[1])
    other = Fusion(toy.base, "average", keep_inputs=40)
    for number in (0, 2):
        toy.join(other, number)
    assert [task.name for task in fusion.tasks] == ["task-0", "task-2"]
    for name, tensor in other.vector.items():
        torch.testing.assert_close(fusion.vector[name], tensor, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(
        fusion.predict("task-2", toy.inputs), other.predict("task-2", toy.inputs), rtol=1e-3, atol=1e-4
    )
    assert fusion.summary()["heads"]["carried-polished"]["acc"] == pytest.approx(
        other.summary()["heads"]["carried-polished"]["acc"], abs=0.02
    )
    fusion.remove(toy.tuned[0]).remove(toy.tuned[2])
    assert fusion.tasks == ()
    assert fusion.vector == {}
    toy.join(fusion, 1)
    assert len(fusion.tasks) == 1


def test_removal_is_refused_by_name_where_the_state_is_no_sum(toy: Any):
    fusion = toy.join(Fusion(toy.base, "opcm", keep_inputs=20), 0)
    with pytest.raises(OptionError, match="opcm cannot take a model out"):
        fusion.remove(toy.tuned[0])
    average = toy.join(Fusion(toy.base, "average"), 0)
    with pytest.raises(OptionError, match="not among the models that were added"):
        average.remove(toy.tuned[1])


def changed(tuned: dict[str, torch.Tensor], **new: Any) -> dict[str, torch.Tensor]:
    fields = {**tuned, **{key.replace("__", "."): value for key, value in new.items()}}
    return {key: value for key, value in fields.items() if value is not None}


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"0__weight": None}, CheckpointError, "it lacks '0.weight', which the base has"),
        ({"9__weight": torch.ones(2)}, CheckpointError, "it holds '9.weight', which the base has not"),
        ({"0__weight": torch.ones(3, 3)}, CheckpointError, "'0.weight' has shape [3, 3] and [16, 10]"),
        ({"3__bias": torch.full((12,), math.nan)}, NumericalError, "tensor '3.bias' holds a NaN"),
        ({"0__weight": torch.randn(16, 10) * 3}, CheckpointError, "it is no fine-tune"),
    ],
)
def test_a_fine_tune_that_does_not_fit_is_one_sentence_and_changes_nothing(
    toy: Any, change: dict[str, Any], kind: type[Exception], message: str
):
    fusion = toy.join(Fusion(toy.base, "average", heads="own"), 0)
    state = {name: tensor.clone() for name, tensor in fusion.vector.items()}
    with pytest.raises(kind) as caught:
        fusion.add(changed(toy.tuned[1], **change), toy.inputs, name="bad")
    assert message in str(caught.value)
    assert len(fusion.tasks) == len(fusion.history) == 1
    assert all(torch.equal(fusion.vector[name], tensor) for name, tensor in state.items())
    toy.join(fusion, 1)
    assert len(fusion.tasks) == 2


def test_the_same_model_twice_is_noticed(toy: Any):
    fusion = toy.join(Fusion(toy.base, "average", heads="own"), 0)
    with pytest.raises(OptionError, match="the same model was added before, as 'task-0'"):
        fusion.add(toy.tuned[0], toy.inputs, name="again")
    with pytest.raises(OptionError, match="there is a task 'task-0' already"):
        fusion.add(toy.tuned[1], toy.inputs, name="task-0")


def test_an_error_while_heads_are_fitted_leaves_the_state(toy: Any):
    fusion = toy.join(Fusion(toy.base, "average", heads="own"), 0)
    before = fusion.vector
    with pytest.raises(DataError, match="class 9 and its head has 4 outputs"):
        fusion.add(toy.tuned[1], toy.inputs, test=(toy.inputs, [9] * 240), name="wrong")
    assert all(torch.equal(fusion.vector[name], tensor) for name, tensor in before.items())
    assert len(fusion.tasks) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "otmf"}, "otmf reads inputs of the task before each new one, and none are kept"),
        ({"method": "average", "heads": "tuned"}, "heads are tuned on rows of an earlier task"),
        ({"method": "average", "strength": "validation"}, "a strength is validated on inputs of all tasks"),
        ({"method": "average", "strength": "strong"}, "'strong' is no strength"),
        ({"method": "opmc"}, "did you mean 'opcm'?"),
        ({"method": "opcm", "options": {"kepd": 0.3}}, "did you mean 'kept'?"),
        ({"method": "opcm", "head_options": {"penalti": 1}}, "did you mean 'penalty'?"),
        ({"method": "opcm", "keep_inputs": -1}, "give 0 or more"),
    ],
)
def test_choices_that_do_not_fit_are_one_sentence(toy: Any, options: dict[str, Any], message: str):
    with pytest.raises(OptionError) as caught:
        Fusion(toy.base, **options)
    assert message in str(caught.value)


def test_data_is_asked_for_where_it_is_needed(toy: Any):
    with pytest.raises(DataError, match="a head of kind 'carried-once' needs inputs of the task"):
        Fusion(toy.base, "average").add(toy.tuned[0], name="task-0")
    Fusion(toy.base, "average", heads="own").add(toy.tuned[0], name="task-0")


@pytest.mark.parametrize("method", method_names("merge", facet="add"))
def test_the_state_does_not_grow_with_the_models(method: str, toy: Any):
    short = {"otmf": {"iterations": 2}, "adamerging": {"steps": 2}, "concrete": {"steps": 2}}
    fusion = Fusion(toy.base, method, options=short.get(method), heads="own", keep_inputs=20)
    sizes = []
    for number in range(3):
        toy.join(fusion, number)
        vectors = {group: vector for group, vector in fusion.state.items() if group != "numbers"}
        sizes.append(sum(tensor.nbytes for vector in vectors.values() for tensor in vector.values()))
        assert (
            len(fusion.state.get("numbers", {})) < 10
        )  # single numbers, some of them only from the second on
    assert sizes[0] == sizes[1] == sizes[2]


def test_a_feature_function_of_the_users_own_is_used(toy: Any):
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.top = toy._encoder(), nn.Linear(12, 3)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return self.top(self.body(batch))

    base = Classifier()
    base.body.load_state_dict(toy.base.state_dict())
    tuned = {f"body.{name}": tensor for name, tensor in toy.tuned[0].items() if not name.startswith("head")}
    tuned |= {"top.weight": toy.tuned[0]["head.weight"], "top.bias": toy.tuned[0]["head.bias"]}
    fusion = Fusion(
        base, "average", heads="own", head="top", features=lambda module, batch: module.body(batch)
    )
    fusion.add(tuned, name="task-0")
    expected = toy.join(Fusion(toy.base, "average", heads="own"), 0).predict("task-0", toy.inputs)
    torch.testing.assert_close(fusion.predict("task-0", toy.inputs), expected)
