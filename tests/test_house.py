"""The house keeps its shape: no cycles, nothing long, names that say something, dependencies declared."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("house", ROOT / "tests/house.py")
assert _spec is not None
assert _spec.loader is not None
house = importlib.util.module_from_spec(_spec)
sys.modules["house"] = house
_spec.loader.exec_module(house)

# packages that come by another name than they are imported by, or through another that is declared
NAMES = {
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
    "faiss": "faiss-cpu",
    "neuralop": "neuraloperator",
}

# a verb's settings are its Settings, and `linear` is a method's name in two verbs
SHARED = {"Linear", "Settings"}


@pytest.fixture(scope="module")
def sources() -> house.House:
    return house.read()


def joined(*graphs: dict[str, set[str]]) -> dict[str, set[str]]:
    names = {name for graph in graphs for name in graph}
    names |= {target for graph in graphs for targets in graph.values() for target in targets}
    return {name: set().union(*(graph.get(name, set()) for graph in graphs)) for name in names}


# Numbers that may only fall: lower one in the commit that makes it possible.


def test_no_module_imports_itself_through_others(sources: house.House):
    assert house.cycles(sources.above) == []


def test_imports_inside_functions_make_no_cycle_either(sources: house.House):
    assert house.cycles(joined(sources.above, sources.inside)) == []


def test_imports_for_type_checkers_make_no_cycle_either(sources: house.House):
    assert house.cycles(joined(sources.above, sources.inside, sources.typing)) == []


def test_imports_inside_functions_are_few_and_say_why(sources: house.House):
    assert sum(map(len, sources.inside.values())) <= 30
    assert sources.unexplained == []


@pytest.mark.parametrize("folder", ["src", "tests", "scripts", "benchmarks"])
def test_locals_say_what_they_hold(folder: str):
    vague = house.read(ROOT / folder).vague
    assert sum(vague.values()) <= 2, vague


def test_functions_are_short(sources: house.House):
    assert len(sources.long_functions) <= 7, sorted(sources.long_functions)


def test_files_are_short(sources: house.House):
    assert {module: lines for module, lines in sources.lines.items() if lines > 400} == {}


def test_the_library_is_no_larger_than_it_was(sources: house.House):
    suites = sum(lines for name, lines in sources.lines.items() if name.startswith("transship_suites"))
    assert len(sources.lines) <= 401
    assert sum(sources.lines.values()) - suites <= 57_700
    assert suites <= 12_720


def test_a_class_of_the_library_has_a_name_of_its_own(sources: house.House):
    """Only what means the same in two verbs, or in the library and a suite, may share its name."""
    shared = {
        name: [module for module in modules if not module.startswith("transship_suites")]
        for name, modules in sources.classes.items()
    }
    assert {name for name, modules in shared.items() if len(modules) > 1} <= SHARED


def test_the_library_knows_no_suite(sources: house.House):
    allowed = {"transship.cli.bench", "transship.cli.demo"}
    graph = joined(sources.above, sources.inside)
    importers = {
        name for name, targets in graph.items() if any(to.startswith("transship_suites") for to in targets)
    }
    assert {name for name in importers if not name.startswith("transship_suites")} <= allowed


def distribution(package: str) -> str:
    return NAMES.get(package, package).replace("_", "-").lower()


def declared() -> dict[str, set[str]]:
    """Return extra → the distributions that it declares; the base under an empty name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        extra: {re.split(r"[\[<>=!~; ]", line)[0].replace("_", "-").lower() for line in lines}
        for extra, lines in groups.items()
    }


def imported(graph: dict[str, set[str]]) -> set[str]:
    packages = {package for names in graph.values() for package in names if package}
    ours = {"transship", "transship_suites", "__future__"}
    return {distribution(package) for package in packages - sys.stdlib_module_names - ours}


def test_what_the_sources_import_is_declared_and_what_is_declared_is_imported(sources: house.House):
    base = declared()[""]
    extras = set().union(*(names for extra, names in declared().items() if extra not in ("", "dev", "docs")))
    assert imported(sources.others) - base == set(), "a module's own imports are there after a plain install"
    assert imported(sources.others_inside) - base - extras == set(), "in a function an extra may be imported"
    assert base | extras == imported(sources.others) | imported(sources.others_inside)


def test_the_command_is_the_only_one():
    scripts = metadata.distribution("transship").entry_points
    assert [point.value for point in scripts if point.group == "console_scripts"] == ["transship.cli:main"]
