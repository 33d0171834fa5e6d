"""What the tests of translate share: small stores of every kind, a map to apply, and closed databases."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from transship.verbs.translate import Ridge, SavedMap, save_map
from transship.verbs.translate.stores import qdrant

# test files may say `import store_helpers as helpers`
_spec = importlib.util.spec_from_file_location("store_helpers", Path(__file__).with_name("store_helpers.py"))
assert _spec is not None
assert _spec.loader is not None
helpers = sys.modules["store_helpers"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(helpers)


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
