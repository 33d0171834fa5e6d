"""Pages in a real browser: quiet, still, whole, in both themes, wide and narrow."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from transship.report import (
    Column,
    KeyFigure,
    KeyFigures,
    Page,
    Provenance,
    Section,
    Spread,
    Table,
    Text,
    figures,
    html,
)

pytestmark = pytest.mark.browser

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LAYERS = [f"encoder.layer.{place}.attention.output.dense" for place in range(6)]
GRID = [[(row + 1) * (column + 1) / 36 for column in range(6)] for row in range(6)]
HOSTILE = '</script><img src=x onerror="window.hacked=1"><b>bold</b>'


def sample() -> Page:
    """Return a page with every kind of block and the longest names that occur."""
    table = Table(
        ["layer", Column("partner", code=True), Column("CKA", best="max"), "spread", "tokens"],
        [[name, LAYERS[0], 0.1 * place, Spread(0.5, 0.01), 10**place] for place, name in enumerate(LAYERS)],
        caption="The best partner of each layer.",
    )
    heat = figures.heat_map(
        GRID,
        rows=LAYERS,
        columns=LAYERS,
        row_title="source",
        column_title="target",
        value_title="linear CKA",
        caption="Similarity.",
    )
    lines = figures.lines(
        [10, 100, 1000],
        {name: [0.1 * place, 0.2, 0.3] for place, name in enumerate(LAYERS[:3])},
        bands={LAYERS[0]: ([0, 0.1, 0.2], [0.2, 0.3, 0.4])},
        x_title="inputs",
        y_title="accuracy",
        log_x=True,
    )
    tasks = {"before": [0.5, 0.6], "after": [0.7, 0.8]}
    bars = figures.bars(
        ["out-of-scope detection", HOSTILE], tasks, label_title="task", value_title="accuracy"
    )
    boxes = figures.boxes({"a": [1, 2, 3], "b": [2, 3, 4]}, group_title="method", value_title="accuracy")
    sections = [
        Section(
            "At a glance",
            [KeyFigures([KeyFigure("A long label for a key figure", 123456.789, "with a note")] * 5)],
        ),
        Section(
            "Words",
            [Text(f"Names such as `{'very.' * 30}long` and {HOSTILE}"), Text("Careful.", tone="warning")],
        ),
        Section("Tables", [table]),
        Section("Figures", [heat, lines, bars, boxes]),
    ]
    return Page(
        f"Comparing two models {HOSTILE}", HOSTILE, sections, Provenance("transship " * 30, {"a": "f" * 64})
    )


@dataclass
class Visit:
    """An open page with what it said and asked for."""

    page: Any
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine (Debian: apt install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as engine:
        started = engine.chromium.launch(executable_path=chromium, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return html.write(sample(), tmp_path_factory.mktemp("page") / "report.html")


def visit(browser: Any, file: Path, width: int, scheme: str) -> Visit:
    context = browser.new_context(viewport={"width": width, "height": 850}, color_scheme=scheme)
    result = Visit(context.new_page())
    result.page.on("console", lambda message: result.messages.append(f"{message.type}: {message.text}"))
    result.page.on("pageerror", lambda error: result.messages.append(f"error: {error}"))
    result.page.on("request", lambda request: result.requests.append(request.url))
    result.page.goto(file.as_uri())
    result.page.wait_for_selector("html[data-figures=drawn]", timeout=120_000)
    return result


@pytest.fixture(scope="module")
def desktop(browser: Any, file: Path) -> Any:
    return visit(browser, file, 1280, "light").page


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_is_quiet_asks_for_nothing_and_fits(browser: Any, file: Path, width: int, scheme: str):
    result = visit(browser, file, width, scheme)
    page = result.page
    assert result.messages == []
    assert result.requests == [file.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert page.evaluate("window.hacked") is None
    cut = page.evaluate(
        """() => [...document.querySelectorAll('.plot')].flatMap((plot) => {
            const frame = plot.getBoundingClientRect();
            return [...plot.querySelectorAll('.main-svg text')].filter((text) => {
                const box = text.getBoundingClientRect();
                return box.width && (box.left < frame.left - 1 || box.right > frame.right + 1
                    || box.top < frame.top - 1 || box.bottom > frame.bottom + 1);
            }).map((text) => text.textContent);
        })"""
    )
    assert cut == []
    assert page.locator(".plot .main-svg").count() >= 4
    page.context.close()


def test_names_from_outside_are_shown_as_they_stand(desktop: Any):
    assert desktop.locator("h1").inner_text().endswith(HOSTILE)
    ticks = desktop.locator(".plot .ytick text").all_text_contents()
    assert any("</script>" in tick for tick in ticks)
    assert desktop.locator(".plot img, .plot b, main img").count() == 0


def test_the_button_changes_the_theme_and_the_figures_with_it(desktop: Any):
    def look() -> tuple[str, str, str]:
        ground = desktop.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        line = desktop.locator(".plot .scatterlayer .js-line").first.evaluate("line => line.style.stroke")
        tick = desktop.locator(".plot .xtick text").first.evaluate("text => text.style.fill")
        return ground, line, tick

    before = look()
    desktop.click("#theme")
    after = look()
    assert all(old != new for old, new in zip(before, after, strict=True))
    assert "light" in (desktop.get_attribute("#theme", "aria-label") or "")
    desktop.click("#theme")
    assert look() == before


def test_printing_is_always_light(desktop: Any):
    desktop.emulate_media(color_scheme="dark")
    desktop.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert desktop.evaluate("document.documentElement.dataset.theme") == "light"
    desktop.evaluate("window.dispatchEvent(new Event('afterprint'))")
    desktop.emulate_media(color_scheme="light")


def test_a_click_sorts_numbers_as_numbers_and_back(desktop: Any):
    table = desktop.locator("table.sortable").first
    head = table.locator("th", has_text="tokens")

    def tokens() -> list[int]:
        cells = table.locator("tbody tr td:last-child").all_inner_texts()
        return [int(re.sub(r"\D", "", cell)) for cell in cells]

    head.locator("button").click()
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert tokens() == [10**place for place in (5, 4, 3, 2, 1, 0)]
    head.locator("button").click()
    assert tokens() == [10**place for place in range(6)]


def test_numbers_in_cells_stand_out_from_them(desktop: Any):
    fills = set(
        desktop.locator(".plot .scatterlayer .textpoint text").evaluate_all(
            "all => all.map(t => t.style.fill)"
        )
    )
    assert fills == {"rgb(0, 0, 0)", "rgb(255, 255, 255)"}


def test_figures_are_described_and_buttons_have_names(desktop: Any):
    for label in desktop.locator(".plot").evaluate_all(
        "all => all.map(plot => plot.getAttribute('aria-label'))"
    ):
        assert len(label) > 10
    names = desktop.locator("button").evaluate_all("all => all.map(b => b.ariaLabel || b.textContent.trim())")
    assert all(names)


def test_numbers_that_would_overlap_on_a_phone_are_left_to_the_colours(browser: Any, tmp_path: Path):
    grid = [[row * column / 120 for column in range(13)] for row in range(7)]
    titles = {"row_title": "source", "column_title": "target", "value_title": "CKA"}
    heat = figures.heat_map(grid, rows=[*"abcdefg"], columns=[*"abcdefghijklm"], **titles)
    file = html.write(Page("wide", sections=[Section("one", [heat])]), tmp_path / "wide.html")
    for width, written in ((1280, 7 * 13), (390, 0)):
        page = visit(browser, file, width, "light").page
        assert page.locator(".plot .scatterlayer text").count() == written
        assert page.locator(".plot .colorbar").count() == 1
        page.context.close()
