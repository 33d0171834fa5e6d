"""`scripts/speed.py`: the table shows what was measured, and names what was not."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script, with figures and a page of its own."""
    spec = importlib.util.spec_from_file_location("speed_script", ROOT / "scripts/speed.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "speed_script", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "KEPT", tmp_path / "speed.json")
    lines = (
        module.Line("merging", "linear", "a linear merge", "mergekit"),
        module.Line("fitting", "ridge", "a ridge fit", "latentis"),
    )
    monkeypatch.setattr(module, "LINES", lines)
    (tmp_path / "page.md").write_text(f"above\n{module.BEGIN}\nold\n{module.END}\nbelow\n", encoding="utf-8")
    return module


def written(script: ModuleType, figures: dict) -> str:
    script.KEPT.write_text(json.dumps(figures), encoding="utf-8")
    page = script.KEPT.parent / "page.md"
    script.main(page)
    return page.read_text(encoding="utf-8")


MERGING = [{"name": "linear, CPU s", "ours": 2.0, "peer": 8.0}]
FITTING = [{"name": "ridge, CPU s", "ours": 3.0, "peer": 2.0}]


def test_the_table_has_both_figures_and_their_ratio(script, capsys):
    page = written(script, {"merging": MERGING, "fitting": FITTING})
    assert "| a linear merge (`merging`) | 2 CPU s | mergekit: 8 CPU s | 4.0 × less |" in page
    assert "| a ridge fit (`fitting`) | 3 CPU s | latentis: 2 CPU s | 1.50 × as much |" in page
    assert page.startswith("above\n")
    assert page.endswith("below\n")
    assert capsys.readouterr().err == ""


def test_what_was_not_measured_has_a_row_and_the_command_that_fills_it(script, capsys):
    page = written(script, {"merging": MERGING})
    assert "| a ridge fit (`fitting`) | not measured | latentis | |" in page
    assert "python -m benchmarks fitting --json benchmarks/speed.json" in capsys.readouterr().err


def test_a_row_that_its_benchmark_no_longer_has_is_an_error(script):
    with pytest.raises(SystemExit, match="figures of 'fitting', but no row that begins with 'ridge'"):
        written(script, {"merging": MERGING, "fitting": [{"name": "renamed", "ours": 1.0, "peer": 1.0}]})


def test_every_row_of_the_table_is_one_that_its_benchmark_writes():
    spec = importlib.util.spec_from_file_location("speed_as_it_is", ROOT / "scripts/speed.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["speed_as_it_is"] = module
    spec.loader.exec_module(module)
    figures = json.loads(module.KEPT.read_text(encoding="utf-8"))
    for line in module.LINES:
        kept = [row["name"] for row in figures.get(line.benchmark, [])]
        source = (ROOT / "benchmarks" / f"{line.benchmark}.py").read_text(encoding="utf-8")
        assert any(name.startswith(line.row) for name in kept) or f'"{line.row}' in source, line.row
