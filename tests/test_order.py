"""The order of the tests: drawn anew in every run, the same for the same seed, and files stay together."""

import importlib.util
from itertools import groupby
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

FILES = {"a.py": 5, "b.py": 4, "c.py": 3, "d.py": 2}


@pytest.fixture(scope="module")
def conftest() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ordering", Path(__file__).parent / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ordered(conftest: ModuleType, seed: int) -> list[tuple[str, int]]:
    items = [
        SimpleNamespace(path=path, number=number) for path, tests in FILES.items() for number in range(tests)
    ]
    conftest.pytest_collection_modifyitems(SimpleNamespace(option=SimpleNamespace(order_seed=seed)), items)
    return [(item.path, item.number) for item in items]


def test_a_seed_gives_one_order_and_another_seed_another(conftest):
    assert ordered(conftest, 1) == ordered(conftest, 1)
    assert len({tuple(ordered(conftest, seed)) for seed in range(20)}) == 20


def test_the_tests_of_a_file_stay_together(conftest):
    order = ordered(conftest, 3)
    assert sorted(path for path, _ in groupby(order, key=lambda item: item[0])) == sorted(FILES)
    assert sorted(order) == [(path, number) for path, tests in FILES.items() for number in range(tests)]
