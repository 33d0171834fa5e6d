"""Old or new, never a mix: under kills at random moments, kills at every step, and two writers at once."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from transship import atomic
from transship.atomic import (
    atomic_file,
    atomic_files,
    atomic_folder,
    check_target,
    recover,
    remove,
    write_json,
    write_text,
)
from transship.errors import OutputError
from transship.locks import locked
from transship.targets import MARK


def write(folder: Path, text: str, **options: bool) -> None:
    with atomic_folder(folder, **options) as place:
        (place / "a.txt").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_appears_when_all_is_written(tmp_path: Path):
    with atomic_folder(tmp_path / "deep" / "new") as place:
        (place / "a.txt").write_text("x")
        assert not (tmp_path / "deep" / "new").exists()
        assert place.is_relative_to(tmp_path / "deep"), "on the disk that the folder will be on"
    assert (tmp_path / "deep" / "new" / "a.txt").read_text() == "x"
    assert names(tmp_path / "deep") == ["new"]


def test_nothing_is_overwritten_without_force(tmp_path: Path):
    write(tmp_path / "m", "old")
    with pytest.raises(OutputError, match="exists already; pass --force"):
        write(tmp_path / "m", "new")
    with pytest.raises(OutputError, match="exists already"), atomic_file(tmp_path / "m" / "a.txt"):
        pytest.fail("the body must not run")
    assert (tmp_path / "m" / "a.txt").read_text() == "old"


@pytest.mark.parametrize("exchange", [True, False])
def test_force_replaces_the_whole_folder(exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if not exchange:
        monkeypatch.setattr(atomic, "_renameat2", lambda *_: False)
    with atomic_folder(tmp_path / "m") as place:
        (place / "a.txt").write_text("old")
        (place / "more.txt").write_text("only in the old one")
    write(tmp_path / "m", "new", force=True)
    assert names(tmp_path / "m") == [MARK, "a.txt"]
    assert (tmp_path / "m" / "a.txt").read_text() == "new"
    assert names(tmp_path) == ["m"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_body_leaves_no_trace(error: type[BaseException], tmp_path: Path):
    write(tmp_path / "m", "old")

    def stop(draft: Path) -> None:
        draft.write_text("half")
        raise error

    with pytest.raises(error), atomic_folder(tmp_path / "m", force=True) as place:
        stop(place / "a.txt")
    with pytest.raises(error), atomic_file(tmp_path / "f", force=True) as draft:
        stop(draft)
    assert names(tmp_path) == ["m"]
    assert (tmp_path / "m" / "a.txt").read_text() == "old"


def test_text_and_json_appear_whole_and_replace_only_with_force(tmp_path: Path):
    write_text(tmp_path / "a.txt", "Größe\n")
    assert (tmp_path / "a.txt").read_bytes() == "Größe\n".encode()
    with pytest.raises(OutputError, match="exists already"):
        write_json(tmp_path / "a.txt", {"a": 1})
    assert write_json(tmp_path / "a.txt", {"a": "ü"}, force=True) == tmp_path / "a.txt"
    assert json.loads((tmp_path / "a.txt").read_text(encoding="utf-8")) == {"a": "ü"}
    assert names(tmp_path) == ["a.txt"]


def test_a_target_that_is_held_is_refused_and_free_again_afterwards(tmp_path: Path):
    with locked(tmp_path / "m"), pytest.raises(OutputError, match="another process"), locked(tmp_path / "m"):
        pytest.fail("the body must not run")
    with locked(tmp_path / "m"):
        pass
    assert names(tmp_path) == []


@pytest.mark.parametrize("next_writer", ["command", "library"])
def test_a_lock_of_a_killed_process_holds_nobody(next_writer: str, tmp_path: Path):
    script = (
        "import os, signal, sys\nfrom transship.locks import locked\n"
        "with locked(sys.argv[1]):\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "m")], check=False)
    assert done.returncode == -9
    assert names(tmp_path) == [".m.transship.lock"]
    if next_writer == "command":
        with locked(tmp_path / "m"):
            write(tmp_path / "m", "x")
    else:
        write(tmp_path / "m", "x")
    assert names(tmp_path) == ["m"]


def test_a_lock_of_a_living_process_stays(tmp_path: Path):
    with locked(tmp_path / "m"):
        write(tmp_path / "m", "x")
        assert names(tmp_path) == [".m.transship.lock", "m"]
    assert names(tmp_path) == ["m"]


def test_it_imports_where_there_is_no_fcntl():
    script = (
        "import sys\nsys.modules['fcntl'] = None\n"
        "import transship.atomic, transship.checkpoints, transship.data, transship.report"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_files_appear_whole(tmp_path: Path):
    for text, force in (("one", False), ("two", True)):
        with atomic_file(tmp_path / "r.html", force=force) as draft:
            draft.write_text(text)
        assert (tmp_path / "r.html").read_text() == text
    assert names(tmp_path) == ["r.html"]


def test_a_target_made_meanwhile_is_kept(tmp_path: Path):
    with pytest.raises(OutputError, match="meanwhile"), atomic_folder(tmp_path / "m"):
        write(tmp_path / "m", "theirs")
    assert (tmp_path / "m" / "a.txt").read_text() == "theirs"
    assert names(tmp_path) == ["m"]


def test_a_symbolic_link_is_followed_and_kept(tmp_path: Path):
    write(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write(tmp_path / "link", "new", force=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "a.txt").read_text() == "new"


def test_precious_folders_are_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "work" / "inside").mkdir(parents=True)
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "work" / "inside")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for target in (
        tmp_path / "work",
        tmp_path / "work" / "inside",
        tmp_path / "home",
        tmp_path / "repository",
    ):
        with pytest.raises(OutputError, match="never replaced"):
            check_target(target, force=True)


def test_the_kind_of_the_target_is_checked(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="is a file"):
        write(tmp_path / "file", "x", force=True)
    with pytest.raises(OutputError, match="is a folder"), atomic_file(tmp_path, force=True):
        pytest.fail("the body must not run")
    with pytest.raises(OutputError):
        write(tmp_path / "file" / "below", "x")


def test_a_full_disk_is_noticed_first(tmp_path: Path):
    with (
        pytest.raises(OutputError, match=r"it needs .* TB"),
        atomic_folder(tmp_path / "m", needs=10**18),
    ):
        pytest.fail("the body must not run")
    assert names(tmp_path) == []


def test_leftovers_of_the_dead_go_and_work_of_the_living_stays(tmp_path: Path):
    (tmp_path / ".m.transship-dead").mkdir()
    (tmp_path / ".m.transship-dead" / "half").write_text("x")
    (tmp_path / ".other.transship-dead").mkdir()
    with atomic_folder(tmp_path / "m") as living:
        (living / "a.txt").write_text("first")
        write(tmp_path / "m2", "x")
        with atomic_folder(tmp_path / "m") as second:
            assert living.is_dir()
            (second / "a.txt").write_text("second")
        (tmp_path / "m").rename(tmp_path / "moved")
    assert names(tmp_path) == [".other.transship-dead", "m", "m2", "moved"]


def commit_by_halves(target: Path) -> None:
    """Be killed when the first of the new files is in place, and the others are not."""
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom transship.atomic import atomic_files\n"
        "def kill(event, arguments):\n"
        "    if event == 'os.rename' and str(arguments[1]).endswith('v.ids.npy'):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "target = Path(sys.argv[1])\n"
        "with atomic_files(target, 'v.ids.npy', 'v.json', force=True) as place:\n"
        "    for name in ('a.npy', 'v.ids.npy', 'v.json'):\n"
        "        (place / name).write_text('new')\n"
        "    (place / 'a.npy').rename(place / target.name)\n"
        "    sys.addaudithook(kill)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(target)], check=False)
    assert done.returncode == -9


def test_files_that_belong_together_are_all_new_after_a_kill_between_two_renames(tmp_path: Path):
    names_of = ("v.npy", "v.ids.npy", "v.json")
    for name in names_of:
        (tmp_path / name).write_text("old")
    commit_by_halves(tmp_path / "v.npy")
    assert recover(tmp_path / "v.npy")
    assert {name: (tmp_path / name).read_text() for name in names_of} == dict.fromkeys(names_of, "new")
    assert names(tmp_path) == sorted(names_of)


def test_files_that_belong_together_leave_no_old_one_behind(tmp_path: Path):
    for name in ("v.npy", "v.ids.npy", "other"):
        (tmp_path / name).write_text("old")
    with atomic_files(tmp_path / "v.npy", "v.ids.npy", force=True) as place:
        (place / "v.npy").write_text("new")
    assert names(tmp_path) == ["other", "v.npy"]
    with pytest.raises(OutputError, match="exists already"), atomic_files(tmp_path / "w.npy", "other"):
        pytest.fail("the body must not run")


@pytest.mark.parametrize("name", ["ü" * 120, "*[a]?", "-rf", "a b"])
def test_odd_names_work(name: str, tmp_path: Path):
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        pytest.skip("this locale has no such names")
    write(tmp_path / name, "old")
    write(tmp_path / name, "new", force=True)
    assert (tmp_path / name / "a.txt").read_text() == "new"


# run in a process of its own, on numpy alone, so that forking is cheap and safe; children are killed
COMMON = """
import json, os, random, shutil, signal, sys, time
from pathlib import Path
import numpy as np
if sys.argv[2:] == ["windows"]:  # no fcntl, no exchange of folders, no folder that can be opened
    sys.modules["fcntl"] = None
from transship import atomic, locks
if sys.argv[2:] == ["windows"]:
    import types
    atomic.sys = locks.sys = types.SimpleNamespace(platform="win32")
from transship.checkpoints import open, write_checkpoint

target = Path(sys.argv[1])

def write(version, force=True):
    value = np.full((64, 64), version, np.float32)
    tensors = [(f"layer.{n}.weight", (64, 64), "float32", lambda: value) for n in range(12)]
    write_checkpoint(target, tensors, config={"version": version}, max_shard_size=70_000, force=force,
                     sync=False, files={"transship.json": json.dumps({"version": version})})

def read():
    checkpoint = open(target)
    versions = {int(value) for name in checkpoint.tensors for value in np.unique(checkpoint.read(name))}
    versions |= {checkpoint.config["version"], json.loads((target / "transship.json").read_text())["version"]}
    assert len(versions) == 1, f"a mix of {versions}"
    assert len(checkpoint.tensors) == 12 and len(list(target.iterdir())) == 7
    return versions.pop()

def child(work):
    process = os.fork()
    if process == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return process
"""

KILL_AT_RANDOM = (
    COMMON
    + """
random.seed(0)
start = time.perf_counter()
write(0, force=False)
window = 2 * (time.perf_counter() - start)
version = 0
for attempt in range(1, 51):
    fresh = attempt % 3 == 0
    if fresh:  # without an existing target
        shutil.rmtree(target)
    process = child(lambda: write(attempt))
    time.sleep(random.random() * window)
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    found = None if fresh and not target.exists() else read()
    assert found in (None if fresh else version, attempt), (attempt, found, version)
    print("new" if found == attempt else "old", os.WIFSIGNALED(status))
    window *= 0.8 if found == attempt else 1.25  # a busy machine is slower than the first write was
    if found is None:
        write(attempt)
    version = read()
write(99)
assert read() == 99
print("left", sorted(path.name for path in target.parent.iterdir()))
"""
)

# audit events tell of every rename, removal, lock and new folder that Python makes; renameat2 is a C call
KILL_AT_EVERY_STEP = (
    COMMON
    + """
exchange, rename = sys.argv[2] == "exchange", atomic._renameat2

def count(event, arguments):
    global steps
    if event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "fcntl.flock"):
        steps += 1
        if steps == deadly:
            os.kill(os.getpid(), signal.SIGKILL)

def renameat2(*arguments):
    if not exchange:
        return False
    count("os.rename", ())
    result = rename(*arguments)
    count("os.rename", ())
    return result

def replace():
    global steps
    steps = 0
    sys.addaudithook(count)
    write(2)

atomic._renameat2, seen, deadly = renameat2, [], 0
status = -1
while status != 0:
    deadly, steps = deadly + 1, -1000
    shutil.rmtree(target, ignore_errors=True)
    write(1)
    _, status = os.waitpid(child(replace), 0)
    assert status in (0, 9), status
    absent = not target.exists()
    seen.append((read(), absent))
assert seen[-1] == (2, False)
write(3)
print(json.dumps(seen))
print(sorted(path.name for path in target.parent.iterdir()))
"""
)


def python(script: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()


def test_a_writer_killed_at_50_random_moments_leaves_old_or_new(tmp_path: Path):
    *lines, left = python(KILL_AT_RANDOM, str(tmp_path / "model"))
    assert len(lines) == 50
    assert lines.count("old True") >= 5, "some kills came before the end"
    assert any(line.startswith("new") for line in lines), "some kills came after it"
    assert left == "left ['model']", "leftovers of the dead are removed"


@pytest.mark.parametrize("way", ["exchange", "renames", "windows"])
def test_a_kill_at_every_single_step_leaves_old_or_new(way: str, tmp_path: Path):
    seen, left = python(KILL_AT_EVERY_STEP, str(tmp_path / "model"), way)
    versions = [version for version, _ in json.loads(seen)]
    assert len(versions) > 8
    assert versions == sorted(versions), "once the new folder is there, it stays"
    assert set(versions) == {1, 2}
    absent = [was_absent for _, was_absent in json.loads(seen)]
    assert any(absent) == (way != "exchange"), (
        "only two renames can part, and opening puts the old folder back"
    )
    assert left == "['model']"


def test_a_place_that_takes_no_files_is_refused_though_its_rights_allow_them(tmp_path: Path, monkeypatch):
    """Rights say little on a pseudo file system, or to root on a share: a folder that can be made does."""

    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    check_target(tmp_path / "out")
    assert names(tmp_path) == []
    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(OutputError, match="cannot be written to; choose another place"):
        check_target(tmp_path / "out")


class Interrupted:
    """Raises at the n-th rename, as Ctrl-C or a broken disk does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, error: BaseException) -> None:
        self.left = at
        for name in ("rename", "replace"):
            monkeypatch.setattr(Path, name, self._after(getattr(Path, name), error))

    def _after(self, real: Any, error: BaseException) -> Any:
        def renamed(path: Path, to: Path) -> Path:
            self.left -= 1
            if self.left == 0:
                raise error
            return real(path, to)

        return renamed


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(5, "Input/output error")])
@pytest.mark.parametrize("at", range(1, 6))
def test_files_that_belong_together_are_never_mixed_by_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, error: BaseException
):
    together = ("rows", "rows.ids", "rows.json")
    for name in together:
        (tmp_path / name).write_text("old")
    with monkeypatch.context() as patch:
        Interrupted(patch, at, error)
        with (
            contextlib.suppress(KeyboardInterrupt, OutputError),
            atomic_files(tmp_path / "rows", *together[1:], force=True) as draft,
        ):
            for name in together:
                (draft / name).write_text("new")
    recover(tmp_path / "rows")
    assert len({(tmp_path / name).read_text() for name in together}) == 1
    assert names(tmp_path) == sorted(together)


@pytest.mark.parametrize("at", range(1, 4))
def test_a_folder_is_not_lost_by_ctrl_c_where_nothing_can_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
):
    with atomic_folder(tmp_path / "out") as draft:
        (draft / "file").write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr("transship.atomic._renameat2", lambda *_: False)
        Interrupted(patch, at, KeyboardInterrupt())
        with contextlib.suppress(KeyboardInterrupt), atomic_folder(tmp_path / "out", force=True) as draft:
            (draft / "file").write_text("new")
    assert (tmp_path / "out" / "file").read_text() in ("old", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_removing_a_file_takes_the_drafts_of_dead_processes_along(tmp_path: Path):
    (tmp_path / "note.json").write_text("{}")
    left = tmp_path / ".note.json.transship-0123456789ab"
    left.mkdir()
    (left / "note.json").write_text("{")
    remove(tmp_path / "note.json")
    assert list(tmp_path.iterdir()) == []


def test_who_reads_removes_what_a_dead_process_left_beside_a_whole_target(tmp_path: Path):
    write(tmp_path / "out", "whole")
    left = tmp_path / ".out.transship-0123456789ab"
    (left / "old").mkdir(parents=True)
    assert not recover(tmp_path / "out")
    assert names(tmp_path) == ["out"]


def test_the_hidden_folder_of_a_file_within_is_no_part_of_a_folder(tmp_path: Path):
    with atomic_folder(tmp_path / "out") as place:
        write_json(place / "state" / "about.json", {})
        (place / "state" / ".numbers.transship-0123456789ab").mkdir()
    assert names(tmp_path / "out" / "state") == ["about.json"]
