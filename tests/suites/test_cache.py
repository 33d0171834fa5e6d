from __future__ import annotations

import json
import logging
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import pytest

from transship_suites.runner.context import ENTRY, Cache, cache_home, content_key

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3).T, "b": np.array([1, 2], dtype=np.int64)}


class Maker:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, np.ndarray]:
        self.calls += 1
        return ARRAYS


def get(
    home: Path, make: Maker, parts: dict[str, object] | None = None, **options: float
) -> dict[str, np.ndarray]:
    return Cache(home, **options).get("kind", parts or {"x": 1}, make)


def entry(home: Path) -> Path:
    (only,) = (folder for folder in (home / "made" / "kind").iterdir() if folder.is_dir())
    return only


def test_a_thing_is_made_once_and_comes_back_equal(tmp_path: Path):
    make = Maker()
    for _ in range(3):
        arrays = get(tmp_path, make)
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(arrays[name], array)
            assert arrays[name].dtype == array.dtype
    assert make.calls == 1


def test_other_parts_are_another_thing(tmp_path: Path):
    make = Maker()
    get(tmp_path, make, {"x": 1, "y": [1, 2]})
    get(tmp_path, make, {"y": [1, 2], "x": 1})
    assert make.calls == 1
    get(tmp_path, make, {"x": 1, "y": [2, 1]})
    assert make.calls == 2


def _flip(folder: Path) -> None:
    file = folder / "arrays.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def _cut(folder: Path) -> None:
    file = folder / "arrays.safetensors"
    file.write_bytes(file.read_bytes()[:-5])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_flip, "damaged arrays.safetensors"),
        (_cut, "damaged arrays.safetensors"),
        (lambda folder: (folder / "arrays.safetensors").unlink(), "lacks arrays.safetensors"),
        (lambda folder: (folder / ENTRY).unlink(), "no readable entry.json"),
        (lambda folder: (folder / ENTRY).write_text("{"), "no readable entry.json"),
    ],
)
def test_a_damaged_entry_is_noticed_and_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage, said: str
):
    make = Maker()
    get(tmp_path, make)
    damage(entry(tmp_path))
    with caplog.at_level(logging.WARNING):
        arrays = get(tmp_path, make)
    np.testing.assert_array_equal(arrays["a"], ARRAYS["a"])
    assert make.calls == 2
    assert said in caplog.text
    get(tmp_path, make)
    assert make.calls == 2


def test_a_maker_that_fails_leaves_no_entry(tmp_path: Path):
    def fail() -> dict[str, np.ndarray]:
        raise RuntimeError("full disk")

    with pytest.raises(RuntimeError, match="full disk"):
        Cache(tmp_path).get("kind", {"x": 1}, fail)
    assert list((tmp_path / "made" / "kind").glob("*/")) == []


def test_entries_older_than_a_fresh_run_are_made_again_once(tmp_path: Path):
    make = Maker()
    get(tmp_path, make)
    start = time.time()
    for _ in range(2):
        get(tmp_path, make, not_before=start)
    assert make.calls == 2


def _slow_make(home: Path, log: Path) -> None:
    def make() -> dict[str, np.ndarray]:
        with log.open("a") as stream:
            stream.write(f"{os.getpid()}\n")
        time.sleep(0.3)
        return ARRAYS

    assert set(Cache(home).get("kind", {"x": 1}, make)) == set(ARRAYS)


def test_two_processes_make_one_thing_once(tmp_path: Path):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_slow_make, args=(tmp_path, tmp_path / "log")) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert len((tmp_path / "log").read_text().splitlines()) == 1


def test_the_entry_says_what_went_in(tmp_path: Path):
    get(tmp_path, Maker(), {"width": 16})
    assert json.loads((entry(tmp_path) / ENTRY).read_text())["parts"] == {"width": 16}


def test_keys_refuse_what_json_cannot_say():
    with pytest.raises(ValueError, match="JSON"):
        content_key({"x": float("nan")})
    with pytest.raises(TypeError):
        content_key({"x": object()})


def test_the_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("TRANSSHIP_CACHE", str(tmp_path))
    assert cache_home() == tmp_path / "suites"
    monkeypatch.delenv("TRANSSHIP_CACHE")
    assert cache_home() == Path.home() / ".cache" / "transship" / "suites"
