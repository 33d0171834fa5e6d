"""A short fit of every method, made once."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from transship.data import Dataset
from transship.registry import build_method
from transship.verbs.adapt import Recraft
from transship.verbs.adapt.model.backbone import Backbone

FitOf = Callable[[str], Recraft]


def short(name: str) -> dict[str, Any]:
    """Return options of a method under which each of its phases is brief."""
    fields = dataclasses.fields(build_method("adapt", name))  # type: ignore[arg-type]
    return {field.name: 3 for field in fields if field.name.endswith("steps")}


@pytest.fixture(scope="session")
def fit_of(
    tiny_bert: Backbone, proxy: Dataset, waves: Any, tmp_path_factory: pytest.TempPathFactory
) -> FitOf:
    """Return the method's fit to the waves, four steps of stage 2 on top of its own phases."""
    fits: dict[str, Recraft] = {}
    settings: dict[str, Any] = {"steps": 4, "batch_size": 8, "tokens": 8, "omega": 0.5, "device": "cpu"}
    cache = tmp_path_factory.getbasetemp() / "adapt-cache"

    def fit(name: str) -> Recraft:
        if name not in fits:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = Recraft(
                    tiny_bert, method=name, method_options=short(name), proxy=proxy, cache=cache, **settings
                )
                fits[name] = model.fit(*waves)
        return fits[name]

    return fit
