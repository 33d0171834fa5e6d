"""Pages with hostile names, and those that fuzzing ever found, in a real browser."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]

HERE = Path(__file__).parent
spec = importlib.util.spec_from_file_location("pages", HERE / "pages.py")
assert spec is not None
assert spec.loader is not None
pages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pages)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if pages.chromium() is None:
        pytest.skip("no Chromium on this machine (Debian: apt install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as engine:
        started = engine.chromium.launch(executable_path=pages.chromium(), args=pages.FLAGS)
        yield started
        started.close()


def test_a_page_does_nothing_that_a_name_on_it_says(browser: Any, tmp_path: Path):
    kept = [file.read_bytes() for file in sorted((HERE / "corpus" / "page").glob("*"))]
    for data in [*(name.encode() for name in pages.NAMES[:3]), *kept]:
        pages.check_page(data, tmp_path, browser)
