"""Where names lead: paths, named folders, the cache; and what is said when they lead nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from transship import data
from transship.data.locate import hub_parts, is_hub_id
from transship.errors import DataError, MissingError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, no named folders, and a hub that is not asked."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("TRANSSHIP_DATA", raising=False)
    monkeypatch.delenv("TRANSSHIP_MODELS", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(path: Path, text: str = "a\nb\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_path_comes_before_the_named_folder_and_that_before_the_cache(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    cached = put(home / ".cache/transship/data/set.txt")
    assert data.find_data("set") == cached
    monkeypatch.setenv("TRANSSHIP_DATA", str(home / "named"))
    named = put(home / "named/set.txt")
    assert data.find_data("set") == named
    put(home / "set.txt")
    assert data.find_data("set") == Path("set.txt")
    assert data.find_data(cached) == cached


def test_a_name_may_stand_for_one_file_per_split(home: Path):
    for split in ("train", "test"):
        put(home / f".cache/transship/data/set-{split}.txt")
    put(home / ".cache/transship/data/set-other.txt")
    assert [file.name for file in data.data_files("set")] == ["set-test.txt", "set-train.txt"]
    assert dict(data.load("set").split_sizes) == {"train": 2, "test": 2}
    with pytest.raises(DataError, match="kept as 2 files, one per split"):
        data.find_data("set")


def test_dots_in_a_name_are_no_suffix(home: Path):
    put(home / ".cache/transship/data/set-v1.5.txt")
    assert data.find_data("set-v1.5").name == "set-v1.5.txt"


def test_signs_that_patterns_use_are_plain_in_names(home: Path):
    put(home / ".cache/transship/data/set[1]-train.txt")
    assert len(data.data_files("set[1]")) == 1
    assert data.data_files("set?") == ()


def test_missing_data_is_named_with_how_to_get_it(home: Path):
    put(home / ".cache/transship/data/reviews.txt")
    with pytest.raises(MissingError) as caught:
        data.load("revews")
    sentence = str(caught.value)
    assert "no data of this name here or in ~/.cache/transship/data" in sentence
    assert "did you mean 'reviews'?" in sentence
    assert "set TRANSSHIP_DATA" in sentence


def test_models_are_found_like_data(home: Path, monkeypatch: pytest.MonkeyPatch):
    cached = put(home / ".cache/transship/models/small/config.json").parent
    assert data.find_model("small") == cached
    monkeypatch.setenv("TRANSSHIP_MODELS", str(home / "named"))
    named = put(home / "named/small/config.json").parent
    assert data.find_model("small") == named
    with pytest.raises(
        MissingError, match=r"no model of this name .* did you mean 'small'.*set TRANSSHIP_MODELS"
    ):
        data.find_model("smal")


@pytest.mark.parametrize("find", [data.find_data, data.find_model, data.load])
def test_a_hub_name_that_cannot_be_fetched_says_so(find: object, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(MissingError, match=r"nobody/nothing: .* the hub did not answer .* go online"):
        find("nobody/nothing")  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *(
            ("owner/name", True),
            ("owner/name@v1", True),
            ("hub:name", True),
            ("name", False),
            ("a/b/c", False),
        ),
        *(
            ("folder/file.parquet", False),
            ("./owner/name", False),
            ("/owner/name", False),
            ("../name", False),
        ),
    ],
)
def test_hub_names_are_told_from_paths(name: str, is_one: bool):
    assert is_hub_id(name) is is_one


def test_a_revision_follows_the_name():
    assert hub_parts("owner/name@abc") == ("owner/name", "abc")
    assert hub_parts("hub:name") == ("name", None)


def test_a_model_name_that_is_nearly_right_is_refused_with_the_right_one(home: Path):
    folder = home / ".cache/transship/models/minilm-l6"
    folder.mkdir(parents=True)
    assert (
        data.local_model("minilm-l6")
        == data.local_model("~/.cache/transship/models/minilm-l6")
        == str(folder)
    )
    with pytest.raises(MissingError, match=r"minlm-l6: no model of this name .* did you mean 'minilm-l6'"):
        data.local_model("minlm-l6")
    for other in ("owner/minlm-l6", "./minlm-l6", "gpt2"):  # for the hub, or for who opens it, to judge
        assert data.local_model(other) == other
