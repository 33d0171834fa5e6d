"""The scaling benchmarks say what a second process saves, and the page shows what they have kept."""

import importlib
import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def scaling(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.scaling")


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("scaling_script", ROOT / "scripts/scaling.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_process_and_two_have_a_curve_each_and_a_ratio_at_the_largest_size(scaling):
    seconds = {1: [2.0, 8.0, 32.0], 2: [2.0, 4.0, 16.0]}
    first, two, ratio = scaling.worker_rows("work", "rows", (10, 40, 160), seconds)
    assert first["ours"] == pytest.approx(1.0)
    assert two["ours"] == pytest.approx(0.75)  # over two steps by 4: the slope of 0, ½, 2 halvings
    assert [point["seconds"] for point in two["points"]] == seconds[2]
    assert ratio["ratio"] == 0.5
    assert ratio["needed"] == "<= 0.65"


def test_the_page_has_a_picture_of_workers_and_figures_that_follow_from_the_curves(
    scaling, script, tmp_path, monkeypatch
):
    kept = json.loads((ROOT / "benchmarks/curves/scaling.json").read_text())
    rows = [row for row in kept["scaling"] if "workers" not in row]
    rows += scaling.worker_rows("work", "rows", (10, 40, 160), {1: [2.0, 8.0, 32.0], 2: [2.0, 4.0, 16.0]})
    ridge = next(row for row in rows if row.get("curve") == "translate apply, ridge")
    ridge["points"][-1] |= {"rows": 1_000_000, "cpu": ridge["start"] + 10.0}
    (tmp_path / "one.json").write_text(json.dumps({"scaling": rows}))
    monkeypatch.setattr(script, "KEPT", tmp_path)
    page = (ROOT / "docs/scaling.md").read_text()
    pages = script.pages(page)
    assert "![wall seconds over rows](scaling/workers-rows.svg)" in pages["scaling.md"]
    assert "wall s</text>" in pages["scaling/workers-rows.svg"]
    assert pages["scaling/workers-rows.svg"].count("<polyline") == 2
    assert "CPU s</text>" in pages["scaling/rows.svg"]
    assert "| work, 160 rows, 2 processes / 1 | 32.0 | 16.0 | 0.50 | <= 0.65 |" in pages["scaling.md"]
    # 10⁹ rows at 10⁵ a second are 10⁴ s
    assert "100,000 rows per" in pages["scaling.md"]
    assert "take 2.8 and" in pages["scaling.md"]
    assert script.pages(pages["scaling.md"]) == pages, "writing it twice changes nothing"
