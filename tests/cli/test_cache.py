"""`transship cache`: what lies there, and what clearing removes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from transship.cli import group

HASH = "0123456789abcdef" * 2


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache with one old entry of each kind, one new one, and what is somebody else's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TRANSSHIP_CACHE", raising=False)
    home = tmp_path / "transship"
    old = [
        f"adapt/{HASH}/source.json",
        "transport/0123456789abcdef/moments/state",
        f"suites/cases/small/{HASH}.json",
        f"suites/made/model/{HASH}/entry.json",
        "models/base/config.json",
        "adapt/thesis/chapter.txt",
    ]
    for name in old:
        put(home / name)
    for path in sorted(home.rglob("*"), reverse=True):
        os.utime(path, (time.time() - 9999, time.time() - 9999))
    put(home / "adapt/ffffffffffffffff/source.json")
    return home


def put(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("x" * 100)


def run(*words: str) -> str:
    done = CliRunner().invoke(group, ["cache", *words], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_it_lists_what_lies_there_and_how_much(cache: Path):
    rows = {row["kind"]: row for row in json.loads(run("--json"))["cache"]}
    counts = {kind: row["entries"] for kind, row in rows.items()}
    assert {kind: counts[kind] for kind in ("adapt", "transport", "suites")} == {
        "adapt": 2,
        "transport": 1,
        "suites": 2,
    }
    assert rows["models"]["entries"] == 1
    assert rows["adapt"]["bytes"] >= 200
    assert rows["adapt"]["folder"] == str(cache / "adapt")
    assert str(cache / "models") in run()


def test_clearing_leaves_the_last_hour_other_kinds_and_other_peoples_files(cache: Path):
    assert run("--clear", "adapt").startswith("removed 1 entries")
    assert not (cache / "adapt" / HASH).exists()
    left = ["adapt/ffffffffffffffff", "adapt/thesis/chapter.txt", "models/base", "transport/0123456789abcdef"]
    assert all((cache / name).exists() for name in left)


def test_clearing_all_removes_what_can_be_computed_again(cache: Path):
    assert "removed 5 entries" in run("--clear", "all", "--force")
    files = sorted(str(file.relative_to(cache)) for file in cache.rglob("*") if file.is_file())
    assert files == ["adapt/thesis/chapter.txt", "models/base/config.json"]


def test_a_link_in_the_cache_is_removed_and_not_followed(cache: Path, tmp_path: Path):
    put(tmp_path / "elsewhere/precious.txt")
    link = cache / "adapt" / ("e" * 32)
    link.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    run("--clear", "adapt", "--force")
    assert not link.is_symlink()
    assert (tmp_path / "elsewhere/precious.txt").exists()


def test_an_empty_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "adapt" in run()
    assert run("--clear", "all").startswith("removed 0 entries")
