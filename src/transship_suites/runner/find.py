"""Finds suites: a file is a suite, its name is the file's name, and nothing else lists it."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from transship.errors import OptionError
from transship.registry import unknown
from transship_suites.runner.declaration import Suite

HOME = Path(__file__).parent.parent


def suite_names(folder: Path | None = None) -> tuple[str, ...]:
    """Return the names of the suites in `folder` (ours by default), sorted, without importing any."""
    found = (folder or HOME).glob("[a-z]*.py")
    return tuple(sorted(file.stem.replace("_", "-") for file in found))


def load_suite(name: str, folder: Path | None = None) -> Suite:
    """Import the file of the suite `name` and return what it declares as `suite`."""
    known = suite_names(folder)
    if name not in known:
        raise unknown(name, known, kind="suite", where="bench")
    file = (folder or HOME) / f"{name.replace('-', '_')}.py"
    declared = getattr(_import(file, ours=folder is None or folder == HOME), "suite", None)
    if not isinstance(declared, Suite):
        raise OptionError(
            "the file declares no suite", where=str(file), fix="write `suite = Suite(…)` at its top level"
        )
    return dataclasses.replace(declared, name=name, file=file)


class _FromSource(SourceFileLoader):
    """Runs the text that is fingerprinted: cached bytecode may be that of an edit in the same second."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the file's code, compiled anew."""
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _import(file: Path, *, ours: bool) -> ModuleType:
    if ours:
        return importlib.import_module(f"transship_suites.{file.stem}")
    # a name of its own per folder, so that two folders may have a suite of the same name
    home = hashlib.sha256(str(file.resolve().parent).encode()).hexdigest()[:12]
    name = f"transship_suite_{home}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file, loader=_FromSource(name, str(file)))
    assert spec is not None, "a .py file always has a loader"
    assert spec.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception:
        del sys.modules[spec.name]
        raise
    return module
