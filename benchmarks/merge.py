"""Merging three bfloat16 checkpoints of 0.25 GB: CPU seconds against mergekit 0.1.5, end to end, one thread.

Also: peak anonymous memory against 60 MB + 8 bytes × the largest tensor, and again for models four times as
large; global against per-tensor TIES; the start-up of `merge plan`; and how far linear is from copying the
bytes.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._mergekit import Cost, make_llama, measure, mergekit_python

LAYERS = 11
LARGEST = 32000 * 768  # elements of the embedding
RECIPES = {
    "linear": """
models:
  - {model: base, parameters: {weight: 0.5}}
  - {model: one, parameters: {weight: 0.3}}
  - {model: two, parameters: {weight: 0.2}}
merge_method: linear
dtype: bfloat16
""",
    "ties": """
models:
  - {model: one, parameters: {weight: 0.5, density: 0.5}}
  - {model: two, parameters: {weight: 0.3, density: 0.5}}
base_model: base
merge_method: ties
dtype: bfloat16
""",
}
RECIPES["ties-global"] = RECIPES["ties"] + "parameters: {trim: global}\n"
COPY = "import shutil, sys; shutil.copyfile(sys.argv[1], sys.argv[2])"


def run() -> list[dict[str, Any]]:
    """Return the rows; models and outputs live in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="transship-merge-") as name:
        folder = Path(name)
        _models(folder, LAYERS)
        for recipe, text in RECIPES.items():
            (folder / f"{recipe}.yaml").write_text(text)
        _ours(folder, "plan", "linear")  # the first start compiles our files; mergekit's were by pip
        ours = {recipe: min((_ours(folder, "run", recipe) for _ in range(3)), key=_cpu) for recipe in RECIPES}
        theirs = {
            recipe: min((_theirs(folder, recipe) for _ in range(2)), key=_cpu)
            for recipe in ("linear", "ties")
        }
        threads = {recipe: _walls(folder, recipe) for recipe in ("linear", "ties")}
        plan = min((_ours(folder, "plan", "linear") for _ in range(5)), key=_cpu)
        copy = min((_copy(folder) for _ in range(3)), key=_cpu)
        start = min((measure([sys.executable, "-c", "pass"], folder) for _ in range(3)), key=_cpu)
        rows = _time_rows(ours, theirs, plan) + _memory_rows(folder, ours, theirs)
    for recipe, (first, two) in threads.items():
        name = f"{recipe}, wall s, one thread / --jobs 2"
        rows.append({"name": name, "ours": two, "peer": first, "ratio": first / two})
    net, bytes_only = ours["linear"].cpu - plan.cpu, copy.cpu - start.cpu
    rows.append(
        {
            "name": "linear net of start-up / copying the output's bytes, CPU s",
            "ours": net,
            "peer": bytes_only,
        }
    )
    rows[-1]["ratio"] = net / bytes_only
    return rows


def _cpu(cost: Cost) -> float:
    return cost.cpu


def _models(folder: Path, layers: int) -> None:
    make_llama(folder / "base", layers=layers, seed=0)
    for seed, name in enumerate(("one", "two"), 1):
        make_llama(folder / name, layers=layers, seed=seed, base=0)


def _ours(folder: Path, command: str, recipe: str, *options: str) -> Cost:
    out = [] if command == "plan" else [folder / "ours"]
    shutil.rmtree(folder / "ours", ignore_errors=True)
    code = "import sys; from transship.cli.merge import command; command(sys.argv[1:])"
    return measure([sys.executable, "-c", code, command, f"{recipe}.yaml", *out, *options], folder)


def _walls(folder: Path, recipe: str) -> tuple[float, float]:
    """Return the wall seconds of one thread and of two, the least of three runs each, taken in turn."""
    runs = [[_ours(folder, "run", recipe, "--jobs", jobs).wall for jobs in "12"] for _ in range(3)]
    return min(first for first, _ in runs), min(two for _, two in runs)


def _theirs(folder: Path, recipe: str) -> Cost:
    shutil.rmtree(folder / "theirs", ignore_errors=True)
    program = mergekit_python().with_name("mergekit-yaml")
    return measure([program, f"{recipe}.yaml", folder / "theirs", "--no-write-model-card"], folder)


def _copy(folder: Path) -> Cost:
    source, target = folder / "base/model.safetensors", folder / "copy"
    target.unlink(missing_ok=True)
    return measure([sys.executable, "-c", COPY, source, target], folder)


def _time_rows(ours: dict[str, Cost], theirs: dict[str, Cost], plan: Cost) -> list[dict[str, Any]]:
    rows = []
    for recipe, needed in (("linear", ">= 10"), ("ties", ">= 7")):
        mine, peer = ours[recipe].cpu, theirs[recipe].cpu
        name = f"{recipe}, CPU s, mergekit / ours"
        rows.append({"name": name, "ours": mine, "peer": peer, "ratio": peer / mine, "needed": needed})
    whole, each = ours["ties-global"].cpu, ours["ties"].cpu
    name = "global / per-tensor TIES, CPU s"
    rows.append({"name": name, "ours": whole, "peer": each, "ratio": whole / each, "needed": "<= 1.5"})
    rows.append({"name": "merge plan, CPU s", "ours": plan.cpu, "ratio": plan.cpu, "needed": "<= 0.4"})
    return rows


def _memory_rows(folder: Path, ours: dict[str, Cost], theirs: dict[str, Cost]) -> list[dict[str, Any]]:
    """Compare peak anonymous memory with the bound, and that of models four times as large with these."""
    bound = 60_000_000 + 8 * LARGEST
    rows = []
    for recipe, cost in ours.items():
        name = f"{recipe}, peak anonymous MB / bound"
        row = {"name": name, "ours": cost.memory / 1e6, "peer": bound / 1e6, "ratio": cost.memory / bound}
        rows.append(row | {"needed": "<= 1"})
    for recipe, cost in theirs.items():
        ratio = cost.memory / ours[recipe].memory
        name = f"{recipe}, peak anonymous MB, mergekit / ours"
        rows.append(
            {"name": name, "ours": ours[recipe].memory / 1e6, "peer": cost.memory / 1e6, "ratio": ratio}
        )
    _models(folder, 4 * LAYERS + 10)  # the embeddings are a third of the small model
    for recipe in RECIPES:
        large, small = _ours(folder, "run", recipe).memory, ours[recipe].memory
        name = f"{recipe}, four times as large a model, peak MB"
        row = {
            "name": name,
            "ours": large / 1e6,
            "peer": small / 1e6,
            "ratio": large / small,
            "needed": "<= 1.1",
        }
        rows.append(row)
    return rows
