"""The documentation says what the program does, and builds without a warning."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from transship.doors import read_door

ROOT = Path(__file__).parents[1]


def reference():
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts/reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def once(page: str) -> str:
    return re.sub(r"\[\[([^\[\]]*)\]\]", r"[\1]", page)


def test_every_command_and_method_is_documented_as_it_is(tmp_path: Path):
    # in a process of its own: click keeps the help options of commands that other tests have run
    subprocess.run([sys.executable, ROOT / "scripts/reference.py", tmp_path], check=True)
    for page in reference().PAGES:
        written = (ROOT / "docs/reference" / page).read_text()
        now = (tmp_path / page).read_text()
        # releases of click differ in how they show an argument that may be left out
        assert once(written) == once(now), "run `make docs` and commit docs/reference"


def test_every_public_name_of_a_verb_is_in_the_reference():
    page = (ROOT / "docs/reference/python.md").read_text()
    stitching = {"Stitch", "scale_probe", "stitching_matrix"} if "translate.stitch\n" in page else set()
    homes = read_door(ROOT / "src/transship/__init__.py")
    names = {name for name, home in homes.items() if ".verbs." in home} - stitching
    missing = sorted(name for name in names if f".{name}\n" not in page)
    assert len(names) > 10
    assert missing == []


def test_the_results_pages_say_what_the_kept_runs_measured(tmp_path: Path):
    subprocess.run([sys.executable, ROOT / "scripts/results.py", tmp_path], check=True)
    kept = {page.name: page.read_text() for page in (ROOT / "docs/results").glob("*.md")}
    assert kept == {page.name: page.read_text() for page in tmp_path.glob("*.md")}, "run `make docs`"
    assert len(kept) > 1


def test_the_scaling_page_shows_the_curves_that_were_kept():
    spec = importlib.util.spec_from_file_location("scaling", ROOT / "scripts/scaling.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pages = module.pages((ROOT / "docs/scaling.md").read_text())
    assert any(name.endswith(".svg") for name in pages)
    for name, text in pages.items():
        assert (ROOT / "docs" / name).read_text() == text, "run `make docs`"


def test_every_command_shows_a_line_to_paste():
    for names, text in reference().commands(reference().group, "transship"):
        if "Commands:" not in text:
            assert "Example" in text, f"{' '.join(names)} has no example"


@pytest.mark.slow
def test_the_documentation_builds_strictly(tmp_path: Path):
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "site/index.html").is_file()
