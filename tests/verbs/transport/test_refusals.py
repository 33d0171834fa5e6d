"""What could only fail after the long work is refused before it, in one sentence."""

from types import SimpleNamespace

import pytest

from transship.errors import OptionError
from transship.registry import build_method
from transship.verbs.transport import Settings, Work, transport
from transship.verbs.transport.participants import Opening
from transship.verbs.transport.plan import target_bytes


def refuse(what: str, done: int, total: int) -> None:
    raise AssertionError(f"{what}: it was refused too late")


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("identity", {}),
        ("transfusion", {}),
        ("gradfix", {}),
        ("carry", {"body": "identity"}),
        ("carry", {"body": "transfusion"}),
    ],
)
def test_methods_for_equal_shapes_name_theseus_before_any_work(kit, method, options):
    source = kit.tiny_vit(16)
    models = source, kit.nudge(source), kit.tiny_vit(24, seed=4)
    given = {"data": kit.pictures(64), "batches": 1, "strength": 1.0, "progress": refuse}
    with pytest.raises(OptionError, match=r"moves between equal shapes only.*choose theseus"):
        transport(*models, method=method, options=options, **given)


def test_gradfix_on_theseus_and_deeper_relatives_are_not_refused(kit):
    source = kit.tiny_vit(16)
    tuned, given = kit.nudge(source), {"data": kit.pictures(64), "batches": 1, "strength": 1.0}
    wide, deep = kit.tiny_vit(24, seed=4), kit.tiny_vit(16, 3, seed=4)
    assert transport(source, tuned, wide, method="gradfix", options={"body": "theseus"}, **given).moved.dense
    assert transport(source, tuned, deep, method="identity", **given).moved.dense


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        ("gradient", {"blend": 2.0}, "blend is 2; choose from 0 to 1"),
        ("theseus", {"whiten": 0.7}, "whiten is 0.7; choose from 0 to 0.5"),
        ("theseus", {"hidden": -1.0}, "hidden is -1; choose 0 or more"),
        ("theseus", {"tolerance": -1.0}, "tolerance is -1; choose from 0 to 1"),
        ("pinv", {"tolerance": 3.0}, "tolerance is 3; choose from 0 to 1"),
        ("pinv-tikhonov", {"penalty": 0.0}, "penalty is 0; choose a number above 0"),
        ("carry", {"penalty": -1.0}, "penalty is -1; choose 0 or more"),
    ],
)
def test_parameters_out_of_range_are_refused_when_a_method_is_built(method, options, sentence):
    with pytest.raises(OptionError, match=sentence):
        build_method("transport", method, options)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"strength": float("nan")}, "the strength is nan; give a finite number"),
        ({"strength": float("inf")}, "the strength is inf; give a finite number"),
        ({"tokens_per_input": -3}, "-3 tokens per input; give 0 for all"),
    ],
)
def test_settings_out_of_range_are_refused(given, sentence):
    with pytest.raises(OptionError, match=sentence):
        Settings(**given)


def test_an_adapter_that_becomes_a_whole_model_needs_a_whole_models_space(kit):
    source = kit.tiny_vit(16)
    models = source, kit.nudge(source), kit.tiny_vit(24, seed=4)

    def needed(method, **settings) -> int:
        work = Work.open(*models, kit.pictures(64), Opening(), Settings(batches=1, **settings))
        work.target.checkpoint = SimpleNamespace(nbytes=1000)
        work.update.adapter = True
        return target_bytes(work, method)

    theseus = build_method("transport", "theseus")
    assert needed(theseus) == 0
    assert needed(theseus, path_steps=2) == 1000
    assert needed(build_method("transport", "carry")) == 1000
    assert needed(build_method("transport", "random-aligned")) == 1000, "noise has no low rank"
    assert needed("auto") == 1000, "it may carry a head"
