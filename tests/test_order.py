"""The order of the tests: drawn anew in every run, the same for the same seed, and files stay together."""

import importlib.util
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

TESTS = Path(__file__).parent
FILES = {Path(name): tests for name, tests in {"a.py": 5, "b.py": 4, "c.py": 3, "d.py": 2}.items()}


@dataclass
class Item:
    """What the plugin reads of a test."""

    path: Path
    number: int = 0
    marks: list[str] = field(default_factory=list)

    def get_closest_marker(self, name: str) -> bool:
        return name in self.marks

    def add_marker(self, name: str) -> None:
        self.marks.append(name)


@pytest.fixture(scope="module")
def conftest() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ordering", TESTS / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ordered(conftest: ModuleType, seed: int) -> list[tuple[Path, int]]:
    items = [Item(path, number) for path, tests in FILES.items() for number in range(tests)]
    conftest.pytest_collection_modifyitems(SimpleNamespace(option=SimpleNamespace(order_seed=seed)), items)
    return [(item.path, item.number) for item in items]


def test_a_seed_gives_one_order_and_another_seed_another(conftest):
    assert ordered(conftest, 1) == ordered(conftest, 1)
    assert len({tuple(ordered(conftest, seed)) for seed in range(20)}) == 20


def test_the_tests_of_a_file_stay_together(conftest):
    order = ordered(conftest, 3)
    assert sorted(path for path, _ in groupby(order, key=lambda item: item[0])) == sorted(FILES)
    assert sorted(order) == [(path, number) for path, tests in FILES.items() for number in range(tests)]


def test_what_is_given_minutes_begins_first(conftest):
    for seed in range(5):
        items = [Item(path, marks=["timeout"] * (path.name == "c.py")) for path in FILES for _ in range(2)]
        options = SimpleNamespace(option=SimpleNamespace(order_seed=seed))
        conftest.pytest_collection_modifyitems(options, items)
        assert [item.path.name for item in items[:2]] == ["c.py", "c.py"]


def test_quick_tests_of_rooms_that_train_are_marked(conftest):
    trained, once, slow, other = (
        Item(TESTS / "verbs/adapt/test_any.py"),
        Item(TESTS / "verbs/merge/fusion/test_folder.py"),
        Item(TESTS / "verbs/adapt/methods/test_any.py", marks=["slow"]),
        Item(TESTS / "geometry/test_any.py"),
    )
    conftest.pytest_collection_modifyitems(
        SimpleNamespace(option=SimpleNamespace(order_seed=1)), [trained, once, slow, other]
    )
    assert (trained.marks, once.marks, slow.marks, other.marks) == (["trains"], [], ["slow"], [])
    assert all(room.is_dir() for room in conftest.TRAINED), "rooms that moved move in tests/conftest.py too"
