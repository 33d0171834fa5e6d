"""Nothing from outside steers the terminal: whatever is printed is escaped in one place."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import click
import numpy as np
import pytest
from safetensors.numpy import save_file

from transship.cli import Escaped, escaped, main
from transship.progress import Bars

TITLE = "\x1b]0;owned\x07"
NAMES = [TITLE, "\x1b[2J", "\r\x1b[K", "\x9b31m", "\u202etxt.exe", "a\x00b", "\x7f", "\x08\x08"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({f"{TITLE}weight": np.ones((2, 2), np.float32)}, folder / "model.safetensors")
    config = {"architectures": [f"Bert{TITLE}"], "model_type": f"bert{TITLE}"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_escaped_on_both_streams(name: str, capsys: pytest.CaptureFixture[str]):
    with escaped():
        click.echo(f"to stdout {name}!")
        click.echo(f"to stderr {name}!", err=True)
        print(f"printed {name}!", file=sys.stderr)
        sys.stdout.writelines([f"lines {name}!\n"])
    shown = "".join(capsys.readouterr())
    assert shown.count("!") == 4
    assert not set(shown) & set("\x1b\x07\r\x9b\u202e\x00\x7f\x08"), shown


def test_warnings_and_bars_pass_through_too(capsys: pytest.CaptureFixture[str]):
    with escaped():
        warnings.warn_explicit(f"of {TITLE}", UserWarning, "x.py", 1)
        bars = Bars()
        bars(f"reading {TITLE}", 0, 1)
        bars(f"reading {TITLE}", 1, 1)
    assert "\x1b" not in capsys.readouterr().err


def test_bold_and_bars_keep_their_meaning(capsys: pytest.CaptureFixture[str]):
    stream = Escaped(sys.stdout)
    for text in ("\x1b[1mbold\x1b[0m\n", "\r 50%|##   |", "\x1b[A", "two\n\tlines"):
        stream.write(text)
    assert capsys.readouterr().out == "\x1b[1mbold\x1b[0m\n\r 50%|##   |\x1b[Atwo\n\tlines"


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_inspect_shows_hostile_names_harmlessly(
    more: tuple[str, ...], model: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit):
        main(["inspect", str(model), *more])
    shown = "".join(capsys.readouterr())
    assert "\x1b" not in shown
    assert "error: " in shown


def test_inspect_shows_hostile_tensors_of_a_bare_file(model: Path, capsys: pytest.CaptureFixture[str]):
    main(["inspect", str(model / "model.safetensors"), "--json"])
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert json.loads(shown)["tensors"] == 1


def test_json_stays_json_whatever_a_name_holds(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    path = tmp_path / "a\x9b\x7f.safetensors"
    save_file({"a": np.ones(2, np.float32)}, path)
    main(["inspect", str(path), "--json"])
    assert json.loads(capsys.readouterr().out)["name"] == str(path)


def test_an_error_stays_one_line(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["inspect", f"no\nsuch\n{TITLE}"])
    assert len(capsys.readouterr().err.splitlines()) == 1
