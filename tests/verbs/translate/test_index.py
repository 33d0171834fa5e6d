"""Rows that have moved to the new model, in a folder that several processes write."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from transship.verbs.translate.stores.index import FolderRows

ROWS = np.arange(60, dtype=np.float32).reshape(20, 3)


def test_two_writers_of_one_folder_take_turns_and_lose_no_row(tmp_path: Path):
    first, second = (FolderRows(tmp_path / "new", "model") for _ in range(2))
    for number in range(20):
        (first, second)[number % 2].add([f"row {number}"], ROWS[number : number + 1])
    for rows in (FolderRows(tmp_path / "new"), second):
        names = [f"row {number}" for number in range(20)]
        np.testing.assert_array_equal(rows.many(names), ROWS)


def test_a_kill_between_the_first_vector_and_its_id_leaves_a_folder_that_opens(tmp_path: Path):
    rows = FolderRows(tmp_path / "new", "model")
    rows.add(["a"], ROWS[:1])
    rows.ids.unlink()
    opened = FolderRows(tmp_path / "new", "model")
    assert len(opened) == 0
    opened.add(["b"], ROWS[1:2])
    np.testing.assert_array_equal(FolderRows(tmp_path / "new").many(["b"]), ROWS[1:2])


def test_what_a_full_disk_left_of_a_row_does_not_shift_the_next(tmp_path: Path):
    rows = FolderRows(tmp_path / "new", "model")
    rows.add(["a"], ROWS[:1])
    with rows.vectors.open("ab") as file:  # half a vector, and no id: the disk was full
        file.write(b"12345")
    rows.add(["b"], ROWS[1:2])
    for opened in (rows, FolderRows(tmp_path / "new")):
        np.testing.assert_array_equal(opened.many(["a", "b"]), ROWS[:2])
