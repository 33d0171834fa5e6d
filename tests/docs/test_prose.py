"""How the pages read: short sentences, few semicolons, no page longer than a reader's patience."""

import importlib.util
import sys
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("prose", Path(__file__).with_name("prose.py"))
prose = importlib.util.module_from_spec(spec)
sys.modules["prose"] = prose  # dataclasses look their module up
spec.loader.exec_module(prose)

ROOT = prose.ROOT
VERBS = [ROOT / f"docs/{verb}.md" for verb in ("transport", "merge", "translate", "adapt")]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", prose.pages(), ids=name)
def test_sentences_are_short(page: Path):
    measured = prose.prose(page.read_text(encoding="utf-8"))
    assert measured.median <= 16
    assert measured.ninetieth <= 28, measured.longest
    assert measured.semicolons_in_100 <= 5


@pytest.mark.parametrize("page", prose.pages(), ids=name)
def test_pages_are_short(page: Path):
    lines = len(page.read_text(encoding="utf-8").splitlines())
    assert lines <= (200 if page in [ROOT / "README.md", *VERBS] else 250)


PAGE = """# A title that does not count; at all

First sentence, with `some code; here` in it. Second one; it has *a semicolon*!

| a table | does; not |
|---|---|

- An item. Its [second sentence](https://example.org/a;b) e.g. this one.

```sh
echo "code; neither"
```

    y = a ; b
"""


def test_what_counts_as_prose():
    measured = prose.prose(PAGE)
    assert prose.texts(PAGE) == [
        "First sentence, with code in it. Second one; it has a semicolon!",
        "An item. Its second sentence e.g this one.",
    ]
    assert measured.words == (6, 6, 2, 6)
    assert measured.semicolons == 1
    assert measured.semicolons_in_100 == 25
    assert (measured.median, measured.ninetieth) == (6, 6)


def test_every_page_is_in_the_contents():
    contents = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if page not in contents] == []
