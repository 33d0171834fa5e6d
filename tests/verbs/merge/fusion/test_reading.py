"""What an `add` reads: rows whose answers nothing uses are run through no model, and nothing else changes."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transship.verbs.merge.fusion import Fusion
from transship.verbs.merge.fusion.store import read_kept, write_kept
from transship.verbs.merge.fusion.task import Kept
from transship.verbs.merge.tasks.heads import HeadSettings, LinearHead, carry, polish


class Counted(nn.Sequential):
    """An encoder that counts the rows it reads."""

    rows = 0

    def forward(self, batch: Tensor) -> Tensor:
        self.rows += len(batch)
        return super().forward(batch)


@pytest.fixture
def counted(toy: Any) -> Counted:
    return Counted(*copy.deepcopy(list(toy.base)))


def joined(toy: Any, fusion: Fusion, tasks: int = 2) -> Fusion:
    """Let some fine-tunes join, without test rows."""
    for number in range(tasks):
        fusion.add(toy.tuned[number], toy.inputs[:160], name=f"task-{number}")
    return fusion


def test_the_fine_tune_answers_for_the_kept_rows_only(toy: Any, counted: Counted):
    fusion = joined(toy, Fusion(counted, "average", heads="carried", keep_inputs=40), tasks=1)
    assert counted.rows == 40 + 40  # its own model and the merged one
    kept = fusion.tasks[0].store.kept()
    assert kept is not None
    tuned = toy._encoder()
    tuned.load_state_dict({name: toy.tuned[0][name] for name in tuned.state_dict()})
    with torch.no_grad():
        features = tuned(kept.inputs)
    own = LinearHead(toy.tuned[0]["head.weight"], toy.tuned[0]["head.bias"])
    assert kept.features is not None
    torch.testing.assert_close(kept.features, features)
    expected = carry(fusion.features("task-0", kept.inputs), own(features), own, HeadSettings())
    torch.testing.assert_close(fusion.head("task-0").weight, expected.weight)


def test_heads_that_are_carried_once_still_see_every_row(toy: Any, counted: Counted):
    fusion = joined(toy, Fusion(counted, "average", keep_inputs=0), tasks=1)
    assert counted.rows == 160 + 160
    whole = joined(toy, Fusion(toy.base, "average", heads="carried", keep_inputs=None), tasks=1)
    torch.testing.assert_close(fusion.head("task-0").weight, whole.head("task-0").weight)


def test_own_heads_of_an_unmeasured_fusion_read_nothing_and_merge_the_same(toy: Any, counted: Counted):
    plain = {"options": {"iterations": 0}, "heads": "own", "keep_inputs": None}
    fusion = joined(toy, Fusion(counted, "otmf", evaluate=False, **plain))
    assert counted.rows == 0
    measured = joined(toy, Fusion(toy.base, "otmf", **plain))
    assert measured.history[-1].shift.keys() == {"task-0", "task-1"}
    assert fusion.history[-1].shift == {}
    for name, tensor in measured.parameters.items():
        assert torch.equal(tensor, fusion.parameters[name])


@pytest.mark.parametrize("method", ["average", "otmf"])
def test_heads_and_weights_do_not_depend_on_being_measured(toy: Any, method: str):
    kinds = ("carried", "carried-polished", "tuned", "tuned-fresh", "carried-once")
    fusions = [
        Fusion(toy.base, method, heads=kinds, keep_inputs=50, evaluate=evaluate) for evaluate in (True, False)
    ]
    for fusion in fusions:
        for number in range(2):
            toy.join(fusion, number)
    measured, other = fusions
    assert (len(measured.history[-1].accuracy), other.history[-1].accuracy) == (6, {})
    for task, same in zip(measured.tasks, other.tasks, strict=True):
        assert task.heads.keys() == same.heads.keys()
        assert all(torch.equal(head.weight, same.heads[kind].weight) for kind, head in task.heads.items())
    assert all(torch.equal(each, other.parameters[name]) for name, each in measured.parameters.items())


def test_a_polished_head_starts_from_the_carried_one_whether_or_not_that_is_asked_for(toy: Any):
    both, alone = (
        joined(toy, Fusion(toy.base, "average", heads=kinds, keep_inputs=50))
        for kinds in (("carried", "carried-polished"), "carried-polished")
    )
    polished = both.head("task-0", "carried-polished").weight
    assert torch.equal(polished, alone.head("task-0").weight)
    kept = both.tasks[0].store.kept()
    assert kept is not None
    assert kept.outputs is not None
    carried, features = both.head("task-0", "carried"), both.features("task-0", kept.inputs)
    torch.testing.assert_close(polish(carried, features, kept.outputs, HeadSettings()).weight, polished)


@pytest.mark.parametrize("inputs", [["a b", "c"], torch.arange(6.0).reshape(2, 3)], ids=["texts", "numbers"])
def test_inputs_without_answers_are_kept_on_disk(tmp_path: Path, inputs: Any):
    write_kept(tmp_path / "kept", Kept(inputs))
    back = read_kept(tmp_path / "kept")
    assert back is not None
    assert (back.features, back.outputs, back.labels) == (None, None, None)
    assert list(back.inputs) == inputs if isinstance(inputs, list) else torch.equal(back.inputs, inputs)
