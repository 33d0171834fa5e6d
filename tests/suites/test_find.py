from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from transship.errors import OptionError
from transship_suites import load_suite, suite_names


def test_a_file_is_a_suite_and_a_folder_is_not(tmp_path: Path):
    for name in ("two_words.py", "one.py", "_hidden.py", "__init__.py", "notes.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "shared").mkdir()
    assert suite_names(tmp_path) == ("one", "two-words")


def test_ours_are_found_without_importing_them():
    code = (
        "import sys; from transship_suites import suite_names; names = suite_names(); assert names\n"
        "files = ['transship_suites.' + name.replace('-', '_') for name in names]\n"
        "print([file for file in files if file in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_declaring_imports_no_heavy_library():
    code = (
        "import sys; from transship_suites import load_suite, suite_names\n"
        "for name in suite_names(): load_suite(name)\n"
        "print(sorted({'torch', 'transformers', 'sklearn', 'scipy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_suite_of_another_folder_knows_its_name_and_file(toy):
    folder = toy()
    suite = load_suite("toy-suite", folder)
    assert (suite.name, suite.file) == ("toy-suite", folder / "toy_suite.py")


def test_an_unknown_name_gets_the_nearest_one(toy):
    with pytest.raises(OptionError, match=r"no suite 'toy-siute'; did you mean 'toy-suite'\?"):
        load_suite("toy-siute", toy())


def test_a_file_that_declares_nothing_is_named(tmp_path: Path):
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(OptionError, match=r"empty\.py: the file declares no suite; write `suite = Suite"):
        load_suite("empty", tmp_path)


def test_an_edit_within_the_same_second_is_seen(toy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    folder = toy()
    file, time = folder / "toy_suite.py", 1_700_000_000
    os.utime(file, (time, time))
    first = load_suite("toy-suite", folder)
    file.write_text(file.read_text().replace("Adds one.", "Adds two."))  # of the same length
    os.utime(file, (time, time))
    assert (first.summary, load_suite("toy-suite", folder).summary) == ("Adds one.", "Adds two.")
