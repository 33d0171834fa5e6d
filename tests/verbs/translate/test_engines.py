"""Several processes, Ray and other file systems give the rows, the order and the metadata of one process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import store_helpers as helpers

from transship.errors import DataError, LaunchError, MissingError, OptionError, OutputError
from transship.numerics import MemoryBudget
from transship.verbs.translate import Ridge, check_map, embed, load_map
from transship.verbs.translate.apply import apply_map
from transship.verbs.translate.engines import LocalEngine, RayEngine, choose_engine
from transship.verbs.translate.stores import Stamp, open_sink, open_source, parquet
from transship.verbs.translate.stores.files import INCOMPLETE
from transship.verbs.translate.stores.parquet import DEATHS

# room for a dozen rows at a time
SMALL = MemoryBudget(2800)


@pytest.fixture(scope="module")
def cluster():
    """A Ray of two workers; two CPU seconds to start, and some more for each worker's imports."""
    ray = pytest.importorskip("ray", reason="Ray is not installed (extra `ray`)")
    ray.init(
        num_cpus=2,
        object_store_memory=80_000_000,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield ray
    ray.shutdown()


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(parquet, "PART_ROWS", 20)
    monkeypatch.setattr(embed, "PART_ROWS", 4)
    monkeypatch.setattr(embed.TextSource, "part_rows", 4)


@pytest.fixture
def one_thread():
    """As many threads as one of Ray's workers has: the bits of a product may depend on them."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def remote(tmp_path: Path, monkeypatch) -> str:
    """A file system of fsspec's that is not its local one, with its root in the temporary folder."""
    import fsspec

    (tmp_path / "remote").mkdir()
    monkeypatch.setitem(
        fsspec.config.conf, "dir", {"path": str(tmp_path / "remote"), "target_protocol": "file"}
    )
    return "dir://"


def same_files(left: Path, right: Path) -> None:
    """Every file has the same rows in the same order, the same columns, types and metadata, bit by bit."""
    names = [file.relative_to(left) for file in sorted(left.rglob("*.parquet"))] or [Path()]
    assert names == ([file.relative_to(right) for file in sorted(right.rglob("*.parquet"))] or [Path()])
    for name in names:
        first, other = (pq.read_table(root / name, partitioning=None) for root in (left, right))
        assert first.schema.equals(other.schema, check_metadata=True)
        assert first.equals(other)
        assert json.loads(first.schema.metadata[b"transship"])["model"]


def last(steps) -> int:
    return list(steps)[-1].done


def test_two_processes_give_what_one_gives_and_a_dead_one_costs_nothing(saved, tmp_path: Path, monkeypatch):
    source = helpers.build("folder", tmp_path / "in", helpers.make_rows())
    assert last(apply_map(saved, source, str(tmp_path / "one"), memory=SMALL)) == helpers.COUNT
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "dies.py").write_text(
        "import multiprocessing, os, signal\n"
        "from transship.verbs.translate.apply import translate_part\n"
        "def work(shared, part):\n"
        "    if multiprocessing.parent_process() is not None:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return translate_part(shared, part)\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "code")
    import dies

    from transship.verbs.translate import apply as moving

    two = LocalEngine(2)
    with monkeypatch.context() as patch:
        patch.setattr(moving, "translate_part", dies.work)
        with pytest.raises(OptionError, match="a worker process was killed"):
            last(apply_map(saved, source, str(tmp_path / "two"), memory=SMALL, engine=two))
    assert not (tmp_path / "two").exists()
    assert (tmp_path / ".two.partial").exists()
    assert last(apply_map(saved, source, str(tmp_path / "two"), memory=SMALL, engine=two)) == helpers.COUNT
    assert not (tmp_path / ".two.partial").exists()
    same_files(tmp_path / "one", tmp_path / "two")


def test_processes_started_beforehand_serve_several_runs_and_end_with_their_block():
    with LocalEngine(3, "transship.verbs.translate.apply") as engine:
        begun = [worker.pid for worker in engine.workers]
        first = dict(engine.run(divmod, 7, [1, 2, 3, 4, 5]))
        second = dict(engine.run(pow, 2, [3, 4]))
        processes = engine.workers
        assert [worker.pid for worker in processes] == begun
        assert len(processes) == 2
    assert first == {number: divmod(7, item) for number, item in enumerate([1, 2, 3, 4, 5])}
    assert second == {0: 8, 1: 16}
    assert engine.workers == []
    assert not any(process.is_alive() for process in processes)


def test_a_mistake_before_the_work_ends_the_processes_that_wait_for_it():
    processes = []

    def mistaken():
        with LocalEngine(2) as engine:
            processes.extend(engine.workers)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        mistaken()
    assert len(processes) == 1
    assert not any(process.is_alive() for process in processes)


def alive(group: int) -> bool:
    """Return whether any process of a group still runs; one that nobody has waited for is dead too."""
    states = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = place.read_text().rpartition(")")[2].split()
            states += [fields[0]] if int(fields[2]) == group else []
    return any(state != "Z" for state in states)


def hear_ctrl_c() -> None:
    """Undo what a shell does to the commands that it starts in the background: they ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_ctrl_c_stops_all_processes_with_one_sentence_and_the_run_goes_on_later(saved, tmp_path: Path):
    (tmp_path / "in").mkdir()
    for number in range(300):  # more than are done before the signal comes
        block = helpers.make_rows(50, 6, seed=number)
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), 6)
        ids = np.arange(50 * number, 50 * number + 50)
        pq.write_table(pa.table({"id": ids, "vector": vectors}), tmp_path / "in" / f"{number:04d}.parquet")
    words = ["translate", "apply", saved.path, str(tmp_path / "in"), str(tmp_path / "out"), "--jobs", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "transship", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own, as a terminal's Ctrl-C reaches all of one
        preexec_fn=hear_ctrl_c,
    )
    while process.poll() is None and len(list((tmp_path / ".out.partial").glob("*.parquet"))) < 3:
        time.sleep(0.005)
    assert process.poll() is None, process.communicate()
    os.killpg(process.pid, signal.SIGINT)
    _, output = process.communicate(timeout=120)
    assert process.returncode == 130, output
    last_line = output.splitlines()[-1]
    assert last_line.startswith("stopped; of ")
    assert f"the finished parts are kept beside {tmp_path / 'out'}, and the same command goes on" in last_line
    assert "Traceback" not in output
    deadline = time.monotonic() + 60
    while alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(process.pid), "a worker is left behind"
    assert not (tmp_path / "out").exists()
    again = subprocess.run(
        [sys.executable, "-m", "transship", *words], capture_output=True, text=True, check=True
    )
    assert "kept from before" in again.stderr
    last(apply_map(saved, str(tmp_path / "in"), str(tmp_path / "one")))
    same_files(tmp_path / "one", tmp_path / "out")


class Stopped:
    """An engine whose processes finish the second and the last part before everything stops."""

    parallel = True

    def run(self, act, work, parts):
        assert [tuple(part) for part in parts] == [(0, 20), (20, 40), (40, 60), (60, 80), (80, 90)]
        for number in (1, 4):
            yield parts[number], act(work, parts[number])
        raise KeyboardInterrupt


def test_a_stopped_run_of_parts_in_any_order_is_continued(saved, tmp_path: Path):
    """Several processes finish parts out of order; only those that are missing are made again."""
    source = helpers.build("parquet", tmp_path / "in", helpers.make_rows())
    last(apply_map(saved, source, str(tmp_path / "one.parquet"), memory=SMALL))
    with pytest.raises(KeyboardInterrupt):
        last(apply_map(saved, source, str(tmp_path / "two.parquet"), memory=SMALL, engine=Stopped()))
    assert not (tmp_path / "two.parquet").exists()
    steps = list(apply_map(saved, source, str(tmp_path / "two.parquet"), memory=SMALL))
    assert (steps[0].done, steps[-1].done) == (30, 90)
    same_files(tmp_path / "one.parquet", tmp_path / "two.parquet")


def test_a_part_over_which_worker_after_worker_dies_is_given_up(saved, tmp_path: Path):
    source = open_source(helpers.build("parquet", tmp_path / "in", helpers.make_rows()))
    sink = open_sink(str(tmp_path / "out.parquet"), source, Stamp("new"), width=5)
    for number in range(DEATHS):
        (tmp_path / ".out.parquet.partial" / f"{20:012d}.{number}.draft").touch()
    from transship.verbs.translate.apply import PartWork, translate_part

    work, parts = PartWork(saved, source, sink.writer, 12), sink.missing()
    assert translate_part(work, parts[0]) == 20
    with pytest.raises(DataError, match="5 workers died over the rows 20 to 40"):
        translate_part(work, parts[1])


@pytest.mark.parametrize("kind", ["parquet", "hive"])
def test_another_file_system_holds_the_same_rows(kind: str, saved, remote: str, tmp_path: Path):
    source = helpers.build(kind, tmp_path / "remote" / "in", helpers.make_rows())
    ending = ".parquet" if kind == "parquet" else ""
    last(apply_map(saved, source, str(tmp_path / f"local{ending}"), memory=SMALL))
    there = remote + str(Path(source).relative_to(tmp_path / "remote"))
    steps = apply_map(saved, there, f"{remote}out{ending}", memory=SMALL)
    next(steps)
    next(steps)
    steps.close()  # stopped after a part, and started again
    assert not (tmp_path / "remote" / f"out{ending}").exists()
    last(apply_map(saved, there, f"{remote}out{ending}", memory=SMALL))
    with pytest.raises(OutputError, match="exists already"):
        last(apply_map(load_map(saved.path), f"file://{source}", f"{remote}out{ending}"))
    assert [file.name for file in (tmp_path / "remote").iterdir() if file.name.startswith(".")] == []
    first, other = (
        pq.read_table(tmp_path / name, partitioning=None)
        for name in (f"local{ending}", f"remote/out{ending}")
    )
    assert first.equals(other)
    # a file system tells other things of a file than a disk does, so only the source's mark differs
    marks = [json.loads(table.schema.metadata[b"transship"]) for table in (first, other)]
    assert [mark | {"source": ""} for mark in marks] == [marks[0] | {"source": ""}] * 2
    assert open_source(f"{remote}out{ending}").stamp.map == saved.hash


def test_a_remote_folder_that_is_still_arriving_is_refused_and_finished_later(
    saved, remote: str, tmp_path: Path, monkeypatch
):
    source = helpers.build("folder", tmp_path / "in", helpers.make_rows())
    from transship.verbs.translate.stores.parquet import ParquetSink

    assemble, entries = ParquetSink._assemble, []

    def stopped(self, entry, goal):
        if len(entries) == 2:
            raise KeyboardInterrupt
        entries.append(goal)
        assemble(self, entry, goal)

    with monkeypatch.context() as patch:
        patch.setattr(ParquetSink, "_assemble", stopped)
        with pytest.raises(KeyboardInterrupt):
            last(apply_map(saved, source, f"{remote}out", memory=SMALL))
    assert (tmp_path / "remote" / "out" / INCOMPLETE).is_file()
    with pytest.raises(DataError, match="is not whole yet"):
        open_source(f"{remote}out")
    assert last(apply_map(saved, source, f"{remote}out", memory=SMALL)) == helpers.COUNT
    assert not (tmp_path / "remote" / "out" / INCOMPLETE).exists()
    last(apply_map(saved, source, str(tmp_path / "one"), memory=SMALL))
    same_files(tmp_path / "one", tmp_path / "remote" / "out")


def test_what_is_no_parquet_is_refused_by_several_processes(saved, tmp_path: Path):
    source = helpers.build("npy", tmp_path / "in", helpers.make_rows())
    with pytest.raises(OptionError, match="only Parquet is written by several processes"):
        last(apply_map(saved, source, str(tmp_path / "out.npy"), engine=LocalEngine(2)))
    with pytest.raises(OptionError, match="--address: is of a Ray cluster"):
        choose_engine("local", address="127.0.0.1:6379")
    with pytest.raises(MissingError, match="its file system cannot be opened"):
        open_source("abfs://nowhere/rows.parquet")
    with pytest.raises(DataError, match="Protocol not known"):
        open_source("nonsense://nowhere/rows.parquet")


# -- Ray ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "hive"])
def test_ray_gives_the_rows_the_order_and_the_metadata_of_one_process(
    kind: str, cluster, saved, tmp_path: Path
):
    source = helpers.build(kind, tmp_path / "in", helpers.make_rows())
    ending = ".parquet" if kind == "parquet" else ""
    last(apply_map(saved, source, str(tmp_path / f"one{ending}"), memory=SMALL))
    steps = list(
        apply_map(
            saved, f"file://{source}", f"file://{tmp_path}/two{ending}", memory=SMALL, engine=RayEngine()
        )
    )
    assert len(steps) > 3
    assert steps[-1].done == helpers.COUNT
    same_files(tmp_path / f"one{ending}", tmp_path / f"two{ending}")
    assert not list(tmp_path.glob(".two*"))


@pytest.mark.slow
def test_a_worker_killed_half_way_through_a_part_costs_a_retry_and_no_row(cluster, saved, tmp_path: Path):
    rows = helpers.make_rows()
    source = helpers.build("folder", tmp_path / "in", rows)
    last(apply_map(saved, source, str(tmp_path / "one"), memory=SMALL))
    kill, victim, killed = signal.SIGKILL, rows[42], str(tmp_path / "killed")

    class Deadly(Ridge):  # travels by value
        def transform(self, X):  # noqa: N803
            import os

            if (victim == X).all(1).any() and not os.path.exists(killed):
                with open(killed, "w") as file:
                    file.write(str(os.getpid()))
                os.kill(os.getpid(), kill)
            return super().transform(X)

    deadly = load_map(saved.path)
    deadly.translator.__class__ = Deadly
    engine = RayEngine(jobs=2)
    assert last(apply_map(deadly, source, str(tmp_path / "two"), memory=SMALL, engine=engine)) == len(rows)
    pid = int(Path(killed).read_text())
    assert pid != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    same_files(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_a_row_that_cannot_be_translated_comes_back_as_one_sentence(cluster, saved, tmp_path: Path):
    rows = helpers.make_rows()
    rows[50] = np.nan
    source = helpers.build("parquet", tmp_path / "in", rows)
    with pytest.raises(DataError, match="hold NaN or infinity, the first is id 51"):
        last(apply_map(saved, source, str(tmp_path / "out.parquet"), engine=RayEngine()))
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.slow
def test_a_worker_that_cannot_write_is_one_sentence(cluster, saved, tmp_path: Path):
    """Such as a machine of the cluster that does not see the target's folder."""
    source = open_source(helpers.build("parquet", tmp_path / "in", helpers.make_rows()))
    sink = open_sink(str(tmp_path / "out.parquet"), source, Stamp("new"), width=5)
    parts = sink.missing()
    shutil.rmtree(tmp_path / ".out.parquet.partial")
    from transship.verbs.translate.apply import PartWork, translate_part

    work = PartWork(saved, source, sink.writer, 12)
    with pytest.raises(
        LaunchError, match=r"--engine ray: the work failed on a worker \(.*No such file"
    ) as error:
        list(RayEngine().run(translate_part, work, parts))
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_map_is_measured_and_texts_are_embedded_alike(
    cluster, minilm: Path, saved, tmp_path: Path, one_thread
):
    x = helpers.make_rows(200, 6, seed=3)
    y = x @ np.random.default_rng(1).normal(size=(6, 5)).astype(np.float32)
    old, new = (helpers.build("parquet", tmp_path / name, side) for name, side in (("old", x), ("new", y)))
    assert check_map(saved.path, old, new) == check_map(saved.path, old, new, engine=RayEngine())

    texts = [f"sentence number {number} about {'ships' if number % 2 else 'birds'}" for number in range(6)]
    pq.write_table(pa.table({"id": [f"t{n}" for n in range(6)], "text": texts}), tmp_path / "texts.parquet")
    for name, engine in (("one", LocalEngine()), ("two", RayEngine())):
        out = str(tmp_path / f"{name}.parquet")
        assert last(
            embed.embed_texts(str(minilm), f"file://{tmp_path}/texts.parquet", out, engine=engine)
        ) == len(texts)
    same_files(tmp_path / "one.parquet", tmp_path / "two.parquet")


@pytest.mark.slow
def test_the_command_joins_a_running_cluster(cluster, saved, remote: str, tmp_path: Path):
    source = helpers.build("folder", tmp_path / "remote" / "in", helpers.make_rows())
    last(apply_map(saved, source, str(tmp_path / "one")))
    address = cluster.get_runtime_context().gcs_address
    words = ["translate", "apply", saved.path, f"{remote}in/rows", f"{remote}out", "--json"]
    environment = {"FSSPEC_DIR_PATH": str(tmp_path / "remote"), "FSSPEC_DIR_TARGET_PROTOCOL": "file"}
    done = subprocess.run(
        [sys.executable, "-m", "transship", *words, "--engine", "ray", "--address", address],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == helpers.COUNT
    first, other = (pq.read_table(tmp_path / name) for name in ("one", "remote/out"))
    assert first.equals(other)
