"""Other fits beside a fit: the path of stage 1, whose fits break it off and are its beginnings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from transship.errors import OptionError
from transship.verbs.adapt import Recraft
from transship.verbs.adapt.api import FitResult, broken_off, path
from transship.verbs.adapt.rows.reading import Examples
from transship.verbs.adapt.settings import CommandSettings

pytestmark = pytest.mark.filterwarnings("ignore::transship.errors.TransshipWarning")


def settings(method: str, options: Any = None) -> CommandSettings:
    return CommandSettings(method=method, method_options=options)


def test_places_lie_evenly_and_the_end_of_fa_is_one_of_them():
    result = broken_off(settings("recraft", {"fa_steps": "60", "keep": 0.5}), 3)
    assert [options["fa_steps"] + options["fld_steps"] for options, _ in result] == [0, 54, 60, 108]
    assert [name for _, name in result] == ["no stage 1: NFT", "54 steps of stage 1", "FA", "all of stage 1"]
    assert all(options["keep"] == 0.5 and not options["select"] for options, _ in result)
    assert [options for options, _ in broken_off(settings("fa"), 2)] == [{"fa_steps": 0}, {"fa_steps": 60}]


def test_methods_without_fa_have_no_path():
    with pytest.raises(OptionError, match="orca has no path of FA and FLD"):
        broken_off(settings("orca"), 3)


def test_a_fit_that_breaks_stage_one_off_is_the_beginning_of_the_longer_one(
    quick: dict[str, Any], waves: Any
):
    whole = {"fa_steps": 8, "fld_steps": 8, "select": False}
    value = quick | {"steps": 2, "log_every": 4}
    longer = {
        (row["phase"], row["step"]): row
        for row in Recraft(**value | {"method_options": whole}).fit(*waves).stage1_
    }
    for options, _ in broken_off(settings("recraft", whole), 5):
        last = Recraft(**value | {"method_options": options}).fit(*waves).stage1_[-1]
        same = longer[last["phase"], last["step"]]
        assert (last["w1"], last["fld"]) == (same["w1"], same["fld"])


def test_a_path_has_a_model_at_every_place_and_its_features(quick: dict[str, Any], waves: Any):
    options = {"fa_steps": 4, "fld_steps": 4}
    value = quick | {"method_options": options, "steps": 4, "base": "ridge"}
    rows = Examples(waves[0], waves[1], np.arange(len(waves[0])), "waves")
    adapted = Recraft(**value).fit(*waves).adapted_
    result = path(FitResult(adapted, Path("model"), CommandSettings(**value), rows, waves), 2)
    assert [stop["name"] for stop in result.further.path] == ["no stage 1: NFT", "FA", "all of stage 1"]
    naive = Recraft(**quick | {"method": "nft", "steps": 4}).fit(*waves)
    assert result.further.path[0]["validation"] == naive.validation_["error"]
    assert list(result.further.clouds) == [stop["name"] for stop in result.further.path]
    assert not torch.equal(result.further.clouds["FA"], result.further.clouds["no stage 1: NFT"])
