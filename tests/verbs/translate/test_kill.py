"""Killed at random moments and started again, `apply` gives the rows of an undisturbed run."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from transship.verbs.translate import Ridge, save_map
from transship.verbs.translate.stores import open_source, qdrant

_SPEC = importlib.util.spec_from_file_location(
    "kill_store_helpers", Path(__file__).with_name("store_helpers.py")
)
helpers = importlib.util.module_from_spec(_SPEC)
sys.modules["kill_store_helpers"] = helpers
_SPEC.loader.exec_module(helpers)

# Imports everything, then forks a child per attempt, so that the kills fall into the work itself. SIGALRM
# without a handler ends a process as SIGKILL does: at once, wherever it is, with no cleaning up.
DRIVER = """
import json, os, random, signal, sys, time
map_folder, source, target, kind, kills = *sys.argv[1:5], int(sys.argv[5])
import numpy, pyarrow.parquet, torch
from transship.numerics import MemoryBudget
from transship.verbs.translate import load_map
from transship.verbs.translate.moving import apply_map
from transship.verbs.translate.stores import parquet, faiss_file, lance, qdrant
parquet.PART_ROWS, lance.COMMIT_ROWS, qdrant.UPSERT = 12, 12, 8
if kind == "qdrant":
    import qdrant_client
if kind == "faiss":
    import faiss
if kind == "lance":
    import lancedb  # starts its threads anew after a fork
saved = load_map(map_folder)
draw = random.Random(kind)

def attempt(target, delay):
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    if delay is not None:
        signal.setitimer(signal.ITIMER_REAL, delay)
    for step in apply_map(saved, source, target, memory=MemoryBudget(2800)):
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    qdrant.close_clients()
    os._exit(0)

def place(name):
    return target.replace("NAME", name)

start = time.monotonic()
assert attempt(place("whole"), None) == 0
taken = time.monotonic() - start
name, killed, dead, used = "killed-0", 0, 0, []
for number in range(kills * 6):
    if killed == kills:
        break
    status = attempt(place(name), draw.uniform(0.001, taken * (0.3 if number % 2 else 0.9)))
    assert status in (0, signal.SIGALRM), status
    killed += status != 0
    if status == 0:  # done before its kill: the next ones go at a new target
        used.append(name)
        name = f"killed-{number + 1}"
assert attempt(place(name), None) == 0
print(json.dumps({"killed": killed, "targets": [*used, name]}))
"""
KILLS = 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", helpers.KINDS)
def test_kills_lose_and_double_nothing(kind: str, tmp_path: Path):
    x = helpers.make_rows(200, 6, seed=7)
    y = x @ np.random.default_rng(1).normal(size=(6, 5)).astype(np.float32)
    saved = save_map(Ridge().fit(x, y), tmp_path / "map", {"unit_target": True})
    rows = helpers.make_rows()
    source = helpers.build(kind, tmp_path / "in", rows)
    target = helpers.target(kind, tmp_path / "NAME")
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "map"), source, target, kind, str(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["killed"] == KILLS
    expected = _rows(target.replace("NAME", "whole"))
    moved = saved.translator.transform(rows)
    moved = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    np.testing.assert_allclose(np.stack([expected[str(i + 1)] for i in range(len(rows))]), moved, atol=1e-6)
    for name in told["targets"]:
        found = _rows(target.replace("NAME", name))
        assert list(found) == list(expected)
        np.testing.assert_array_equal(np.stack(list(found.values())), np.stack(list(expected.values())))


def _rows(reference: str) -> dict[str, np.ndarray]:
    source = open_source(reference)
    pairs = [
        (str(identity), vector)
        for batch in source.batches(64)
        for identity, vector in zip(batch.ids, batch.vectors, strict=True)
    ]
    assert len(pairs) == source.rows == helpers.COUNT
    source.close()
    qdrant.close_clients()
    assert len({identity for identity, _ in pairs}) == len(pairs)
    return dict(sorted(pairs))
