"""The README: every example prints what it shows, and its table of speed is that of the kept figures."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_every_example_of_the_readme_prints_what_it_shows(follow, tmp_path):
    assert follow(README, tmp_path) >= 10


def test_the_table_of_speed_is_made_from_the_kept_figures(tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text(README.read_text(encoding="utf-8"), encoding="utf-8")
    subprocess.run([sys.executable, ROOT / "scripts/speed.py", copy], check=True)
    assert copy.read_text(encoding="utf-8") == README.read_text(encoding="utf-8"), "run scripts/speed.py"


def test_the_pictures_are_small_and_all_shown():
    pictures = sorted((ROOT / "docs/pictures").glob("*.png"))
    assert pictures
    assert sum(picture.stat().st_size for picture in pictures) < 300_000
    pages = README.read_text(encoding="utf-8") + "".join(
        page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")
    )
    assert all(picture.name in pages for picture in pictures)


def test_the_readme_stays_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 200
