from __future__ import annotations

from pathlib import Path

from transship_suites.runner import sources
from transship_suites.runner.sources import code_fingerprint, suite_fingerprint


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


def packages(root: Path, monkeypatch) -> Path:
    """Write a library with two rooms, one importing the other, a room nothing imports, and the suites."""
    library = root / "transship"
    write(library / "__init__.py", "")
    write(library / "errors.py", "x = 1")
    write(library / "lower" / "__init__.py", "y = 1")
    write(library / "upper" / "__init__.py", "def f():\n    from transship.lower import y\n    return y")
    write(library / "aside" / "__init__.py", "z = 1")
    write(library / "verbs" / "merge" / "__init__.py", "")
    write(library / "verbs" / "merge" / "methods" / "one.py", "w = 1")
    write(root / "transship_suites" / "runner" / "__init__.py", "from transship.aside import z")
    write(root / "transship_suites" / "shared" / "__init__.py", "v = 1")
    monkeypatch.setattr(sources, "SOURCES", root)
    return root


def test_a_change_counts_in_every_room_that_is_imported_and_in_no_other(tmp_path: Path, monkeypatch):
    root = packages(tmp_path, monkeypatch)
    suite = write(
        tmp_path / "suite.py",
        "from transship_suites.runner import Suite\ndef run():\n    from transship.upper import f",
    )
    before = suite_fingerprint(suite)
    write(root / "transship" / "aside" / "__init__.py", "z = 2")
    write(root / "transship_suites" / "runner" / "__init__.py", "")
    assert suite_fingerprint(suite) == before
    write(root / "transship" / "lower" / "__init__.py", "y = 2")
    assert suite_fingerprint(suite) != before


def test_a_room_that_suites_share_counts_for_those_that_import_it(tmp_path: Path, monkeypatch):
    root = packages(tmp_path, monkeypatch)
    suite = write(tmp_path / "suite.py", "from transship_suites.shared import v")
    other = write(tmp_path / "other.py", "from transship_suites.runner import Suite")
    before, before_other = suite_fingerprint(suite), suite_fingerprint(other)
    write(root / "transship_suites" / "shared" / "__init__.py", "v = 2")
    assert suite_fingerprint(suite) != before
    assert suite_fingerprint(other) == before_other


def test_what_measures_elsewhere_counts_like_an_import(tmp_path: Path, monkeypatch):
    root = packages(tmp_path, monkeypatch)
    suite = write(tmp_path / "suite.py", 'run = MeasuredBy("transship_suites.shared.small:measured")')
    before = suite_fingerprint(suite)
    write(root / "transship_suites" / "shared" / "__init__.py", "v = 2")
    assert suite_fingerprint(suite) != before


def test_a_verb_counts_with_the_methods_it_finds_by_listing(tmp_path: Path, monkeypatch):
    root = packages(tmp_path, monkeypatch)
    suite = write(tmp_path / "suite.py", "from transship.verbs.merge import run")
    before = suite_fingerprint(suite)
    write(root / "transship" / "verbs" / "merge" / "methods" / "two.py", "w = 2")
    assert suite_fingerprint(suite) != before


def test_importing_the_whole_package_counts_every_room(tmp_path: Path, monkeypatch):
    root = packages(tmp_path, monkeypatch)
    for line in ("import transship as ts", "from transship import compare"):
        suite = write(tmp_path / "suite.py", line)
        before = suite_fingerprint(suite)
        write(root / "transship" / "aside" / "__init__.py", f"z = {line!r}")
        assert suite_fingerprint(suite) != before


def test_a_table_beside_a_module_counts_and_a_papers_printed_figures_do_not(tmp_path: Path, monkeypatch):
    root = packages(tmp_path, monkeypatch)
    write(root / "transship_suites" / "materials" / "__init__.py", "")
    write(root / "transship_suites" / "materials" / "sets.py", "u = 1")
    lines = "from transship_suites.materials.sets import u\nfrom transship_suites.shared import v"
    suite = write(tmp_path / "suite.py", lines)
    before = suite_fingerprint(suite)
    write(root / "transship_suites" / "shared" / "paper.toml", "accuracy = 0.9")
    assert suite_fingerprint(suite) == before
    write(root / "transship_suites" / "materials" / "sets.toml", "title = 'a set'")
    assert suite_fingerprint(suite) != before
