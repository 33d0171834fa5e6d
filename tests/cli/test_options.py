"""Options that are generated from a dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import pytest
from click.testing import CliRunner

from transship.cli.options import read_settings, settings_options
from transship.errors import OptionError
from transship.fields import setting


@dataclass(frozen=True, kw_only=True)
class Base:
    """What all have.

    Attributes:
        seed: fixes every random choice.
    """

    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Example(Base):
    """An example.

    Attributes:
        data: the inputs.
        strength: a number, or auto.
        rank: how many factors, which is
            explained over two lines.
        depth: what stands for a block.
        freeze: whether it stays as it is.
        unit: unit length.
        force: replace what is there.
        compare: do not compare.
        names: a name of a class.
        folder: where it goes.
        cache: not for the command line.
    """

    data: str
    strength: float | Literal["auto"] = "auto"
    rank: int | None = setting(None, flags=("-r", "--rank"), least=1, metavar="N")
    depth: Literal["nearest", "skip"] = "nearest"
    freeze: bool | Literal["auto"] = False
    unit: bool | None = None
    force: bool = False
    compare: bool = setting(True, negative="--no-baseline")
    names: tuple[str, ...] = setting((), flags=("--name",))
    folder: Path | None = None
    cache: Any = setting(None, absent=True)


def run(*arguments: str, **values: Any) -> tuple[Any, Any]:
    settings: list[Any] = []

    @click.command()
    @settings_options(Example)
    def command(**given: Any) -> None:
        settings.append(read_settings(Example, given, **values))

    result = CliRunner().invoke(command, list(arguments))
    return result, settings[0] if settings else None


def test_defaults_are_those_of_the_dataclass():
    assert run("--data", "x")[1] == Example(data="x")


def test_what_is_given_has_the_types_of_the_fields():
    words = ["--data", "x", "--strength", "0.5", "-r", "3", "--depth", "skip", "--freeze", "yes", "--no-unit"]
    words += ["--force", "--no-baseline", "--name", "a", "--name", "b", "--folder", "here", "--seed", "7"]
    settings = run(*words)[1]
    assert settings == Example(
        data="x",
        strength=0.5,
        rank=3,
        depth="skip",
        freeze=True,
        unit=False,
        force=True,
        compare=False,
        names=("a", "b"),
        folder=Path("here"),
        seed=7,
    )
    assert run("--data", "x", "--freeze", "auto", "--unit", cache=4)[1] == Example(
        data="x", freeze="auto", unit=True, cache=4
    )


def test_the_help_is_that_of_the_docstring():
    text = " ".join(run("--help")[0].output.split())
    for part in (
        "--data TEXT The inputs. [required]",
        "--strength TEXT A number, or auto. [default: auto]",
        "-r, --rank N How many factors, which is explained over two lines. [x>=1]",
        "--depth [nearest|skip] What stands for a block. [default: nearest]",
        "--freeze [no|yes|auto] Whether it stays as it is. [default: no]",
        "--unit / --no-unit Unit length.",
        "--force Replace what is there.",
        "--no-baseline Do not compare.",
        "--name TEXT A name of a class.",
        "--seed INTEGER Fixes every random choice. [default: 0]",
    ):
        assert part in text
    assert "cache" not in text


@pytest.mark.parametrize("words", [("--rank", "0"), ("--depth", "other"), ("--freeze", "maybe"), ()])
def test_what_does_not_fit_is_refused_by_the_parser(words: tuple[str, ...]):
    result, settings = run(*(("--data", "x", *words) if words else ()))
    assert (result.exit_code, settings) == (2, None)


def test_a_word_that_is_neither_number_nor_choice_is_one_sentence():
    result, _ = run("--data", "x", "--strength", "strong")
    assert isinstance(result.exception, OptionError)
    assert str(result.exception) == "--strength: 'strong' does not fit; give float | auto"
