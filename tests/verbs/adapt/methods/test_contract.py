"""What all methods share: the body that learns or stays, numbers that are refused, phases and their path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from transship.errors import OptionError
from transship.registry import build_method, describe, method_names
from transship.verbs.adapt import Recraft
from transship.verbs.adapt.model.backbone import Backbone, open_backbone

FitOf = Callable[[str], Recraft]


@pytest.mark.parametrize("name", method_names("adapt"))
def test_every_method_keeps_the_contract(name: str, fit_of: FitOf, waves: Any, tiny_bert: Backbone):
    card = describe("adapt", name)
    assert card.summary.endswith(".")
    assert all(parameter.help for parameter in card.parameters), name
    before = tiny_bert.fingerprint
    model, method = fit_of(name), build_method("adapt", name)
    assert open_backbone(tiny_bert.loaded).fingerprint == before
    assert model.predict_proba(waves[0]).shape == (60, 3)
    assert set(model.predict(waves[0])) <= {"slow", "fast", "noise"}
    pristine = dict(tiny_bert.body().named_parameters())
    kept = {
        key: torch.equal(value, pristine[key])
        for key, value in model.adapted_.network.body.named_parameters()
    }
    assert all(kept.values()) == (not {"body", "norms"} & method.trains)
    assert (model.source_ is not None) == method.needs_source
    logged = {row["phase"].removesuffix(" chosen") for row in model.stage1_}
    assert logged == ({"start", *(phase.name for phase in method.phases())} if method.needs_source else set())


@pytest.mark.parametrize(
    ("name", "option", "value", "message"),
    [
        ("recraft", "fa_batch", "0", "fa_batch: it is 0; give a number from 1"),
        ("recraft", "fld_steps", "-1", "fld_steps: it is -1; give a number from 0"),
        ("recraft", "fld_rate", "0", "fld_rate: it is 0; give a number above 0"),
        ("recraft", "fa_rate", "nan", "fa_rate: it is nan; give a number above 0"),
        ("recraft", "keep", "-0.5", "keep: it is -0.5; give a number from 0"),
        ("warm", "batch", "-3", "batch: it is -3; give a number from 1"),
        ("orca", "per_class", "0", "per_class: it is 0; give a number from 1"),
        ("orca", "rate", "inf", "rate: it is inf; give a number above 0"),
        ("pare", "start_share", "1.5", "start_share: it is 1.5; give a number from 0 to 1"),
        ("pare", "temperature", "0", "temperature: it is 0; give a number above 0"),
        ("mona", "source_items", "0", "source_items: it is 0; give a number from 1"),
    ],
)
def test_numbers_that_cannot_be_are_refused_when_the_method_is_built(
    name: str, option: str, value: str, message: str
):
    with pytest.raises(OptionError, match=message):
        build_method("adapt", name, {option: value})
