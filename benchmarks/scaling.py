"""How time grows: `translate apply` and `merge run` with data ×1, ×4, ×16, by one process and by two.

Also: merges of more models, and the fit of a map between wider spaces.

Whole commands in a process of their own, with one thread per process. The exponent is the slope of log CPU
seconds over log size, start-up subtracted: with one thread, that is the wall time of an idle machine. One
process and two are compared by wall seconds, start-up included, and so are their exponents. With
`--json FILE` the points of the curves are kept beside the rows.
"""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._mergekit import Cost, make_llama, measure

STEPS = (1, 4, 16)
ROWS, PART, SOURCE, TARGET, ANCHORS = 40_000, 10_000, 384, 768, 2000
LAYERS, WIDTH = 4, 512
BAR = 0.65  # of one process's wall seconds, for two
COMMAND = "from transship.cli import main; main()"
RECIPE = """
models:
  - {model: one, parameters: {weight: 0.5, density: 0.5}}
  - {model: two, parameters: {weight: 0.3, density: 0.5}}
base_model: base
merge_method: ties
dtype: bfloat16
"""


def run() -> list[dict[str, Any]]:
    """Return the rows; inputs and outputs live in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="transship-scaling-") as name:
        folder = Path(name)
        return [*_translate(folder), *_merge(folder), *_models(folder), *_maps()]


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the slope of log seconds over log sizes, by least squares."""
    slope: float = np.polyfit(np.log(sizes), np.log(seconds), 1)[0]
    return slope


def curve_row(
    name: str, what: str, sizes: Sequence[int], costs: Sequence[Cost], start: float
) -> dict[str, Any]:
    """Return the row of a curve: its exponent, net of the start-up that every size pays alike."""
    net = [max(1e-3, cost.cpu - start) for cost in costs]
    result = exponent(sizes, net)
    points = [
        {what: size, "seconds": cost.wall, "cpu": cost.cpu, "peak": cost.memory}
        for size, cost in zip(sizes, costs, strict=True)
    ]
    row = {"name": f"{name}, exponent of CPU s in {what}", "ours": result, "ratio": result}
    return row | {"needed": "<= 1.1", "curve": name, "x": what, "points": points, "start": start}


def worker_rows(
    name: str, what: str, sizes: Sequence[int], seconds: Mapping[int, Sequence[float]]
) -> list[dict[str, Any]]:
    """Return a curve of wall seconds per number of processes, and two over one at the largest size.

    Args:
        name: what is done.
        what: what grows.
        sizes: how large it is.
        seconds: wall seconds at each size, by the number of processes: 1 and 2.
    """
    rows: list[dict[str, Any]] = []
    for workers, walls in seconds.items():
        result = exponent(sizes, walls)
        points = [{what: size, "seconds": wall} for size, wall in zip(sizes, walls, strict=True)]
        label = f"{workers} process{'es' if workers > 1 else ''}"
        row = {"name": f"{name}, {label}, exponent of wall s in {what}", "ours": result, "ratio": result}
        rows.append(row | {"curve": f"{name}, {label}", "x": what, "workers": workers, "points": points})
    second, two = seconds[1][-1], seconds[2][-1]
    row = {"name": f"{name}, {sizes[-1]:,} {what}, wall s, 2 processes / 1", "ours": two, "peer": second}
    return [*rows, row | {"ratio": two / second, "needed": f"<= {BAR}"}]


def _translate(folder: Path) -> list[dict[str, Any]]:
    from transship.verbs.translate import KernelRidge, Ridge, save_map

    rng = np.random.default_rng(0)
    anchors = rng.normal(size=(ANCHORS, SOURCE)).astype(np.float32)
    target = anchors @ rng.normal(size=(SOURCE, TARGET)).astype(np.float32)
    save_map(Ridge(alpha=1.0).fit(anchors, target), folder / "ridge", {"unit_target": True})
    save_map(KernelRidge().fit(anchors, target), folder / "kernel", {"unit_target": True})
    sizes = [ROWS * step for step in STEPS]
    _write(folder / "few", 100, rng)
    for size in sizes:
        _write(folder / f"in-{size}", size, rng)
    rows = []
    for kind in ("ridge", "kernel"):
        start = _apply(folder, kind, "few").cpu
        costs = [_apply(folder, kind, f"in-{size}") for size in sizes]
        rows.append(curve_row(f"translate apply, {kind}", "rows", sizes, costs, start))
    shared = [_apply(folder, "kernel", f"in-{size}", "--jobs", "2") for size in sizes]
    walls = {1: [cost.wall for cost in costs], 2: [cost.wall for cost in shared]}
    rows += worker_rows("translate apply, kernel", "rows", sizes, walls)
    return rows


def _apply(folder: Path, kind: str, source: str, *options: str) -> Cost:
    shutil.rmtree(folder / "out", ignore_errors=True)
    words = ["translate", "apply", folder / kind, folder / source, folder / "out", *options]
    return measure([sys.executable, "-c", COMMAND, *words], folder)


def _write(folder: Path, count: int, rng: np.random.Generator) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    block = rng.normal(size=(min(PART, count), SOURCE)).astype(np.float32)
    for part in range(math.ceil(count / len(block))):
        rolled = np.roll(block, part, axis=1)
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(rolled.reshape(-1)), SOURCE)
        table = pa.table({"id": np.arange(part * len(block), (part + 1) * len(block)), "vector": vectors})
        pq.write_table(table, folder / f"{part:03d}.parquet", compression="none", use_dictionary=False)


def _merge(folder: Path) -> list[dict[str, Any]]:
    (folder / "ties.yaml").write_text(RECIPE)
    sizes, costs = [], []
    start = math.inf
    for step in STEPS:
        layers = LAYERS * step
        for seed, name in enumerate(("base", "one", "two")):
            base = None if name == "base" else 0
            make_llama(folder / name, layers=layers, seed=seed, base=base, width=WIDTH, words=256)
        sizes.append(9 * layers + 3)
        start = min(start, measure([sys.executable, "-c", COMMAND, "merge", "plan", "ties.yaml"], folder).cpu)
        costs.append(_run(folder))
    two = _run(folder, "--jobs", "2")
    rows = [curve_row("merge run, ties", "tensors", sizes, costs, start)]
    name = f"merge run, ties, {sizes[-1]:,} tensors, wall s, 2 threads / 1"
    return [
        *rows,
        {"name": name, "ours": two.wall, "peer": costs[-1].wall, "ratio": two.wall / costs[-1].wall},
    ]


def _models(folder: Path) -> list[dict[str, Any]]:
    """Merge 2, 4 and 8 models of the same size."""
    names = [f"m{number}" for number in range(8)]
    for seed, name in enumerate(names, 1):
        make_llama(folder / name, layers=4 * LAYERS, seed=seed, base=0, width=WIDTH, words=256)
    counts, costs, start = [2, 4, 8], [], math.inf
    for count in counts:
        listed = "".join(f"  - {{model: {name}, parameters: {{weight: 0.1}}}}\n" for name in names[:count])
        text = f"models:\n{listed}merge_method: linear\ndtype: bfloat16\n"
        (folder / "ties.yaml").write_text(text)
        start = min(start, measure([sys.executable, "-c", COMMAND, "merge", "plan", "ties.yaml"], folder).cpu)
        costs.append(_run(folder))
    return [curve_row("merge run, linear", "models", counts, costs, start)]


def _maps() -> list[dict[str, Any]]:
    """Fit the Procrustes map of a site between spaces of growing width, from Moments."""
    import torch

    from transship.geometry import Moments
    from transship.geometry.fits import procrustes

    widths, costs = [256, 512, 1024], []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for width in widths:
        rows = torch.randn(2 * width, 2 * width, generator=torch.Generator().manual_seed(0))
        moments = Moments.of(rows[:, :width], rows[:, width:])
        began = time.process_time()
        procrustes(moments)
        seconds = time.process_time() - began
        costs.append(Cost(seconds, seconds, 0))
    torch.set_num_threads(threads)
    row = curve_row("Procrustes map of a site", "width", widths, costs, 0.0)
    return [row | {"needed": "<= 3.3"}]


def _run(folder: Path, *options: str) -> Cost:
    shutil.rmtree(folder / "merged", ignore_errors=True)
    return measure([sys.executable, "-c", COMMAND, "merge", "run", "ties.yaml", "merged", *options], folder)


if __name__ == "__main__":
    began = time.perf_counter()
    for line in run():
        print({key: value for key, value in line.items() if key != "points"})
    print(f"{time.perf_counter() - began:.0f} s")
