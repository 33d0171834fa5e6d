"""The options that every command has, written once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

import transship as ts
from transship.cli.settings import settings_options
from transship.errors import printable
from transship.fields import setting


@dataclass(frozen=True, kw_only=True)
class Output:
    """What comes out of a command.

    Attributes:
        force: replace what is already there.
        report: write a page to look at.
        as_json: print the result as JSON.
    """

    force: bool = False
    report: Path | None = setting(None, metavar="FILE", file=True)
    as_json: bool = setting(False, flags=("--json",))


@dataclass(frozen=True, kw_only=True)
class Seed:
    """What fixes a run.

    Attributes:
        seed: fixes every random choice.
    """

    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Where models run.

    Attributes:
        device: where models run.
        device_map: spread each model over devices instead: auto, or JSON of module and device.
    """

    device: str = "cpu"
    device_map: str | None = setting(None, metavar="MAP")


@dataclass(frozen=True, kw_only=True)
class Compute(Devices, Seed):
    """How models are run.

    Attributes:
        dtype: what models run in; float32 by default.
    """

    dtype: str | None = None


@dataclass(frozen=True, kw_only=True)
class Trust:
    """What may be run.

    Attributes:
        trust_remote_code: run code that a model's repository carries.
    """

    trust_remote_code: bool = False


@dataclass(frozen=True, kw_only=True)
class OpeningOptions(Trust):
    """What may be run or unpickled.

    Attributes:
        allow_pickle: read .bin and .pt files too (weights only).
    """

    allow_pickle: bool = False


@dataclass(frozen=True, kw_only=True)
class Memory:
    """How much memory there is, for commands that choose their chunks by it.

    Attributes:
        memory: memory limit per process, for example 2GB. Memory-mapped files do not count. Work that cannot
            fit is refused before it starts.
    """

    memory: str | None = setting(None, metavar="SIZE")


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Who does the work on a table.

    Attributes:
        engine: this machine, or Ray; Parquet only.
        address: a running Ray cluster; otherwise a local one.
        jobs: processes that share the work (1 by default), or Ray tasks at a time (all CPUs by default); the
            result is the same.
    """

    engine: Literal["local", "ray"] = "local"
    address: str | None = setting(None, metavar="HOST:PORT")
    jobs: int | None = setting(None, least=1)


output_options = settings_options(Output)
seed_option = settings_options(Seed)
device_options = settings_options(Devices)
compute_options = settings_options(Compute)
trust_option = settings_options(Trust)
model_options = settings_options(OpeningOptions)
memory_option = settings_options(Memory)
engine_options = settings_options(Workers)


def print_json(value: Any) -> None:
    """Print `value` to standard output as JSON."""
    click.echo(ts.report.json.dumps(value))


def show(
    page: ts.report.Page,
    *,
    as_json: bool = False,
    report: Path | None = None,
    force: bool = False,
    quiet: bool = False,
) -> None:
    """Tell what a command found: as JSON or lines on standard output, and as a page in the file `report`."""
    if report is not None:
        ts.report.html.write(page, report, force=force)
    if not quiet:
        click.echo(ts.report.json.render(page) if as_json else ts.report.terminal.render(page))
    if report is not None and not quiet:
        click.echo(f"the page is at {printable(report)}", err=as_json)


def local_model(reference: str) -> str:
    """Return the folder of a model that is named as in the local model folders, or the reference as it is."""
    if not Path(reference).expanduser().exists():
        for folder in ts.data.model_folders():
            if (folder / reference).is_dir():
                return str(folder / reference)
    return reference
