from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from transship.suites.small_merge.heads import Known, fitted, label_heads
from transship.suites.small_merge.names import (
    CARRIED,
    HEADS,
    LABEL_HEADS,
    ONCE,
    OWN,
    PAPER,
    POLISHED,
    TUNED,
)
from transship.suites.small_merge.training import encode
from transship.suites.small_merge.trajectory import Arrival, follow, label_head_accuracies, mean_shift
from transship.verbs.merge.fusion.heads import LinearHead

WIDTH = 6


def body(seed: int, noise: float = 0.0) -> nn.Module:
    """A linear body: a turn of the inputs, plus noise."""
    generator = torch.Generator().manual_seed(seed)
    made = nn.Linear(WIDTH, WIDTH, bias=False)
    turn = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator))[0]
    made.weight.data = turn + noise * torch.randn(WIDTH, WIDTH, generator=generator)
    return made


def arrival(name: str, seed: int, classes: int = 3) -> Arrival:
    """A task whose classes are what its own body and head say."""
    generator = torch.Generator().manual_seed(1000 + seed)
    model = body(seed)
    head = LinearHead(torch.randn(classes, WIDTH, generator=generator), torch.zeros(classes))
    inputs, test = (torch.randn(count, WIDTH, generator=generator) for count in (200, 100))

    def labels(rows: Tensor) -> Tensor:
        return head(encode(model, rows)).argmax(1)

    known = Known(inputs, labels(inputs), head(encode(model, inputs)), classes)
    return Arrival(name, model, head, known, test, labels(test))


ARRIVALS = [arrival(name, seed) for seed, name in enumerate(("one", "two", "three"))]


def test_a_body_that_never_changes_forgets_nothing_and_own_heads_score_on_their_own_body():
    found = follow(ARRIVALS, [ARRIVALS[0].model] * 3, every_step=True)
    assert set(found) == set(HEADS)
    assert found[OWN].matrix[2][0] == 1.0
    assert found[OWN].acc == pytest.approx(sum(found[OWN].matrix[2]) / 3)
    assert all(found[kind].bwt == 0.0 for kind in (OWN, TUNED, CARRIED, POLISHED, ONCE))


def test_carried_heads_undo_any_turn_of_the_features_without_labels():
    found = follow(ARRIVALS, [body(50), body(51), body(52)])
    assert found[CARRIED].acc > 0.97
    assert found[OWN].acc < 0.7
    assert found[ONCE].acc < found[CARRIED].acc


def test_the_papers_schedule_tunes_each_head_once_and_never_the_last():
    bodies = [body(50), body(51), body(52)]
    found = follow(ARRIVALS, bodies, every_step=True)
    own, paper, tuned = (found[kind].matrix for kind in (OWN, PAPER, TUNED))
    assert [paper[step][step] for step in range(3)] == [own[step][step] for step in range(3)]
    assert paper[1][0] == tuned[1][0]  # just tuned
    features = encode(bodies[1], ARRIVALS[0].known.inputs)
    early = fitted(TUNED, features, ARRIVALS[0].known, ARRIVALS[0].head)
    assert paper[2][0] == ARRIVALS[0].accuracy(bodies[2], early)  # and never again
    assert paper[2][2] == own[2][2]


def test_heads_carried_once_are_those_of_the_arrival():
    bodies = [body(50), body(51), body(52)]
    found = follow(ARRIVALS, bodies, every_step=True)
    once, carried = found[ONCE].matrix, found[CARRIED].matrix
    assert [once[step][step] for step in range(3)] == [carried[step][step] for step in range(3)]


def test_bwt_is_the_mean_change_since_arrival_over_all_tasks_but_the_last():
    found = follow(ARRIVALS, [body(50), body(51), body(52)])[OWN]
    changes = [found.matrix[2][task] - found.matrix[task][task] for task in range(2)]
    assert found.bwt == pytest.approx(sum(changes) / 2)
    assert math.isnan(found.matrix[1][0])  # only arrivals and the end are measured unless asked


def test_the_shift_of_the_tasks_own_body_is_zero():
    alone = ARRIVALS[:1]
    plain, transported = mean_shift(alone, ARRIVALS[0].model)
    assert plain == pytest.approx(0, abs=1e-6)
    assert transported == pytest.approx(0, abs=1e-6)
    assert mean_shift(alone, body(50))[0] > 1


def test_label_heads_learn_two_classes_and_never_choose_a_class_they_did_not_see():
    two = arrival("two classes", 7, classes=2)
    accuracies = label_head_accuracies([two], body(50))
    assert tuple(accuracies) == LABEL_HEADS
    assert min(list(accuracies.values())[2:]) > 0.95  # the short and the slow Adam do not get there
    known = Known(two.known.inputs, two.known.labels, torch.zeros(len(two.known.inputs), 5), 5)
    own = LinearHead(torch.zeros(5, WIDTH), torch.zeros(5))
    for head in label_heads(encode(body(50), known.inputs), known, own).values():
        assert set(head(encode(body(50), two.test)).argmax(1).tolist()) <= {0, 1}


def test_another_word_is_no_kind_of_head():
    with pytest.raises(ValueError, match="no kind of head"):
        fitted(OWN, torch.zeros(2, WIDTH), ARRIVALS[0].known, ARRIVALS[0].head)
