"""What the tests of translate share: small stores of every kind, a map to apply, and closed databases."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from transship.verbs.translate import Ridge, SavedMap, save_map
from transship.verbs.translate.stores import qdrant


def _load(name: str) -> ModuleType:
    """Import a file beside this one, so that test files may say `import NAME`."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


helpers, _ = _load("store_helpers"), _load("paired_rows")


@pytest.fixture
def saved(tmp_path: Path) -> SavedMap:
    """A map of rows 6 wide to rows 5 wide."""
    x = helpers.make_rows(200, 6, seed=7)
    y = x @ np.random.default_rng(1).normal(size=(6, 5)).astype(np.float32)
    about = {"source": "old", "target": "new", "unit_target": True, "quality": {"recall": 0.5}}
    return save_map(Ridge(alpha=0.01).fit(x, y), tmp_path / "map", about)


@pytest.fixture(autouse=True)
def closed_clients():
    yield
    qdrant.close_clients()
