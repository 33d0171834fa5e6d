from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from transship.verbs.merge.tasks.heads import LinearHead
from transship_suites.materials.bodies import encode
from transship_suites.otmf.names import CARRIED, HEADS, LABEL_HEADS, ONCE, OWN, PAPER, POLISHED, TUNED
from transship_suites.otmf.trajectory import (
    BodyView,
    KnownInputs,
    TunedTask,
    few_accuracies,
    final_accuracies,
    fitted,
    follow,
    followed,
    label_head_accuracies,
    label_heads,
    mean_shift,
)

WIDTH = 6


def body(seed: int, noise: float = 0.0) -> nn.Module:
    """A linear body: a turn of the inputs, plus noise."""
    generator = torch.Generator().manual_seed(seed)
    linear = nn.Linear(WIDTH, WIDTH, bias=False)
    turn = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator))[0]
    linear.weight.data = turn + noise * torch.randn(WIDTH, WIDTH, generator=generator)
    return linear


def arrival(name: str, seed: int, classes: int = 3) -> TunedTask:
    """A task whose classes are what its own body and head say."""
    generator = torch.Generator().manual_seed(1000 + seed)
    model = body(seed)
    head = LinearHead(torch.randn(classes, WIDTH, generator=generator), torch.zeros(classes))
    inputs, test = (torch.randn(count, WIDTH, generator=generator) for count in (200, 100))

    def labels(rows: Tensor) -> Tensor:
        return head(encode(model, rows)).argmax(1)

    features = encode(model, inputs)
    known = KnownInputs(inputs, labels(inputs), head(features), classes, features)
    return TunedTask(name, model, head, known, test, labels(test))


ARRIVALS = [arrival(name, seed) for seed, name in enumerate(("one", "two", "three"))]


def test_a_body_that_never_changes_forgets_nothing_and_own_heads_score_on_their_own_body():
    result = follow(ARRIVALS, [ARRIVALS[0].model] * 3, measured="steps")
    assert set(result) == set(HEADS)
    assert result[OWN].matrix[2][0] == 1.0
    assert result[OWN].acc == pytest.approx(sum(result[OWN].matrix[2]) / 3)
    assert all(result[kind].bwt == 0.0 for kind in (OWN, TUNED, CARRIED, POLISHED, ONCE))


def test_carried_heads_undo_any_turn_of_the_features_without_labels():
    result = follow(ARRIVALS, [body(50), body(51), body(52)])
    assert result[CARRIED].acc > 0.97
    assert result[OWN].acc < 0.7
    assert result[ONCE].acc < result[CARRIED].acc


def test_the_papers_schedule_tunes_each_head_once_and_never_the_last():
    bodies = [body(50), body(51), body(52)]
    result = follow(ARRIVALS, bodies, measured="steps")
    own, paper, tuned = (result[kind].matrix for kind in (OWN, PAPER, TUNED))
    assert [paper[step][step] for step in range(3)] == [own[step][step] for step in range(3)]
    assert paper[1][0] == tuned[1][0]  # just tuned
    features = encode(bodies[1], ARRIVALS[0].known.inputs)
    early = fitted(TUNED, features, ARRIVALS[0].known, ARRIVALS[0].head)
    assert paper[2][0] == ARRIVALS[0].accuracy(bodies[2], early)  # and never again
    assert paper[2][2] == own[2][2]


def test_heads_carried_once_are_those_of_the_arrival():
    bodies = [body(50), body(51), body(52)]
    result = follow(ARRIVALS, bodies, measured="steps")
    once, carried = result[ONCE].matrix, result[CARRIED].matrix
    assert [once[step][step] for step in range(3)] == [carried[step][step] for step in range(3)]


def test_bwt_is_the_mean_change_since_arrival_over_all_tasks_but_the_last():
    result = follow(ARRIVALS, [body(50), body(51), body(52)])[OWN]
    changes = [result.matrix[2][task] - result.matrix[task][task] for task in range(2)]
    assert result.bwt == pytest.approx(sum(changes) / 2)
    assert math.isnan(result.matrix[1][0])  # only arrivals and the end are measured unless asked


def test_the_shift_of_the_tasks_own_body_is_zero():
    alone = ARRIVALS[:1]
    plain, transported = mean_shift(alone, BodyView(ARRIVALS[0].model))
    assert plain == pytest.approx(0, abs=1e-6)
    assert transported == pytest.approx(0, abs=1e-6)
    assert mean_shift(alone, BodyView(body(50)))[0] > 1


def test_label_heads_learn_two_classes_and_never_choose_a_class_they_did_not_see():
    two = arrival("two classes", 7, classes=2)
    accuracies = label_head_accuracies([two], BodyView(body(50)))
    assert tuple(accuracies) == LABEL_HEADS
    assert min(list(accuracies.values())[2:]) > 0.95  # the short and the slow Adam do not get there
    known = KnownInputs(two.known.inputs, two.known.labels, torch.zeros(len(two.known.inputs), 5), 5)
    own = LinearHead(torch.zeros(5, WIDTH), torch.zeros(5))
    for head in label_heads(encode(body(50), known.inputs), known, own).values():
        assert set(head(encode(body(50), two.test)).argmax(1).tolist()) <= {0, 1}


def test_another_word_is_no_kind_of_head():
    with pytest.raises(ValueError, match="no kind of head"):
        fitted(OWN, torch.zeros(2, WIDTH), ARRIVALS[0].known, ARRIVALS[0].head)


class Counted(nn.Linear):
    """A linear body that counts its rows."""

    rows = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.rows += len(inputs)
        return super().forward(inputs)


def counted() -> Counted:
    output = Counted(WIDTH, WIDTH, bias=False)
    output.load_state_dict(body(50).state_dict())
    return output


def test_a_view_reads_each_input_once_whatever_is_asked_of_it():
    counting, inputs = counted(), sum(len(each.known.inputs) + len(each.test) for each in ARRIVALS)
    view = BodyView(counting)
    follow(ARRIVALS, [view] * 3, measured="steps")
    assert counting.rows == inputs
    final_accuracies(ARRIVALS, view)
    label_head_accuracies(ARRIVALS, view)
    few_accuracies(ARRIVALS, view)
    mean_shift(ARRIVALS, view)
    assert counting.rows == inputs


def test_a_view_gives_what_reading_and_fitting_anew_gives():
    view = BodyView(body(50))
    for each in ARRIVALS:
        features = encode(body(50), each.known.inputs)
        for kind in (POLISHED, CARRIED, TUNED):
            fresh = fitted(kind, features, each.known, each.head)
            assert torch.equal(view.head(kind, each).weight, fresh.weight)
            assert view.accuracy(each, fresh) == each.accuracy(body(50), fresh)


def test_measured_in_the_end_the_accuracies_are_those_of_the_whole_way():
    bodies = [body(50), body(51), body(52)]
    whole, last = followed(ARRIVALS, bodies)
    end = follow(ARRIVALS, bodies, measured="end", kinds=(OWN, PAPER, CARRIED, ONCE))
    assert {kind: each.acc for kind, each in end.items()} == {kind: whole[kind].acc for kind in end}
    assert all(math.isnan(each.bwt) for each in end.values())
    assert last.body is bodies[-1]
