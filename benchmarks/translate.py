"""Translating embeddings: fits against latentis 0.0.8 in its own environment, and streams of vectors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
VENV = ROOT / ".peers" / "latentis"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
ANCHORS, SOURCE, TARGET = 2000, 768, 1024

PEER = """
import json, sys, time, torch
torch.set_num_threads(1)
from latentis.transform.translate import Procrustes
from latentis.transform.translate.aligner import SGDAffineAligner
x, y = torch.load(sys.argv[1])

def seconds(make):
    best = float("inf")
    for _ in range(int(sys.argv[2])):
        translator = make()
        start = time.process_time()
        translator.fit(x=x, y=y)
        best = min(best, time.process_time() - start)
    return best

out = {"procrustes": seconds(Procrustes)}
start = time.process_time()
SGDAffineAligner(num_steps=300, lr=1e-3, random_seed=0).fit(x=x, y=y)
out["sgd"] = time.process_time() - start
print(json.dumps(out))
"""

STREAM = """
import json, sys, threading, time
from pathlib import Path
peak, stop = 0, False
def watch():
    global peak
    while not stop:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                peak = max(peak, int(line.split()[1]) * 1024)
        time.sleep(0.02)
threading.Thread(target=watch, daemon=True).start()
import torch
torch.set_num_threads(1)
from transship.verbs.translate import load_map
from transship.verbs.translate.apply import apply_map
saved = load_map(sys.argv[1])
start = time.process_time()
for step in apply_map(saved, sys.argv[2], sys.argv[3]):
    pass
print(json.dumps({"cpu": time.process_time() - start, "rows": step.rows, "peak": peak}))
"""


def run() -> list[dict[str, Any]]:
    """Return the rows: fits against latentis, a product of 200,000 vectors, and streams of growing size."""
    import scipy.linalg  # noqa: F401  # its BLAS must be there to be limited
    import torch
    from threadpoolctl import threadpool_limits

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        # one thread for ours as for the peer: a second one that waits counts as CPU seconds
        with threadpool_limits(1), tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
            return [*_fits(Path(folder)), *_product(), *_streams(Path(folder))]
    finally:
        torch.set_num_threads(threads)


def peer_python(venv: Path, versions: tuple[str, ...]) -> Path:
    """Return the Python of a peer's environment, made when it is not there."""
    python, ready = venv / "bin" / "python", venv / ".ready"
    if not ready.is_file():
        print(f"setting up {versions[-1]} in .peers/{venv.name} …", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        for version in versions:  # torch first, so that the build without CUDA is taken where that is offered
            subprocess.run([python, "-m", "pip", "install", "--quiet", version], check=True)
        ready.touch()
    return python


def _fits(folder: Path) -> list[dict[str, Any]]:
    import torch

    from transship.verbs.translate import Procrustes, Ridge

    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(ANCHORS, 200))
    x, y = (
        torch.from_numpy(hidden @ rng.normal(size=(200, width)) + rng.normal(size=(ANCHORS, width))).float()
        for width in (SOURCE, TARGET)
    )
    torch.save((x, y), folder / "pairs.pt")
    python = peer_python(VENV, ("torch==2.13.0", "latentis==0.0.8"))
    done = subprocess.run(
        [python, "-c", PEER, folder / "pairs.pt", "3"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"latentis failed: {done.stderr[-2000:]}")
    peer = json.loads(done.stdout.splitlines()[-1])
    rotation = _seconds(lambda: Procrustes().fit(x.numpy(), y.numpy()))
    ridge = _seconds(lambda: Ridge().fit(x.numpy(), y.numpy()), repeats=2)
    return [
        _row("Procrustes fit, CPU s, against latentis", rotation, peer["procrustes"], "<= 0.5"),
        _row(
            "ridge with λ by leave-one-out, CPU s, against latentis' SGD affine", ridge, peer["sgd"], "<= 0.1"
        ),
    ]


def _product() -> list[dict[str, Any]]:
    import torch

    from transship.verbs.translate import Ridge

    rng = np.random.default_rng(0)
    anchors = rng.normal(size=(2000, SOURCE)).astype(np.float32)
    fitted = Ridge(alpha=1.0).fit(anchors, rng.normal(size=(2000, TARGET)).astype(np.float32))
    rows = rng.normal(size=(200_000, SOURCE)).astype(np.float32)
    weight = torch.from_numpy(fitted.coef_).float()
    bare = _seconds(lambda: torch.from_numpy(rows) @ weight, repeats=2)
    ours = _seconds(lambda: fitted.transform(rows), repeats=2)
    return [_row("200,000 vectors, 768 → 1024, CPU s, against the bare product", ours, bare, "<= 1.2")]


def _streams(folder: Path) -> list[dict[str, Any]]:
    from transship.verbs.translate import Ridge, save_map

    rng = np.random.default_rng(0)
    anchors = rng.normal(size=(1000, 384)).astype(np.float32)
    target = anchors @ rng.normal(size=(384, 384)).astype(np.float32)
    save_map(Ridge(alpha=1.0).fit(anchors, target), folder / "map", {"unit_target": True})
    sizes = [100_000, 400_000, 1_600_000]
    entries = []
    for size in sizes:
        _write(folder / "in", size, rng)
        command = [sys.executable, "-c", STREAM, folder / "map", folder / "in", folder / "out"]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
        entries.append(json.loads(done.stdout.splitlines()[-1]))
        _remove(folder / "in")
        _remove(folder / "out")
    rates = [each["rows"] / each["cpu"] for each in entries]
    peaks = [each["peak"] / 1e6 for each in entries]
    return [
        _row("rows per CPU s, 1,600,000 against 100,000", rates[2], rates[0], ">= 0.9"),
        _row("rows per CPU s, 400,000 against 100,000", rates[1], rates[0], ">= 0.9"),
        _row("anonymous MB, 1,600,000 against 100,000", peaks[2], peaks[0], "<= 1.15"),
        _row("anonymous MB at 1,600,000, against 500", peaks[2], 500.0, "<= 1"),
    ]


def _write(folder: Path, count: int, rng: np.random.Generator) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    block = rng.normal(size=(100_000, 384)).astype(np.float32)
    for part in range(count // len(block)):
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.roll(block, part, axis=1).reshape(-1)), 384)
        ids = np.arange(part * len(block), (part + 1) * len(block))
        table = pa.table({"id": ids, "vector": vectors})
        pq.write_table(
            table,
            folder / f"{part:03d}.parquet",
            row_group_size=10_000,
            compression="none",
            use_dictionary=False,
        )


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder)


def _seconds(work: Any, repeats: int = 3) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def _row(name: str, ours: float, peer: float, needed: str) -> dict[str, Any]:
    return {"name": name, "ours": ours, "peer": peer, "ratio": ours / peer, "needed": needed}
