"""What the tests of the pages share: the script that runs a page's examples."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def examples() -> ModuleType:
    spec = importlib.util.spec_from_file_location("examples", ROOT / "scripts/examples.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["examples"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def follow(examples):
    """Run a page's examples in a folder; fail at the first command that prints other than the page shows."""

    def run(page: Path, folder: Path) -> int:
        count = 0
        for command, code in examples.follow(page.read_text(encoding="utf-8"), folder):
            shown = "\n".join(command.printed)
            assert code == 0, f"$ {command.text}\nexit code {code}\n{shown}"
            assert examples.agree(command.expected, command.printed, exact=command.exact), (
                f"$ {command.text}\nprinted:\n{shown}\n{page.name} has:\n" + "\n".join(command.expected)
            )
            count += 1
        return count

    return run
