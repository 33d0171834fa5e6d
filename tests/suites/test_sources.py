from __future__ import annotations

from pathlib import Path

from transship.suites.runner import sources
from transship.suites.runner.sources import code_fingerprint, suite_fingerprint


def one(x: int) -> int:
    """Return x."""
    return x


SAME = """
def one(x: int) -> int:
    # for a reason
    return (x)
"""
OTHER = """
def one(x: int) -> int:
    return x + 1
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_comments_docstrings_and_layout_do_not_count(tmp_path: Path):
    commented = suite_fingerprint(write(tmp_path / "a.py", '"""Text."""\n' + SAME))
    assert commented == suite_fingerprint(write(tmp_path / "b.py", SAME.replace("    # for a reason\n", "")))
    assert commented != suite_fingerprint(write(tmp_path / "c.py", OTHER))


def test_functions_are_told_apart_by_what_they_do():
    def two(x: int) -> int:
        return x

    assert code_fingerprint(one) == code_fingerprint(one)
    assert code_fingerprint(one) != code_fingerprint(two)
    assert code_fingerprint(one, two) != code_fingerprint(two, one)


def package(root: Path, monkeypatch) -> Path:
    """Write a package with two rooms, one importing the other, and a room that nothing imports."""
    write(root / "__init__.py", "")
    write(root / "errors.py", "x = 1")
    write(root / "lower" / "__init__.py", "y = 1")
    write(root / "upper" / "__init__.py", "def f():\n    from transship.lower import y\n    return y")
    write(root / "aside" / "__init__.py", "z = 1")
    write(root / "verbs" / "merge" / "__init__.py", "")
    write(root / "verbs" / "merge" / "methods" / "one.py", "w = 1")
    write(root / "suites" / "runner" / "__init__.py", "from transship.aside import z")
    monkeypatch.setattr(sources, "PACKAGE", root)
    return root


def test_a_change_counts_in_every_room_that_is_imported_and_in_no_other(tmp_path: Path, monkeypatch):
    root = package(tmp_path / "transship", monkeypatch)
    suite = write(
        tmp_path / "suite.py",
        "from transship.suites.runner import Suite\ndef run():\n    from transship.upper import f",
    )
    before = suite_fingerprint(suite)
    write(root / "aside" / "__init__.py", "z = 2")
    write(root / "suites" / "runner" / "__init__.py", "")
    assert suite_fingerprint(suite) == before
    write(root / "lower" / "__init__.py", "y = 2")
    assert suite_fingerprint(suite) != before


def test_a_verb_counts_with_the_methods_it_finds_by_listing(tmp_path: Path, monkeypatch):
    root = package(tmp_path / "transship", monkeypatch)
    suite = write(tmp_path / "suite.py", "from transship.verbs.merge import run")
    before = suite_fingerprint(suite)
    write(root / "verbs" / "merge" / "methods" / "two.py", "w = 2")
    assert suite_fingerprint(suite) != before


def test_importing_the_whole_package_counts_every_room(tmp_path: Path, monkeypatch):
    root = package(tmp_path / "transship", monkeypatch)
    for line in ("import transship as ts", "from transship import compare"):
        suite = write(tmp_path / "suite.py", line)
        before = suite_fingerprint(suite)
        write(root / "aside" / "__init__.py", f"z = {line!r}")
        assert suite_fingerprint(suite) != before
