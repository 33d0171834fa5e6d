"""Make the pictures of the README and the docs from the demo's page: `python scripts/pictures.py [DEMO]`.

DEMO is the demo's folder (`demo` by default); the demo runs if its page is not there. Wants Chromium, as the
tests of the pages do (`scripts/chromium`).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
# section of the demo's page → file
SHOWN = {
    "What was trained": "demo-inputs.png",
    "Transport": "demo-transport.png",
    "Merge": "demo-merge.png",
    "Translate": "demo-translate.png",
    "Adapt": "demo-adapt.png",
}


def main(demo: Path) -> None:
    """Draw every figure once, in the light theme."""
    from playwright.sync_api import sync_playwright

    page_file = demo / "report.html"
    if not page_file.is_file():
        subprocess.run([sys.executable, "-m", "transship", "demo", demo], check=True)
    browser_file = shutil.which("chromium") or shutil.which("google-chrome")
    if browser_file is None:
        sys.exit("no Chromium here; scripts/chromium brings one")
    PICTURES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_file, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(
            viewport={"width": 660, "height": 900}, color_scheme="light", device_scale_factor=1.5
        )
        page.goto(page_file.resolve().as_uri())
        page.wait_for_selector("html[data-figures=drawn]", timeout=120_000)
        for title, name in SHOWN.items():
            section = page.locator("section", has=page.get_by_role("heading", name=title, exact=True))
            section.locator(".plot").first.screenshot(path=PICTURES / name)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
