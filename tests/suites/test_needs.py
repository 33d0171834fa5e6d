from __future__ import annotations

from pathlib import Path

import pytest

from transship.errors import MissingError
from transship_suites import SuiteRun, load_suite
from transship_suites.runner import Need
from transship_suites.runner import needs as needs_module
from transship_suites.runner.needs import device_for, ensure, locate, signature


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRANSSHIP_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("TRANSSHIP_MODELS", str(tmp_path / "models"))
    (tmp_path / "data").mkdir()
    (tmp_path / "models" / "little").mkdir(parents=True)
    (tmp_path / "models" / "little" / "config.json").write_text("{}")
    (tmp_path / "data" / "reviews.csv").write_text("text\nfine\n")
    return tmp_path


def test_what_is_here_is_found(folders: Path):
    assert locate(Need("data", "reviews", "")) == (folders / "data" / "reviews.csv",)
    assert locate(Need("model", "little", "")) == (folders / "models" / "little",)
    assert locate(Need("library", "json", "")) == ()
    assert locate(Need("data", "digits", "")) == ()
    assert locate(Need("data", "absent-data", "")) is None
    assert locate(Need("model", "absent-model", "")) is None
    assert locate(Need("library", "absent_library", "")) is None


def test_one_error_names_all_that_is_missing_and_how_to_get_it(folders: Path):
    needs = [
        Need("data", "reviews", "here"),
        Need("data", "absent-data", "run get-data"),
        Need("model", "absent-model", "hub id some/model"),
        Need("library", "absent_library", "pip install transship[pde]"),
    ]
    with pytest.raises(MissingError) as caught:
        ensure(needs, suite="the-suite")
    assert str(caught.value) == (
        "the-suite: 3 things it needs are not here: data 'absent-data' (run get-data); model 'absent-model' "
        "(hub id some/model); library 'absent_library' (pip install transship[pde]); set TRANSSHIP_DATA to "
        "the folder that has the data, and set TRANSSHIP_MODELS to the folder that has the models, and get "
        "what is named in brackets"
    )


def many(*kinds: str) -> list[Need]:
    return [Need(kind, f"owner/absent-{kind}-{row}", f"get {row}") for row, kind in enumerate(kinds)]  # type: ignore[arg-type]


def test_many_missing_things_have_a_line_each_devices_and_libraries_first(folders: Path):
    needs = [*many("data", "model", "model", "data"), Need("gpu", "cuda", "a card")]
    with pytest.raises(MissingError) as caught:
        ensure([*needs, *needs], suite="the-suite")
    head, *lines = str(caught.value).splitlines()
    assert head == "the-suite: 5 things it needs are not here:"
    assert lines[0] == "  gpu     cuda (a card)"
    assert [line.split()[0] for line in lines[:-1]] == ["gpu", "model", "model", "data", "data"]
    assert lines[-1].startswith(
        "set TRANSSHIP_DATA to the folder that has the data, and set TRANSSHIP_MODELS"
    )


def test_a_device_that_was_asked_for_stands_for_a_gpu(folders: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(needs_module, "_CARDS", ())
    card = Need("gpu", "cuda", "a card")
    with pytest.raises(MissingError, match=r"one thing it needs is not here: gpu 'cuda' \(a card\)"):
        ensure([card], suite="the-suite")
    ensure([card], suite="the-suite", device="cpu")
    assert [device_for([card], None), device_for([card], "cpu"), device_for([], None)] == [
        "cuda",
        "cpu",
        "cpu",
    ]


def test_nothing_is_fetched_while_something_is_missing_that_no_hub_has(folders, monkeypatch):
    asked: list[str] = []

    def fetch(name: str, *, repository: str) -> None:
        asked.append(name)
        raise MissingError("it is not here and the hub did not answer", where=name, fix="go online")

    monkeypatch.setattr("transship.data.locate.fetch", fetch)
    hub = many("model", "data", "model")
    with pytest.raises(MissingError, match="4 things"):
        ensure([*hub, Need("library", "absent_library", "pip install it")], suite="the-suite")
    assert asked == []
    with pytest.raises(MissingError, match="3 things"):  # a hub that does not answer is asked once
        ensure(hub, suite="the-suite")
    assert asked == ["owner/absent-model-0"]


def test_a_folder_of_a_hub_id_needs_no_revision(folders: Path):
    place = folders / "data" / "owner" / "set"
    place.mkdir(parents=True)
    assert locate(Need("data", "owner/set@refs/convert/parquet", "")) == (place,)


def test_nothing_is_run_while_something_is_missing(toy, log):
    suite = load_suite("toy-suite", toy(needs='(Need("data", "absent-data", "run get-data"),)'))
    with pytest.raises(MissingError, match=r"toy-suite: one thing it needs is not here: data 'absent-data'"):
        SuiteRun(suite, "full")
    SuiteRun(suite, "quick")
    assert log() == []


def test_another_file_of_the_same_name_is_noticed(folders: Path):
    need = Need("data", "reviews", "")
    before = signature(need)
    assert signature(need) == before
    (folders / "data" / "reviews.csv").write_text("text\nfina\n")
    assert signature(need) != before
    model = Need("model", "little", "")
    before = signature(model)
    (folders / "models" / "little" / "config.json").write_text("[]")
    assert signature(model) != before
