"""The finish of a fusion: merged backbone and heads learn from what is kept, and from nothing else."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from transship.cli import group
from transship.errors import OptionError
from transship.verbs.merge.fusion import Fusion
from transship.verbs.merge.tasks.heads import FINISHED

SHORT = "weights:80"


def joined(toy: Any, fusion: Fusion, tasks: int = 3) -> Fusion:
    for number in range(tasks):
        toy.join(fusion, number)
    return fusion


def far(fusion: Fusion, toy: Any, number: int) -> float:
    """How far the merged model's answers lie from those of the task's own model, as a divergence."""
    encoder = toy._encoder()
    own = toy.tuned[number]
    encoder.load_state_dict({name: own[name] for name in toy.base.state_dict()})
    with torch.no_grad():
        wanted = torch.nn.functional.linear(encoder(toy.inputs), own["head.weight"], own["head.bias"])
    predictions = fusion.predict(f"task-{number}", toy.inputs)
    return float(
        torch.nn.functional.kl_div(
            predictions.log_softmax(1), wanted.log_softmax(1), reduction="batchmean", log_target=True
        )
    )


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_a_finish_brings_all_tasks_nearer_to_their_own_models(toy: Any):
    plain = joined(toy, Fusion(toy.base, keep_inputs=120, finish="none"))
    finished = joined(toy, Fusion(toy.base, keep_inputs=120, finish="weights:200"))
    assert finished.heads == (FINISHED, "carried-polished")
    distances = [[far(fusion, toy, number) for number in range(3)] for fusion in (plain, finished)]
    assert sum(distances[1]) < 0.8 * sum(distances[0])
    details = finished.history[-1].details
    assert details["finish, held-out loss after"] < details["finish, held-out loss before"]
    assert set(finished.history[-1].accuracy) == {"own", FINISHED, "carried-polished"}


def test_no_steps_leave_the_merged_model_as_it_is(toy: Any):
    plain = joined(toy, Fusion(toy.base, keep_inputs=40, finish="none"))
    still = joined(toy, Fusion(toy.base, keep_inputs=40, finish="weights:0"))
    assert same(plain.parameters, still.parameters)
    torch.testing.assert_close(plain.predict("task-1", toy.inputs), still.predict("task-1", toy.inputs))


def test_of_models_that_follow_one_another_the_last_needs_a_finish_alone(toy: Any):
    every = joined(toy, Fusion(toy.base, keep_inputs=40, finish=SHORT), tasks=2)
    last = Fusion(toy.base, keep_inputs=40, finish=SHORT)
    toy.join(last, 0, finish=False)
    assert not last.fused.finished
    toy.join(last, 1)
    assert same(every.parameters, last.parameters)


def test_a_model_that_leaves_takes_what_was_finished_with_it(toy: Any):
    alone = joined(toy, Fusion(toy.base, keep_inputs=40, finish=SHORT), tasks=1)
    gone = joined(toy, Fusion(toy.base, keep_inputs=40, finish=SHORT), tasks=2)
    gone.remove(toy.tuned[1])
    for name, tensor in alone.parameters.items():
        # a difference of roundings in what is merged grows over the steps, but not to where they lead
        torch.testing.assert_close(tensor, gone.parameters[name], rtol=0.0, atol=0.02)


@pytest.mark.parametrize("kept", [0, 30])
def test_auto_does_not_finish(kept: int, toy: Any):
    choices = Fusion(toy.base, keep_inputs=kept).choices
    assert choices.finish == "none"
    assert FINISHED not in choices.heads


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"keep_inputs": 0, "finish": "weights"}, "allow some"),
        ({"keep_inputs": 20, "finish": "row"}, "moves too little"),
        ({"keep_inputs": 20, "finish": "everything"}, "there is no finish"),
        ({"keep_inputs": 20, "heads": "finished"}, "kind of head"),
    ],
)
def test_what_cannot_be_finished_is_refused(options: dict[str, Any], text: str, toy: Any):
    with pytest.raises(OptionError, match=text):
        Fusion(toy.base, **options)


def run(*arguments: Any) -> str:
    outcome = CliRunner().invoke(group, ["merge", *map(str, arguments)])
    assert outcome.exit_code == 0, (outcome.output, outcome.exception)
    return outcome.output


def test_a_finish_on_disk_needs_no_earlier_model_and_answers_as_it_was_saved(
    family: Callable[[str], Path], tmp_path: Path
):
    folder, out = family("bert"), tmp_path / "out"
    texts = [f"word{number} word{number % 7} word{number % 5}" for number in range(40)]
    Fusion(folder / "base", heads="own", keep_inputs=30, finish="weights:12").save(out)
    names = [shutil.copytree(folder / f"task-{number}", tmp_path / f"tuned-{number}") for number in range(2)]
    Fusion.load(out).add(names[0], texts).save(out, force=True)
    shutil.rmtree(names[0])
    fusion = Fusion.load(out).add(names[1], texts)
    fusion.save(out, force=True)
    again = Fusion.load(out)
    assert again.fused.finished
    assert same(fusion.parameters, again.parameters)
    assert torch.equal(fusion.predict("tuned-0", texts[:4]), again.predict("tuned-0", texts[:4]))
    facts = json.loads(run("status", out, "--json"))
    assert facts["heads"] == [FINISHED, "own"]
    assert facts["finish"] == "weights:12"
