"""The page as a document: nothing injected, nothing fetched, written whole or not at all."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transship.errors import OutputError
from transship.report import (
    Column,
    Figure,
    KeyFigure,
    KeyFigures,
    Page,
    Provenance,
    Section,
    Table,
    Text,
    figures,
    html,
    library_versions,
    markdown,
)
from transship.report.html import _asset, _inline, _plotly
from transship.report.values import clean


def page_of(word: str, *, figure: bool = False) -> Page:
    """Return a page with `word` in every place that takes a string from outside."""
    blocks: list[object] = [
        Text(word, tone="note"),
        Text(word, folded=word),
        KeyFigures([KeyFigure(word, word, word)]),
        Table([word, Column(word, help=word, code=True)], [[word, word], [word, 1]], caption=word),
    ]
    if figure:
        numbers = Table([word], [[word]])
        blocks += [
            Figure({"data": [{"name": word, "x": [word]}], "layout": {}}, word, word, numbers=numbers),
            figures.bars([word], {word: [1.0]}, label_title=word, value_title=word, caption=word),
        ]
    provenance = Provenance(word, {word: word}, {word: {word: word}}, {word: word}, {word: word})
    sections = [Section(word, blocks if place == 0 else []) for place in range(4)]  # type: ignore[arg-type]
    return Page(word, word, sections, provenance)


def light(page: Page) -> str:
    """Return the page without the two megabytes of the library, which only cost the parser time."""
    return html.render(page).replace(_plotly().packed, "packed")


class Skeleton(HTMLParser):
    """The tags with the names of their attributes, and the text of what is asked for."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.links: list[str] = []
        self.scripts: list[tuple[str, str]] = []
        self.heading = ""
        self._open: list[str] = []
        self._kind = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("p", "code", "strong"):  # the text itself may ask for these
            self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "data", "action")]
        self._open.append(tag)
        if tag == "script":
            self._kind = dict(attrs).get("type") or "code"

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.scripts.append((self._kind, data))
        if self._open and self._open[-1] == "h1":
            self.heading += data


HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "<!--",
    "]]>",
    "{{ 7 * 7 }}{% raw %}",
    "`<b>`**<i>**",
    "javascript:alert(1)",
    "\x00\ud800\u2028",
]
words = st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=[]), max_size=60)


@settings(max_examples=40, deadline=None)
@given(words, st.booleans())
def test_no_string_changes_the_structure_of_the_page(word: str, figure: bool):
    word = f"x{word}"
    plain, hostile = (Skeleton(light(page_of(text, figure=figure))) for text in ("plain", word))
    assert hostile.tags == plain.tags
    assert hostile.links == plain.links
    assert hostile.heading == clean(word)
    assert [kind for kind, _ in hostile.scripts] == [kind for kind, _ in plain.scripts]
    assert [code for kind, code in hostile.scripts if kind == "code"] == [_asset("page.js")]


@settings(max_examples=40, deadline=None)
@given(words)
def test_figures_carry_any_string_to_the_browser(word: str):
    page = Skeleton(light(page_of(f"x{word}", figure=True)))
    specs = [json.loads(text) for kind, text in page.scripts if kind == "application/json"]
    shown = clean(f"x{word}").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert specs[0]["data"][0]["name"] == shown
    assert {specs[1]["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis")} == {shown}


@given(st.text("a`*<&\n ", max_size=30))
def test_marks_in_text_are_always_closed_in_order(text: str):
    open_tags: list[str] = []
    for closing, tag in re.findall(r"<(/?)(\w+)>", str(_inline(text))):
        if closing:
            assert open_tags.pop() == tag
        else:
            open_tags.append(tag)
            assert tag in ("code", "strong")
    assert not open_tags


def test_nothing_is_fetched_from_anywhere():
    document = html.render(page_of("plain", figure=True))
    assert [link for link in Skeleton(document).links if not link.startswith("#")] == []
    assert "url(" not in _asset("page.css")
    assert "@import" not in _asset("page.css")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', document)
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy[1]
    assert "unsafe-eval" not in policy[1]


def test_the_library_is_there_once_and_only_with_a_figure():
    with_figures, without = html.render(page_of("x", figure=True)), html.render(page_of("x"))
    assert with_figures.count('id="plotly"') == 1
    assert 'id="plotly"' not in without
    assert len(without) < 60_000
    assert len(with_figures) < 800_000


def test_the_same_page_gives_the_same_bytes():
    assert html.render(page_of("x", figure=True)) == html.render(page_of("x", figure=True))


def test_headings_are_in_order():
    levels = [
        int(tag[1])
        for tag, _ in Skeleton(html.render(page_of("x", figure=True))).tags
        if re.fullmatch(r"h\d", tag)
    ]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_contents_appear_only_on_long_pages():
    assert 'class="contents"' in html.render(page_of("x"))
    assert 'class="contents"' not in html.render(Page("x", "y", [Section("z")]))


def test_the_smallest_page_is_a_page():
    document = html.render(Page("Only a title"))
    assert Skeleton(document).heading == "Only a title"
    assert "Provenance" not in document


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_its_ground(theme: str):
    rules = re.findall(r"(:root[^{]*)\{([^}]*)\}", _asset("page.css"))
    part = rules[0][1] if theme == "light" else rules[1][1]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part))

    def contrast(front: str, back: str) -> float:
        low, high = sorted([luminance(colours[front]), luminance(colours[back])])
        return (high + 0.05) / (low + 0.05)

    for ground in ("paper", "surface", "sunken"):
        for front in ("text", "muted", "accent"):
            assert contrast(front, ground) >= 4.5, (front, ground)
    for tone in ("good", "warning", "bad"):
        assert contrast("text", f"{tone}-soft") >= 4.5
        assert contrast(tone, "surface") >= 4.5
    for place in range(1, 9):
        assert contrast(f"series-{place}", "surface") >= 3, place


def test_a_page_is_written_whole_and_never_over_another_unasked(tmp_path: Path):
    target = tmp_path / "new" / "report.html"
    assert html.write(page_of("one"), target) == target
    assert stat.S_IMODE(target.stat().st_mode) & 0o600 == 0o600
    with pytest.raises(OutputError, match=r"report.html: it exists already; pass --force"):
        html.write(page_of("two"), target)
    assert "<h1>one</h1>" in target.read_text(encoding="utf-8")
    html.write(page_of("two"), target, force=True)
    assert "<h1>two</h1>" in target.read_text(encoding="utf-8")
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]


def test_a_write_that_fails_leaves_the_old_page_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    target = tmp_path / "report.html"
    html.write(page_of("old"), target)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OutputError, match="cannot be put in place"):
        html.write(page_of("new"), target, force=True)
    assert "<h1>old</h1>" in target.read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_places_that_cannot_be_written_to_are_named(tmp_path: Path):
    with pytest.raises(OutputError, match="it is a folder"):
        html.write(page_of("x"), tmp_path, force=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written to"):
        html.write(page_of("x"), tmp_path / "file" / "report.html")


def test_a_page_becomes_markdown():
    page = Page("Title", "Found.", [Section("Part", [Text("Body")])], Provenance(parameters={"a": {"b": 1}}))
    assert markdown.render(page).split("\n\n") == [
        *("# Title", "Found.", "## Part", "Body", "### Parameters"),
        "| parameter | value |\n| --- | ---: |\n| a.b | 1 |\n",
    ]


def test_versions_are_read_without_importing_the_libraries():
    heavy = ("torch", "transformers", "plotly", "jinja2", "numpy")
    code = "import sys; from transship.report import library_versions; library_versions(); "
    code += f"print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert set(library_versions()) >= {"transship", "python", "torch", "numpy"}
