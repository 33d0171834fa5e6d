from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from transship.errors import OptionError
from transship.verbs.merge.recipe.read.document import Block, parse_documents, read_text

scalars = st.one_of(
    st.booleans(), st.integers(-9, 9), st.floats(-9, 9), st.text("abcxyz", min_size=1), st.none()
)
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text("abc", min_size=1), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text("abcdef", min_size=1), trees, min_size=1, max_size=5), st.booleans())
def test_a_document_means_what_yaml_says(tree: dict[str, object], flow: bool):
    text = yaml.safe_dump(tree, default_flow_style=flow)
    assert parse_documents(text) == [yaml.safe_load(text)]


def test_every_key_remembers_its_line():
    (result,) = parse_documents("a: 1\n\nb:\n  c: 2\n  d: [1, {e: 3}]\n")
    assert result.lines == {"a": 1, "b": 3}
    assert result["b"].where("d") == "recipe:5"
    assert isinstance(result["b"]["d"][1], Block)


def test_aliases_and_merge_keys_work():
    (result,) = parse_documents("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\n")
    assert result["y"] == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [*a]", "an alias contains itself"),
        ("a: 1\na: 2", "recipe:2: the key 'a' stands here twice"),
        ("a: [1", "this is no YAML"),
        ("- 1", "a recipe is a mapping"),
        ("", "the recipe is empty"),
        ("a: !!python/object:os.system x", "cannot be read as"),
        ("<<: 3", "<< takes a mapping"),
        ("a: \x01", "this is no YAML"),
    ],
)
def test_what_is_no_recipe_is_one_sentence(text: str, message: str):
    with pytest.raises(OptionError) as caught:
        parse_documents(text)
    assert message in str(caught.value)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(OptionError, match="no such recipe"):
        read_text(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(OptionError, match="cannot be read"):
        read_text(tmp_path / "bytes.yaml")


NINE_LEVELS = "a: &a0 [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"b{level}: &a{level + 1} [{','.join([f'*a{level}'] * 9)}]\n" for level in range(9)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NINE_LEVELS, r"recipe:\d+: with its aliases written out it has more than 100,000 entries"),
        ("k: [1]\nmodels: " + "[" * 200_000, "recipe:2: it is nested more than 50 deep; write it flatter"),
        ("{a: " * 30_000, "recipe:1: it is nested more than 50 deep"),
        ("[" * 3000 + "]" * 3000, "recipe:1: it is nested more than 50 deep"),
        (
            "x0: &x0 [1]\n" + "".join(f"x{n + 1}: &x{n + 1} [*x{n}]\n" for n in range(300)),
            r"recipe:\d+: it is nested more than 50 deep",
        ),
        ("a: " + ":".join(["1"] * 400_000), "cannot be read as tag:yaml.org,2002:int"),
        ("a: !!timestamp soon", "recipe:1: 'soon' cannot be read as tag:yaml.org,2002:timestamp"),
        ("a: !!bool maybe", "cannot be read as tag:yaml.org,2002:bool"),
        ("a: !<" + "x" * 900_000 + "> 1", "^recipe:1: '1' cannot be read as x{100}; write"),
        ("ok: 1\n? [a, b]\n: c", "recipe:2: a key is a word, and no list or mapping"),
        ("a: " + "x" * 1_000_001, "recipe: the recipe is longer than 1 MB"),
    ],
    ids=lambda text: text[:12],
)
def test_a_recipe_that_would_fill_the_memory_or_the_stack_is_refused(text: str, message: str):
    with pytest.raises(OptionError, match=message):
        parse_documents(text)


def test_a_file_is_read_up_to_its_limit(tmp_path: Path):
    with (tmp_path / "r.yaml").open("wb") as file:
        file.truncate(50 << 30)  # no file system keeps these zeros, and no memory holds them
    with pytest.raises(OptionError, match="the recipe is longer than 1 MB"):
        read_text(tmp_path / "r.yaml")
