"""The options that every command has, written once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from transship.errors import printable

if TYPE_CHECKING:
    from transship.report import Page

Command = TypeVar("Command", bound=Callable[..., Any])


def output_options(command: Command) -> Command:
    """Add `--json`, `--report` and `--force`: what comes out."""
    command = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(command)
    command = click.option(
        "--report", type=click.Path(dir_okay=False, path_type=Path), help="Write a page to look at."
    )(command)
    return click.option("--force", is_flag=True, help="Replace what is already there.")(command)


def seed_option(command: Command) -> Command:
    """Add `--seed`."""
    return click.option("--seed", default=0, show_default=True, help="Fixes every random choice.")(command)


def memory_option(command: Command) -> Command:
    """Add `--memory`, for commands that choose their chunks by it."""
    help_ = "The most memory of a process that is no file, as 2GB; what does not fit is refused at once."
    return click.option("--memory", default=None, metavar="SIZE", help=help_)(command)


def engine_options(command: Command) -> Command:
    """Add `--engine`, `--address` and `--jobs`: who does the work on a table."""
    command = click.option(
        "--jobs",
        type=click.IntRange(1),
        default=None,
        help="Processes that share the work (1 by default), or Ray tasks at a time (all CPUs by default); "
        "the result is the same.",
    )(command)
    command = click.option(
        "--address", default=None, metavar="HOST:PORT", help="A running Ray cluster; otherwise a local one."
    )(command)
    return click.option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="This machine, or Ray; Parquet only.",
    )(command)


def compute_options(command: Command) -> Command:
    """Add `--seed`, `--device`, `--device-map` and `--dtype`: how models are run."""
    command = device_options(seed_option(command))
    return click.option("--dtype", default=None, help="What models run in; float32 by default.")(command)


def device_options(command: Command) -> Command:
    """Add `--device` and `--device-map`: where models run."""
    command = click.option(
        "--device-map",
        default=None,
        metavar="MAP",
        help="Spread each model over devices instead: auto, or JSON of module and device.",
    )(command)
    return click.option("--device", default="cpu", show_default=True, help="Where models run.")(command)


def trust_option(command: Command) -> Command:
    """Add `--trust-remote-code`."""
    help_ = "Run code that a model's repository carries."
    return click.option("--trust-remote-code", is_flag=True, help=help_)(command)


def model_options(command: Command) -> Command:
    """Add `--trust-remote-code` and `--allow-pickle`: what may be run or unpickled."""
    help_ = "Read .bin and .pt files too (weights only)."
    return click.option("--allow-pickle", is_flag=True, help=help_)(trust_option(command))


def print_json(value: Any) -> None:
    """Print `value` to standard output as JSON."""
    from transship.report import json  # start-up

    click.echo(json.dumps(value))


def show(
    page: Page, *, as_json: bool = False, report: Path | None = None, force: bool = False, quiet: bool = False
) -> None:
    """Tell what a command found: as JSON or lines on standard output, and as a page in the file `report`."""
    from transship.report import html, json, terminal  # start-up

    if report is not None:
        html.write(page, report, force=force)
    if not quiet:
        click.echo(json.render(page) if as_json else terminal.render(page))
    if report is not None and not quiet:
        click.echo(f"the page is at {printable(report)}", err=as_json)


def local_model(reference: str) -> str:
    """Return the folder of a model that is named as in the local model folders, or the reference as it is."""
    from transship.data import model_folders

    if not Path(reference).expanduser().exists():
        for folder in model_folders():
            if (folder / reference).is_dir():
                return str(folder / reference)
    return reference
