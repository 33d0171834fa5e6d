"""Vocabularies and chat templates of recipes, row by row, on models of plain arrays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transship import checkpoints
from transship.verbs.merge.api import merge
from transship.verbs.merge.recipe.plan.words import read_vocabulary

Make = Callable[..., None]
TABLE = "embed_tokens.weight"
WORDS = {"base": "abx", "one": "baxn", "two": "axmn"}  # x: all, b: base and one, n: one and two, m: two alone


def row(model: str, word: str) -> np.ndarray:
    """Each model's row of a word is its own number, so that a row tells where it came from."""
    return np.array([[*WORDS].index(model) + 1, "abxnm".index(word) + 1], np.float32)


@pytest.fixture
def speaking(safetensors_models: Make) -> None:
    for model, words in WORDS.items():
        safetensors_models(model, {TABLE: np.stack([row(model, word) for word in words])})
        tokens = {"model": {"vocab": {word: place for place, word in enumerate(words)}}, "added_tokens": []}
        (Path(model) / "tokenizer.json").write_text(json.dumps(tokens))


def recipe(*models: str, **more: Any) -> dict[str, Any]:
    listed = [{"model": name, "parameters": {"weight": 0.5}} for name in models]
    return {"merge_method": "linear", "models": listed, "compatibility": "off", **more}


def merged(given: dict[str, Any], out: Path) -> dict[str, np.ndarray]:
    """Return word → row of what was written, by its own tokenizer."""
    folder = merge(given).save(out)
    words = read_vocabulary(folder)
    assert words is not None
    with checkpoints.open(folder) as checkpoint:
        table = np.array(checkpoint.read(TABLE))
    assert len(table) == len(words)
    return {word: table[place] for word, place in words.items()}


@pytest.mark.usefixtures("speaking")
def test_a_union_takes_every_word_and_fills_rows_by_its_rule(tmp_path: Path):
    result = merged(recipe("one", "two", tokenizer_source="union"), tmp_path / "out")
    assert set(result) == set("baxnm")
    for word in "axn":
        np.testing.assert_allclose(result[word], (row("one", word) + row("two", word)) / 2)
    np.testing.assert_allclose(result["b"], row("one", "b"))  # its only owner, in both models
    np.testing.assert_allclose(result["m"], row("two", "m"))


@pytest.mark.usefixtures("speaking")
def test_a_word_of_several_is_the_bases_where_a_model_has_none_or_else_their_mean(tmp_path: Path):
    given = recipe("one", "two", "base", tokenizer_source="union", base_model="base")
    result = merged(given, tmp_path / "out")
    filled = (row("one", "b") + 2 * row("base", "b")) / 3  # two has no b: it gets the base's
    np.testing.assert_allclose(result["b"], filled, rtol=1e-6)
    mean = (row("one", "n") + row("two", "n")) / 2  # the base has no n, and is given the owners' mean
    np.testing.assert_allclose(result["n"], mean, rtol=1e-6)


@pytest.mark.usefixtures("speaking")
@pytest.mark.parametrize(("source", "words"), [("base", "abx"), ("one", "baxn"), ("model:two", "axmn")])
def test_the_words_of_one_model_are_kept_in_its_order_and_no_others(source: str, words: str, tmp_path: Path):
    given = recipe("one", "two", "base", tokenizer_source=source, base_model="base")
    result = merged(given, tmp_path / "out")
    assert list(result) == list(words)
    np.testing.assert_allclose(result["x"], sum(row(model, "x") for model in WORDS) / 3, rtol=1e-6)


@pytest.mark.usefixtures("speaking")
def test_rules_of_single_words_come_first(tmp_path: Path):
    rules = {
        "x": {"source": "two", "force": True},
        "b": {"source": {"kind": "model_token", "model": "one", "token": "n"}},
        "new": {"source": {"kind": "zero"}},
    }
    given = recipe("one", "two", tokenizer={"source": "union", "tokens": rules})
    result = merged(given, tmp_path / "out")
    np.testing.assert_allclose(result["x"], row("two", "x"))
    np.testing.assert_allclose(result["b"], (row("one", "b") + row("one", "n")) / 2)  # two has no b
    np.testing.assert_allclose(result["new"], 0)


@pytest.mark.usefixtures("speaking")
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [("auto", "{{ often }}"), ("{{ given }}", "{{ given }}"), ("chatml", "im_start"), (None, "{{ rare }}")],
)
def test_the_chat_template_is_the_most_frequent_a_built_in_one_or_the_text(
    wanted: str | None, expected: str, tmp_path: Path
):
    for model, text in (("one", "{{ rare }}"), ("two", "{{ often }}"), ("base", "{{ often }}")):
        (Path(model) / "chat_template.jinja").write_text(text)
    given = recipe("one", "two", "base", tokenizer_source="union", chat_template=wanted)
    out = merge({key: value for key, value in given.items() if value is not None}).save(tmp_path / "out")
    assert expected in (out / "chat_template.jinja").read_text()
