"""What an output may be, and what `--force` may replace."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from transship.atomic import atomic_file, atomic_folder, check_target
from transship.errors import OutputError
from transship.targets import MARK, require_apart


def write(folder: Path, *names: str, force: bool = False) -> None:
    with atomic_folder(folder, force=force) as place:
        for name in names or ("a.txt",):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(name)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def special(kind: str, path: Path) -> None:
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(str(path))
    else:
        path.symlink_to(os.devnull)


@pytest.mark.parametrize("kind", ["FIFO", "socket", "device"])
@pytest.mark.parametrize("writer", [atomic_folder, atomic_file])
def test_what_is_no_file_and_no_folder_is_refused_also_with_force(
    kind: str, writer: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)  # a socket's name may not be long
    special(kind, Path("out"))
    for force in (False, True):
        with pytest.raises(OutputError, match=f"it is a {kind}"), writer("out", force=force):
            pytest.fail("the body must not run")
    assert names(tmp_path) == ["out"]


def test_force_replaces_what_transship_wrote_and_no_folder_that_somebody_added_to(tmp_path: Path):
    write(tmp_path / "m", "a.txt", "deep/b.txt")
    write(tmp_path / "m", "c.txt", force=True)
    assert names(tmp_path / "m") == [MARK, "c.txt"]
    (tmp_path / "m" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"it holds notes\.txt, which transship did not write"):
        check_target(tmp_path / "m", force=True)
    with pytest.raises(OutputError, match=r"notes\.txt"):
        write(tmp_path / "m", force=True)
    assert names(tmp_path / "m") == [MARK, "c.txt", "notes.txt"]


def test_a_file_that_somebody_adds_while_the_new_folder_is_written_is_kept(tmp_path: Path):
    write(tmp_path / "m")
    with pytest.raises(OutputError, match=r"notes\.txt"), atomic_folder(tmp_path / "m", force=True):
        (tmp_path / "m" / "notes.txt").write_text("mine")
    assert names(tmp_path / "m") == [MARK, "a.txt", "notes.txt"]
    assert names(tmp_path) == ["m"]


def test_a_folder_of_several_others_names_some_of_what_it_holds(tmp_path: Path):
    for number in range(6):
        (tmp_path / f"{number}.csv").write_text("x")
    with pytest.raises(OutputError, match=r"0\.csv, 1\.csv, 2\.csv and more"):
        check_target(tmp_path, force=True)


def test_a_plain_model_folder_and_an_empty_one_are_replaced(tmp_path: Path):
    model = tmp_path / "model"
    (model / "1_Pooling").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json", "vocab.txt"):
        (model / name).write_text("{}")
    (tmp_path / "empty" / "deep").mkdir(parents=True)
    for name in ("model", "empty"):
        write(tmp_path / name, force=True)
        assert names(tmp_path / name) == [MARK, "a.txt"]


@pytest.mark.parametrize(
    "more",
    [
        *("optimizer.pt", "notes.txt", "other/config.json", "run.py", ".cache/mine.json"),
        *("1_Pooling/diary.txt", "1_Pooling/deep/config.json"),
        *("vocab-of-my-thesis.docx", "notes-on-tokenizers.md", "LICENSE-keys.pem"),
    ],
)
def test_a_model_folder_with_other_files_is_kept(more: str, tmp_path: Path):
    (tmp_path / "m" / more).parent.mkdir(parents=True)
    (tmp_path / "m" / "config.json").write_text("{}")
    (tmp_path / "m" / more).write_text("mine")
    with pytest.raises(OutputError, match=more):
        check_target(tmp_path / "m", force=True)


def test_a_link_in_a_folder_is_somebodys(tmp_path: Path):
    write(tmp_path / "m")
    (tmp_path / "m" / "data").symlink_to(tmp_path)
    with pytest.raises(OutputError, match="it holds data, which"):
        check_target(tmp_path / "m", force=True)


def test_a_repository_below_is_somebodys(tmp_path: Path):
    write(tmp_path / "m")
    (tmp_path / "m" / "tool" / ".git").mkdir(parents=True)
    (tmp_path / "m" / "tool" / ".git" / "HEAD").write_text("ref")
    with pytest.raises(OutputError, match=r"tool/\.git/HEAD"):
        check_target(tmp_path / "m", force=True)


def test_an_entry_of_the_cache_is_replaced_whatever_lies_in_it(tmp_path: Path):
    (tmp_path / "entry").mkdir()
    (tmp_path / "entry" / "half").write_text("x")
    with atomic_folder(tmp_path / "entry", force=True, private=True) as place:
        (place / "whole").write_text("x")
    assert names(tmp_path / "entry") == ["whole"]


def test_what_is_read_is_never_written_over(tmp_path: Path):
    model, data = tmp_path / "models" / "a", tmp_path / "data.parquet"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    data.write_text("rows")
    (tmp_path / "link").symlink_to(model)
    inputs = {"SOURCE": model, "--data": data, "--column": "text", "--keep": None, "rows": [1, 2]}
    for out, relation in (
        (model, "is SOURCE"),
        (tmp_path / "link", "is SOURCE"),
        (model.parent, "holds SOURCE"),
        (model / "config.json", "is a file of SOURCE"),
        (data, "is --data"),
    ):
        with pytest.raises(OutputError, match=f"it {relation} "):
            check_target(out, force=True, reads=inputs)
    require_apart(tmp_path / "models" / "b", inputs)
