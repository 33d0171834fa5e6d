"""Defaults from variables and from `transship.toml`: command line before variable before file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from transship.cli import COMMANDS, group
from transship.cli.defaults import defaults_of, option_name, variable
from transship.errors import OptionError


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, with an empty folder of settings."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what `adapt fit` and `merge run` were called with."""
    values: dict[str, Any] = {}
    for words in (("adapt", "fit"), ("merge", "run")):
        command: Any = group
        for word in words:
            command = command.get_command(click.Context(command), word)
        monkeypatch.setattr(command, "callback", lambda **options: values.update(options))
    return values


def fit(*words: str) -> None:
    group.main(["adapt", "fit", "out", "--train", "rows", *words], standalone_mode=False)


def write(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "transship.toml").write_text(text, encoding="utf-8")


FILE = """
[adapt.fit]
steps = 30
batch_size = 8
no-baseline = true
json = true
precision = "bf16"
option = {mix = 0.5, warm = true}
"""


def test_a_file_gives_defaults_of_every_type(given):
    write(Path(), FILE)
    fit()
    assert (given["steps"], given["batch_size"], given["precision"]) == (30, "8", "bf16")
    assert (given["compare"], given["as_json"]) == (False, True)
    assert given["option"] == (("mix", "0.5"), ("warm", "yes"))


def test_the_command_line_comes_before_a_variable_before_a_file(given, monkeypatch: pytest.MonkeyPatch):
    write(Path(), FILE)
    monkeypatch.setenv("TRANSSHIP_ADAPT_FIT_STEPS", "40")
    monkeypatch.setenv("TRANSSHIP_ADAPT_FIT_OPTION", "mix 0.1 cool no")
    fit()
    assert given["steps"] == 40
    assert given["option"] == (("mix", "0.1"), ("cool", "no"))
    fit("--steps", "50", "-o", "mix", "0.9")
    assert given["steps"] == 50
    assert given["option"] == (("mix", "0.9"),)


def test_the_working_folder_comes_before_the_users_settings(given, places: Path):
    write(places / "config/transship", '[adapt.fit]\nsteps = 1\nseed = 7\n[merge.run]\nmemory = "1GB"\n')
    write(Path(), "[adapt.fit]\nsteps = 2\n")
    fit()
    assert (given["steps"], given["seed"]) == (2, 7)


@pytest.mark.parametrize(("text", "compared"), [("1", False), ("yes", False), ("0", True), ("", True)])
def test_a_flag_that_turns_something_off_does_so_by_its_variable(given, monkeypatch, text, compared):
    monkeypatch.setenv("TRANSSHIP_ADAPT_FIT_NO_BASELINE", text)
    fit()
    assert given["compare"] is compared


def _flags(*words: str) -> dict[str, click.Option]:
    command: Any = group
    for word in words:
        command = command.get_command(click.Context(command), word)
    return {option_name(option): option for option in command.params if isinstance(option, click.Option)}


def test_json_is_named_as_its_option_is():
    assert variable(("merge", "run"), _flags("merge", "run")["json"]) == "TRANSSHIP_MERGE_RUN_JSON"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[adapt.fit]\nstep = 1", "transship.toml: [adapt.fit]: there is no option 'step'; did you mean"),
        ("[adapt.fitt]\nsteps = 1", "[adapt]: there is no option 'fitt'; did you mean 'fit'?"),
        ("[adopt]\nx = 1", "transship.toml: there is no command 'adopt'; did you mean 'adapt'?"),
        ("steps = 1", "transship.toml: there is no command 'steps'"),
        ("adapt = 1", "transship.toml: [adapt]: it is no table; write [adapt] and options below it"),
        ("[adapt.fit]\nsteps = 'x'", "[adapt.fit] steps: it does not fit ('x' is not a valid int"),
        ("[adapt.fit]\nsteps = 1.5", "[adapt.fit] steps: it does not fit ('1.5' is not a valid int"),
        ("[adapt.fit]\nsteps = [1]", "[adapt.fit] steps: it does not fit"),
        ("[adapt.fit]\nsteps = 2020-01-01", "[adapt.fit] steps: it does not fit (a date is no word"),
        ("[adapt.fit]\nforce = 'perhaps'", "[adapt.fit]: force is taken from no file"),
        ("[adapt.fit]\ntrust_remote_code = true", "trust-remote-code is taken from no file, because"),
        ("[adapt.fit]\nno-baseline = 3", "[adapt.fit] no-baseline: it does not fit"),
        ("[adapt.fit", "transship.toml: it cannot be read as TOML (Expected"),
        ("\udcff", "transship.toml: it cannot be read as TOML ("),
        ("a" * 1_000_001, "transship.toml: the file is too large for settings"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence(given, text: str, sentence: str):
    Path("transship.toml").write_bytes(text.encode("utf-8", errors="surrogateescape"))
    with pytest.raises(OptionError) as refused:
        fit()
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_folder_of_that_name_is_one_sentence(given):
    Path("transship.toml").mkdir()
    with pytest.raises(OptionError, match="it cannot be read as TOML"):
        fit()


def test_a_variable_that_names_no_option_is_refused(given, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRANSSHIP_ADAPT_FIT_STEP", "1")
    with pytest.raises(OptionError, match="there is no variable 'TRANSSHIP_ADAPT_FIT_STEP'; did you mean"):
        fit()


def test_other_commands_are_not_held_up_by_it(given, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRANSSHIP_ADAPT_FIT_STEP", "1")
    write(Path(), "[adapt.fit]\nstep = 1\n")
    group.main(["merge", "run", "recipe.yaml", "out"], standalone_mode=False)
    assert given["out"] == Path("out")


def test_every_command_can_be_told_every_option_by_a_variable():
    """No two options share a variable, and none is the name of another variable of ours."""
    names = []
    for name in COMMANDS:
        command = group.get_command(click.Context(group), name)
        assert command is not None
        assert defaults_of(command, name, list(COMMANDS)) == {}
        pairs: list[tuple[tuple[str, ...], Any]] = [((name,), command)]
        if isinstance(command, click.Group):
            pairs += [((name, below), child) for below, child in command.commands.items()]
        for path, each in pairs:
            names += [variable(path, option) for option in each.params if isinstance(option, click.Option)]
    assert len(names) == len(set(names))
    assert not {"TRANSSHIP_CACHE", "TRANSSHIP_DATA", "TRANSSHIP_MODELS"} & set(names)
