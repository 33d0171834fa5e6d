"""The tutorials, and the page about suites: every block runs in order and prints what the page shows."""

import importlib.util
import re
from pathlib import Path

import pytest

from transship.data.locate import data_files, model_folders

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"


def wants(page: Path) -> list[str]:
    """Return what a tutorial needs and this machine has not, from the page's `Needs:` line."""
    line = re.search(r"^Needs: (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert line, f"{page.name} says what it needs in a line that begins with `Needs:`"
    missing = []
    for kind, name in re.findall(r"(model|data|package) `([\w.-]+)`", line[1]):
        here = {
            "model": lambda name: any((folder / name).is_dir() for folder in model_folders()),
            "data": lambda name: bool(data_files(name)),
            "package": lambda name: importlib.util.find_spec(name.replace("-", "_")) is not None,
        }[kind](name)
        if not here:
            missing.append(f"{kind} {name}")
    return missing


def test_what_a_tutorial_needs_and_this_machine_has_not_is_named(tmp_path):
    page = tmp_path / "page.md"
    needs = "model `no-such-model`, data `no-such-data`, package `no-such-package`, package `numpy`"
    page.write_text(f"# A page\n\nNeeds: {needs}.\n", encoding="utf-8")
    assert wants(page) == ["model no-such-model", "data no-such-data", "package no-such-package"]


def test_every_verb_has_a_tutorial():
    assert {page.stem for page in TUTORIALS.glob("*.md")} == {"transport", "merge", "translate", "adapt"}


def test_the_page_about_the_command_line_shows_what_it_does(follow, tmp_path, monkeypatch):
    monkeypatch.delenv("TRANSSHIP_CACHE", raising=False)
    assert follow(TUTORIALS.parent / "command-line.md", tmp_path) == 7


def test_the_suite_on_the_page_about_suites_runs_and_is_judged(follow, tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSSHIP_CACHE", str(tmp_path / "cache"))
    assert follow(TUTORIALS.parent / "suites.md", tmp_path) == 1


@pytest.mark.slow
@pytest.mark.tutorial  # 27 to 80 CPU seconds each: `make tutorials`; `make test` has the README's examples
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("*.md")), ids=lambda page: page.stem)
def test_a_tutorial_runs_as_it_is_written(page, follow, tmp_path):
    missing = wants(page)
    if missing:
        pytest.skip(
            f"not here: {', '.join(missing)} (TRANSSHIP_MODELS, TRANSSHIP_DATA or ~/.cache/transship)"
        )
    assert follow(page, tmp_path) >= 3
