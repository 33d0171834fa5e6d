"""What every command has: help in sentences, an example that can be pasted, -v and -q."""

from __future__ import annotations

import logging
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from transship.cli import group, main


def tree(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(("transship", *path)), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from tree(child, (*path, name))


TREE = dict(tree(group))


@pytest.mark.parametrize("name", TREE)
def test_help_is_written_in_sentences(name: str):
    command = TREE[name]
    helps = [command.help or ""]
    helps += [
        option.help or ""
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden
    ]
    for text in helps:
        first = text.removeprefix("ω")
        assert re.match(r"[A-Z0-9`]", first), text
        assert text.rstrip().endswith("."), text
    assert name == "transship" or not command.get_short_help_str(limit=60).endswith("..."), (
        "the list of commands would cut it"
    )


@pytest.mark.parametrize("name", TREE)
def test_its_example_can_be_pasted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The line stands whole in a narrow terminal, names this command, and the parser takes it."""
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(group, [*name.split()[1:], "--help"], terminal_width=60).output
    (line,) = re.findall(r"^  Example: (transship .*)$", shown, re.MULTILINE)
    words = shlex.split(line)
    assert " ".join(words).startswith(name)
    command, rest = TREE["transship"], words[1:]
    while isinstance(command, click.Group):
        child = command.get_command(click.Context(command), rest[0])
        assert child is not None
        command, rest = child, rest[1:]
    for argument in command.params:  # models that an example names are not here
        if isinstance(argument.type, click.Path):
            monkeypatch.setattr(argument.type, "exists", False)
    command.make_context(name, rest)


@pytest.fixture
def talkative(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let `transship methods merge` log, warn and fail as a command may."""
    happened: list[str] = []

    def work(context: click.Context, **given: object) -> None:
        logging.getLogger("transship.test").info("read\x1b[2J it")
        logging.getLogger("transship.test").debug("much")
        warnings.warn("beware", UserWarning, stacklevel=1)
        click.echo("plan", err=True)
        click.echo("result")
        happened.append("done")

    monkeypatch.setattr(TREE["transship methods"], "callback", click.pass_context(work))
    return happened


def test_a_command_is_silent_about_its_log_unless_asked(talkative, capsys):
    group.main(["methods"], standalone_mode=False)
    out, err = capsys.readouterr()
    assert out == "result\n"
    assert "plan" in err
    assert "read" not in err


def test_verbose_shows_the_log_and_what_the_command_took(talkative, capsys):
    group.main(["methods", "-v"], standalone_mode=False)
    err = capsys.readouterr().err
    assert "transship.test: read\\x1b[2J it\n" in err  # what came from outside moves no cursor
    assert "much" not in err
    assert re.search(r"transship\.cli: took \d+ s and at most [\d.]+ [MG]B of memory", err)
    group.main(["methods"], standalone_mode=False)
    assert "read" not in capsys.readouterr().err  # the next one is silent again


def test_twice_verbose_shows_all_of_it(talkative, capsys):
    group.main(["-vv", "methods"], standalone_mode=False)
    assert "transship.test: much\n" in capsys.readouterr().err


def test_quiet_leaves_the_result_alone(talkative, capsys):
    group.main(["methods", "-q"], standalone_mode=False)
    assert capsys.readouterr() == ("result\n", "")


def test_errors_are_printed_however_quiet(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["inspect", "-q", "no-such-model"])
    assert ended.value.code == 2
    assert "error: no-such-model: " in capsys.readouterr().err


def test_both_at_once_are_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["methods", "-v", "-q"])
    assert ended.value.code == 2
    assert "-v and -q contradict each other" in capsys.readouterr().err


def test_the_library_is_silent_until_a_program_asks(capsys):
    logging.getLogger("transship.anything").warning("nobody asked")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_and_options(shell: str, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setenv("_TRANSSHIP_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", "transship merge ru")
    monkeypatch.setenv("COMP_CWORD", "ru" if shell == "fish" else "2")
    with pytest.raises(SystemExit):
        group.main(prog_name="transship")
    assert "run" in capsys.readouterr().out


def test_a_log_needs_no_module_that_windows_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "resource", None)
    main(["-v", "methods", "translate"])
    assert re.search(r"transship\.cli: took [\d.]+ s$", capsys.readouterr().err, re.MULTILINE)


def test_the_device_is_chosen_where_nobody_names_one():
    options = [option for command in TREE.values() for option in command.params if option.name == "device"]
    defaults = [option.default for option in options if isinstance(option.default, str)]
    assert set(defaults) == {"auto"}
    assert len(options) - len(defaults) == 1, "a suite of `bench` has a device of its own"
