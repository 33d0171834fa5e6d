"""Rooms have doors: public names are imported when they are used, and are what the modules call so."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import transship
from transship.doors import read_door

DOORS = [
    "transship",
    *(
        module.name
        for module in pkgutil.walk_packages(transship.__path__, "transship.")
        if module.ispkg
        and "= door(" in Path(transship.__path__[0], *module.name.split(".")[1:], "__init__.py").read_text()
    ),
]


@pytest.mark.parametrize("name", DOORS)
def test_every_name_of_a_door_is_there_whatever_was_imported_before(name: str):
    room = importlib.import_module(name)
    homes = read_door(Path(str(room.__file__)))
    assert set(room.__all__) - {"__version__"} == set(homes)
    assert set(homes) <= set(dir(room))
    modules = {module.name for module in pkgutil.iter_modules(room.__path__)}
    hidden = {public for public, home in homes.items() if public in modules and home != name}
    assert not hidden, "a module of this name would stand in the way of the public name"
    for public, home in homes.items():
        if public != "RayEngine":  # of an extra
            assert isinstance(getattr(room, public), ModuleType) == (home == name)


def test_a_name_that_is_not_there_is_refused():
    with pytest.raises(AttributeError, match=r"module 'transship\.report' has no attribute 'nothing'"):
        _ = transship.report.nothing


def test_a_room_imports_nothing_heavy_until_a_name_is_used():
    code = (
        "import sys; from transship import checkpoints, report, verbs; "
        "from transship.verbs import adapt, translate; "
        "print(sorted({'numpy', 'torch', 'transformers', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
