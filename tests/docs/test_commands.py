"""Commands and code that pages only show: the parser takes them, and their names exist.

`console` blocks run as they are (README, tutorials, suites, the command line). Blocks of `sh`, `bash` and
`python` name models and data of the reader's, so that they cannot run as they are. Those in `ON_STAND_INS`
run on tiny models and tables under the same names.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import transship as ts
from transship.cli import group

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^( *)```(sh|bash|python)([^\n]*)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHOWN = [
    (page, language, text)
    for page in PAGES
    for _, language, rest, text in BLOCK.findall(page.read_text(encoding="utf-8"))
    if "title=" not in rest
]
# page → how many commands run; the block about CLIP does not, because its pictures lie in a folder
ON_STAND_INS = {"transport": 1, "merge": 5, "translate": 5, "change-your-embedding-model": 8}
ARGUMENTS = {"SOURCE": "base-a", "TUNED": "tuned-a", "TARGET": "base-b", "OUT": "tuned-b"}


def name(block: tuple[Path, str, str]) -> str:
    page, _, text = block
    return f"{page.relative_to(ROOT)}: {text.strip().splitlines()[0][:50]}"


def commands(text: str) -> list[list[str]]:
    """Return the words of every `transship` command in lines of shell."""
    entries = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        words = words[: next((at for at, word in enumerate(words) if word in ("|", ">", "&&")), None)]
        if "transship" in words[:-1]:
            entries.append(words[words.index("transship") + 1 :])
    return entries


def parse(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the parser take the words; what they name need not be here."""
    command: Any = group
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        child = command.get_command(click.Context(command), words[0])
        assert child is not None, f"there is no command {words[0]}"
        command, words = child, words[1:]
    for parameter in command.params:
        if isinstance(parameter.type, click.Path):
            monkeypatch.setattr(parameter.type, "exists", False)
    if not {"--help", "--version"} & set(words):
        command.make_context(command.name, list(words))


def test_commands_are_found_in_lines_of_shell():
    text = "# transship no\naccelerate launch -m transship a b \\\n  --c   # why\nls | transship d > e\n"
    assert commands(text) == [["a", "b", "--c"]]


@pytest.mark.parametrize("block", [block for block in SHOWN if block[1] != "python"], ids=name)
def test_commands_that_are_only_shown_are_taken_by_the_parser(block, monkeypatch: pytest.MonkeyPatch):
    for words in commands(block[2]):
        parse(words, monkeypatch)


@pytest.mark.parametrize("block", [block for block in SHOWN if block[1] == "python"], ids=name)
def test_names_of_shown_code_exist(block):
    for node in ast.walk(ast.parse(block[2])):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("transship"):
            module = importlib.import_module(str(node.module))
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ts":
            assert hasattr(ts, node.attr)


def pins(verb: str) -> ModuleType:
    """Return the module that makes a verb's tiny models."""
    spec = importlib.util.spec_from_file_location(f"{verb}_pins", ROOT / f"tests/pins/{verb}_jobs.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def transship(*words: str) -> None:
    done = CliRunner().invoke(group, [ARGUMENTS.get(word, word) for word in words])
    assert done.exit_code == 0, f"transship {' '.join(words)}\n{done.output}"


def classifiers(folder: Path) -> None:
    """Write a base, fine-tunes of it, a wider base, and labelled texts."""
    tiny = pins("transport")
    heads, draw = {"num_labels": 3}, np.random.default_rng(0)
    base = tiny.bert("ForSequenceClassification", 16, 0, heads)
    models = {"base-a": base, "base-b": tiny.bert("ForSequenceClassification", 24, 1, heads)}
    models |= {f"tuned-{name}": tiny.nudge(base, size) for name, size in (("a", 0.2), ("questions", 0.1))}
    models |= {"all-MiniLM-L6-v2": base, "tuned-reviews": tiny.nudge(base, 0.15)}
    for name, model in models.items():
        tiny.save(model, folder / name)
    rows = pa.table({"text": tiny.sentences(90, 4), "label": draw.integers(3, size=90).astype(str)})
    for name in ("reviews", "trec_questions", "sst2"):
        pq.write_table(rows, folder / f"{name}.parquet")


def vectors(folder: Path) -> None:
    """Write two encoders, texts, and the old encoder's vectors of them."""
    draw, words = np.random.default_rng(0), ["ships", "birds", "sail", "over", "sea", "land"]
    texts = [" ".join(draw.choice(words, 7)) for _ in range(300)]
    for name in ("texts", "sample", "pairs"):
        rows = {"id": [f"t{row}" for row in range(300)], "text": texts}
        pq.write_table(pa.table(rows), folder / f"{name}.parquet")
    for name in ("old-model", "new-model"):
        pins("translate").tiny_encoder(folder / name)
    for name in ("old", "index"):
        transship("translate", "embed", "--model", "old-model", "texts.parquet", f"{name}.parquet")


@pytest.mark.slow
@pytest.mark.parametrize("page", ON_STAND_INS)
def test_commands_that_are_only_shown_run_on_stand_ins(page: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRANSSHIP_CACHE", str(tmp_path / "cache"))
    (vectors if page in ("translate", "change-your-embedding-model") else classifiers)(tmp_path)
    shown = [text for file, language, text in SHOWN if file.stem == page and language == "sh"]
    every = [words for text in shown for words in commands(text) if "clip-a" not in words]
    assert len(every) == ON_STAND_INS[page]
    for words in every:
        transship(*words)
