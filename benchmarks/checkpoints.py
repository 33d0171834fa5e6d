"""Weights at rest beside safetensors and torch: CPU time of opening, reading, converting, writing.

A row is {name, ours, peer, ratio, unit}; ratio = peer / ours, so more than 1 means that ours takes less.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from transship.checkpoints import CHUNK, Update, copied, narrow, widen, write_checkpoint
from transship.checkpoints import open as open_checkpoint

Row = dict[str, Any]
ELEMENTS = 1 << 22
LAYERS = 8


def cpu_seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Return the least CPU time of `repeats` runs: the machine may be busy with other things."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def row(name: str, ours: float, peer: float, scale: float, unit: str) -> Row:
    """Return one line of the table, both figures in `unit`."""
    return {"name": name, "ours": ours * scale, "peer": peer * scale, "ratio": peer / ours, "unit": unit}


def conversions() -> list[Row]:
    """Return ns per element of widening and narrowing, beside torch on one thread."""
    import torch

    torch.set_num_threads(1)
    values = np.random.default_rng(0).standard_normal(ELEMENTS, dtype=np.float32)
    tensor = torch.from_numpy(values)
    rows = []
    for name in ("bfloat16", "float16"):
        kind = getattr(torch, name)
        short, half = narrow(values, name), tensor.to(kind)
        wide = np.empty(CHUNK, np.float32)
        parts = [short[start : start + CHUNK] for start in range(0, ELEMENTS, CHUNK)]
        ours = cpu_seconds(
            lambda parts=parts, name=name, wide=wide: [widen(part, name, wide) for part in parts]
        )
        halves = [half[start : start + CHUNK] for start in range(0, ELEMENTS, CHUNK)]
        peer = cpu_seconds(lambda halves=halves: [part.float() for part in halves])
        rows.append(row(f"widen {name} to float32, by chunks", ours, peer, 1e9 / ELEMENTS, "ns/element"))
        out = np.empty_like(short)
        ours = cpu_seconds(lambda name=name, out=out: narrow(values, name, out))
        peer = cpu_seconds(lambda kind=kind, half=half: half.copy_(tensor.to(kind)))
        rows.append(row(f"narrow float32 to {name}", ours, peer, 1e9 / ELEMENTS, "ns/element"))
    return rows


def files(folder: Path) -> list[Row]:
    """Return CPU time of opening, reading and writing a bfloat16 file, beside safetensors.torch."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    rng = np.random.default_rng(0)
    tensors = {
        f"layer.{n}.weight": torch.from_numpy(rng.standard_normal((ELEMENTS // 2048, 2048), np.float32))
        for n in range(LAYERS)
    }
    half = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    path, total = folder / "model.safetensors", LAYERS * ELEMENTS
    save_file(half, path, {"format": "pt"})
    rows = []

    ours = cpu_seconds(lambda: [open_checkpoint(path) for _ in range(20)])
    peer = cpu_seconds(lambda: [safe_open(path, "pt").keys() for _ in range(20)])
    rows.append(row(f"open a file of {LAYERS} tensors", ours, peer, 1e3 / 20, "ms"))

    def read_ours() -> None:
        checkpoint = open_checkpoint(path)
        for name, info in checkpoint.tensors.items():
            for start in range(0, info.size, CHUNK):
                checkpoint.floats(name, start, start + CHUNK)

    ours = cpu_seconds(read_ours)
    peer = cpu_seconds(lambda: [tensor.float() for tensor in load_file(path).values()])
    rows.append(row("read all as float32", ours, peer, 1e9 / total, "ns/element"))

    plans = [(name, tuple(tensor.shape), "bfloat16", tensor.numpy) for name, tensor in tensors.items()]
    ours = cpu_seconds(lambda: write_checkpoint(folder / "out", plans, force=True, sync=False))
    peer = cpu_seconds(
        lambda: save_file(
            {name: tensor.bfloat16() for name, tensor in tensors.items()}, folder / "peer", {"format": "pt"}
        )
    )
    rows.append(row("round to bfloat16 and write", ours, peer, 1e9 / total, "ns/element"))

    base = open_checkpoint(path)
    ours = cpu_seconds(lambda: write_checkpoint(folder / "copy", copied(base), force=True, sync=False))
    peer = cpu_seconds(lambda: save_file(load_file(path), folder / "peer", {"format": "pt"}))
    rows.append(row("copy a checkpoint", ours, peer, 1e9 / total, "ns/element"))

    other = open_checkpoint(folder / "copy")
    ours = cpu_seconds(lambda: Update.between(base, other).norm(), 3)
    peer = cpu_seconds(lambda: _dense_norm(path, folder / "copy" / "model.safetensors"), 3)
    rows.append(row("norm of a difference", ours, peer, 1e9 / total, "ns/element"))
    return rows


def _dense_norm(one: Path, other: Path) -> float:
    """Load both files whole, as a script would."""
    from safetensors.torch import load_file

    before, after = load_file(one), load_file(other)
    return float(sum((after[name].double() - before[name].double()).square().sum() for name in before)) ** 0.5


def run() -> list[Row]:
    """Return all rows."""
    folder = Path(tempfile.mkdtemp(prefix="transship-bench-"))
    try:
        return [*conversions(), *files(folder)]
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    print(f"{'':44} {'ours':>9} {'peer':>9} {'ratio':>7}")
    for row in run():
        figures = f"{row['ours']:9.3f} {row['peer']:9.3f} {row['ratio']:6.2f}x  {row['unit']}"
        print(f"{row['name']:44} {figures}")
