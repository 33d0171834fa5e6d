"""Killed at random moments and started again, `apply` gives the rows of an undisturbed run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import store_helpers as helpers

from transship.verbs.translate import Ridge, save_map
from transship.verbs.translate.stores import open_source, qdrant

# Imports everything once, then forks a child per attempt, so that the kills fall into the work itself.
# SIGALRM without a handler ends a process as SIGKILL does: at once, wherever it is, with no cleaning up.
DRIVER = """
import json, os, random, signal, sys, time
import faiss, lancedb, numpy, pyarrow.parquet, qdrant_client, torch
from transship.verbs.translate import LazyIndex, load_map
from transship.verbs.translate import apply as moving
from transship.verbs.translate.apply import apply_map
from transship.verbs.translate.stores import parquet, faiss_file, lance, qdrant
parquet.PART_ROWS, lance.COMMIT_ROWS, qdrant.UPSERT, moving.ROWS = 12, 12, 8, 13

def apply(job, target, name):
    for step in apply_map(saved, job["source"], target):
        pass

def lazy(job, target, name):
    rows = numpy.load(job["rows"])
    embed = lambda texts: saved.translator.transform(rows[[int(text) - 1 for text in texts]])
    texts = {number + 1: str(number + 1) for number in range(len(rows))}
    beside = job["kind"] in ("lance", "qdrant")
    back = f"new-{name}" if beside else f"{target}-new"
    index = LazyIndex(job["source"], embed=embed, texts=texts, write_back=back, model="new")
    for step in index.finish(None if beside else target, part=7):
        pass

def attempt(job, name, delay):
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    if delay is not None:
        signal.setitimer(signal.ITIMER_REAL, delay)
    globals()[job["task"]](job, job["target"].replace("NAME", name), name)
    signal.setitimer(signal.ITIMER_REAL, 0)
    qdrant.close_clients()
    os._exit(0)

for line in sys.stdin:
    job = json.loads(line)
    saved, draw = load_map(job["map"]), random.Random(job["kind"])
    start = time.monotonic()
    assert attempt(job, "whole", None) == 0
    taken = time.monotonic() - start
    name, killed, used = "killed-0", 0, []
    for number in range(job["kills"] * 6):
        if killed == job["kills"]:
            break
        status = attempt(job, name, draw.uniform(0.001, taken * (0.3 if number % 2 else 0.9)))
        assert status in (0, signal.SIGALRM), status
        killed += status != 0
        if status == 0:  # done before its kill: the next ones go at a new target
            used.append(name)
            name = f"killed-{number + 1}"
    assert attempt(job, name, None) == 0
    print(json.dumps({"killed": killed, "targets": [*used, name]}), flush=True)
"""
KILLS = 20


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (tmp_path_factory.mktemp("driver") / "errors").open("w+") as errors:
        process = subprocess.Popen([sys.executable, "-c", DRIVER], stderr=errors, **pipes)
        process.errors = errors
        yield process
        process.stdin.close()
        process.wait(60)


def _run(driver, **job) -> list[str]:
    """Run one job to its end and return the targets that were killed and finished."""
    driver.stdin.write(json.dumps(job) + "\n")
    driver.stdin.flush()
    answer = driver.stdout.readline()
    if not answer:
        driver.errors.seek(0)
        pytest.fail(driver.errors.read()[-2000:])
    record = json.loads(answer)
    assert record["killed"] == job["kills"]
    return record["targets"]


def _map(folder: Path):
    x = helpers.make_rows(200, 6, seed=7)
    y = x @ np.random.default_rng(1).normal(size=(6, 5)).astype(np.float32)
    return save_map(Ridge(alpha=0.01).fit(x, y), folder, {"unit_target": True})


@pytest.mark.slow
@pytest.mark.parametrize("kind", helpers.KINDS)
def test_kills_lose_and_double_nothing(kind: str, tmp_path: Path, driver):
    saved, rows = _map(tmp_path / "map"), helpers.make_rows()
    source = helpers.build(kind, tmp_path / "in", rows)
    target = helpers.target(kind, tmp_path / "NAME")
    job = {"task": "apply", "map": str(tmp_path / "map"), "source": source, "target": target, "kind": kind}
    targets = _run(driver, **job, kills=KILLS)
    expected = _rows(target.replace("NAME", "whole"))
    moved = saved.translator.transform(rows)
    moved = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    np.testing.assert_allclose(np.stack([expected[str(i + 1)] for i in range(len(rows))]), moved, atol=1e-6)
    for name in targets:
        actual = _rows(target.replace("NAME", name))
        assert list(actual) == list(expected)
        np.testing.assert_array_equal(np.stack(list(actual.values())), np.stack(list(expected.values())))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "lance", "qdrant", "faiss"])
def test_kills_while_an_index_moves_lose_and_double_nothing(kind: str, tmp_path: Path, driver):
    saved, rows = _map(tmp_path / "map"), helpers.make_rows()
    np.save(tmp_path / "rows.npy", rows)
    source = helpers.build(kind, tmp_path / "in", rows)
    target = helpers.target(kind, tmp_path / "NAME")
    job = {"task": "lazy", "map": str(tmp_path / "map"), "source": source, "target": target, "kind": kind}
    targets = _run(driver, **job, rows=str(tmp_path / "rows.npy"), kills=8)
    moved = saved.translator.transform(rows)
    moved = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    for name in targets:
        beside = {"lance": str(tmp_path / "in" / "db" / f"new-{name}.lance")}
        beside["qdrant"] = f"qdrant:{tmp_path / 'in' / 'qdrant'}#new-{name}"
        result = _rows(beside.get(kind, target.replace("NAME", name)))
        np.testing.assert_allclose(np.stack([result[str(i + 1)] for i in range(len(rows))]), moved, atol=1e-6)


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
