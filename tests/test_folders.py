"""Caches and settings lie where the XDG base directories and our own variable say."""

from pathlib import Path

import pytest

from transship import data, folders
from transship.verbs.transport import default_prepared
from transship_suites.runner.context import cache_home


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "TRANSSHIP_CACHE",
        "TRANSSHIP_DATA",
        "TRANSSHIP_MODELS",
    ):
        monkeypatch.delenv(name, raising=False)


def test_without_variables_they_lie_in_the_home_folder():
    assert folders.cache("adapt") == Path.home() / ".cache/transship/adapt"
    assert folders.config() == Path.home() / ".config/transship"


def test_the_xdg_variables_move_every_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    ours = tmp_path / "transship"
    assert default_prepared() == ours / "transport"
    assert cache_home() == ours / "suites"
    assert data.data_folders() == [ours / "data"]
    assert data.model_folders() == [ours / "models"]
    assert folders.config() == tmp_path / "config/transship"


def test_our_variable_moves_what_is_computed_and_leaves_models_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("TRANSSHIP_CACHE", str(tmp_path / "own"))
    assert folders.cache("adapt") == tmp_path / "own/adapt"
    assert data.model_folders() == [tmp_path / "xdg/transship/models"]


def test_a_relative_base_directory_is_ignored(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert folders.shared_cache() == Path.home() / ".cache/transship"
