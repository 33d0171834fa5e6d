"""What fuzzing ever found stays mended: every file of the corpus is read, or refused in one sentence."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from transship.errors import TransshipError
from transship.outside import unpacking_at_most

HERE = Path(__file__).parent


def script(name: str) -> ModuleType:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


script("mutations")
script("pages")
TARGETS = script("targets").TARGETS


@pytest.mark.parametrize("name", sorted(set(TARGETS) - {"page"}))  # test_page.py has a browser
def test_what_was_ever_found_is_read_or_refused(name: str, tmp_path: Path):
    target = TARGETS[name]
    valid = target.make(tmp_path)
    kept = [file.read_bytes() for file in sorted((HERE / "corpus" / name).glob("*"))]
    for data in [*kept, b"", b"\0" * 9, *valid]:
        with unpacking_at_most(10**9), contextlib.suppress(TransshipError):
            target.read(data, tmp_path)
    target.read(valid[0], tmp_path)  # a valid file is no finding


def test_every_kept_file_belongs_to_a_parser():
    assert {folder.name for folder in (HERE / "corpus").iterdir()} <= set(TARGETS)
