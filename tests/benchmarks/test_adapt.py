"""The benchmark of adapt: what it takes from a few steps must be the time of a step."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import transship.data
import transship.verbs.adapt


def test_eight_passes_of_nft_are_reckoned_from_steps_alone(monkeypatch: pytest.MonkeyPatch):
    """A fit that starts and validates in 9 seconds, with 2 seconds a step, has passes of 2 seconds a step."""
    asked: list[dict[str, Any]] = []

    class Slow:
        def __init__(self, **settings: Any) -> None:
            asked.append(settings)
            self.seconds_ = {"stage1": 30.0, "stage2": 9.0 + 2.0 * settings["steps"]}

        def fit(self, inputs: Any, labels: Any) -> Slow:
            return self

    class Rows(SimpleNamespace):
        def __len__(self) -> int:
            return 640

    train = Rows(inputs=np.zeros((640, 3)), labels=np.zeros(640))
    monkeypatch.setattr(transship.verbs.adapt, "Recraft", Slow)
    monkeypatch.setattr(transship.data, "load", lambda name: SimpleNamespace(split=lambda part: train))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    stage1 = importlib.import_module("benchmarks.adapt").stage1(rows=640)
    assert stage1 == {"stage 1": 30.0, "nft, 8 passes": pytest.approx(2.0 * 8 * 9)}
    assert all(settings["select"] is False for settings in asked)
    assert "log_every" not in asked[0]  # stage 1 with the logs of the default
