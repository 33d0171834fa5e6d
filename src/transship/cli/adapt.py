"""`transship adapt`: a pretrained transformer for data of another modality."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from transship.atomic import check_target
from transship.cli.options import (
    memory_option,
    output_options,
    pushing,
    read_settings,
    seed_option,
    settings_options,
    show,
    writing,
)
from transship.errors import TransshipWarning
from transship.numerics import MemoryBudget
from transship.verbs import adapt
from transship.verbs.adapt.settings import CommandSettings

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group("adapt", epilog="Example: transship adapt fit --train ucr_ECG5000 ecg-model")
def command() -> None:
    """Fit a pretrained transformer to new kinds of data.

    These are series, fields, tables and tokens.
    """


def data_options(function: Command) -> Command:
    """Add the options that say where inputs and targets stand."""
    function = click.option("--column", default=None, help="The column that holds the inputs.")(function)
    return click.option("--label", default=None, help="The column that holds the targets.")(function)


@command.command(
    "fit", epilog="Example: transship adapt fit --backbone minilm-l6 --train ucr_ECG5000 ecg-model"
)
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--train",
    required=True,
    metavar="DATA",
    help="Inputs with targets; of splits, only train is learned.",
)
@data_options
@click.option(
    "-o", "--option", nargs=2, multiple=True, metavar="NAME VALUE", help="A parameter of the method."
)
@settings_options(CommandSettings)
@click.option("--sensitivity", default=None, metavar="ω,ω,…", help="Fit again with each ω, for the report.")
@click.option(
    "--path",
    default=None,
    type=click.IntRange(max=1000),
    metavar="N",
    help="Also fit again from N points along stage 1.",
)
@memory_option
@output_options
@pushing()
def fit_command(
    out: Path,
    train: str,
    column: str | None,
    label: str | None,
    option: tuple[tuple[str, str], ...],
    sensitivity: str | None,
    path: int | None,
    memory: str | None,
    report: Path | None,
    as_json: bool,
    force: bool,
    **given: Any,
) -> None:
    """Fit a model to data and write it to a folder.

    First it fits raw models: models on the values, and on random convolutions of them, which take seconds.
    Their validation errors are printed next to that of the adapted model, with advice on which to use. If a
    fit is killed, the same command continues it.
    """
    settings = read_settings(CommandSettings, given, method_options=dict(option) or None, verbose=True)
    if report is not None:
        check_target(report, force=force, kind="file", reads={"TRAIN": train})
    omegas = adapt.api.read_omegas(sensitivity, settings) if sensitivity else []
    if path is not None:
        adapt.api.broken_off(settings, path)
    warnings.simplefilter("ignore", TransshipWarning)  # they are among the notes that are printed
    with writing(out):
        result = adapt.api.fit(
            train,
            out,
            settings,
            column=column,
            label=label,
            force=force,
            tell=lambda line: click.echo(line, err=True),
            memory=MemoryBudget.parse(memory),
        )
    if omegas:  # in all processes: they share these fits too
        result = adapt.api.sensitivity(result, omegas)
    if path is not None:
        result = adapt.api.path(result, path)
    if result.main:
        page = result.page("transship " + " ".join(sys.argv[1:]), pictures=report is not None)
        show(page, as_json=as_json, report=report, force=force)


@command.command("predict", epilog="Example: transship adapt predict ecg-model ucr_ECG5000 --split test")
@click.argument("model", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("reference", metavar="DATA")
@data_options
@click.option("--split", default=None, help="Read one split only.")
@click.option(
    "--use",
    default="auto",
    show_default=True,
    help="Which model answers: adapted, or a raw one by name; auto: the one that `adapt fit` advised.",
)
@click.option(
    "--out",
    default=None,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write .csv, .parquet or .npy.",
)
@memory_option
@click.option("--force", is_flag=True, help="Replace what is already there.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def predict_command(model: Path, reference: str, memory: str | None, as_json: bool, **options: Any) -> None:
    """Predict with an adapted model.

    MODEL predicts for DATA. Where DATA has targets, the predictions are measured too.
    """
    predictions = adapt.api.predict(model, reference, memory=MemoryBudget.parse(memory), **options)
    show(predictions.page(), as_json=as_json)


@command.command("bound", epilog="Example: transship adapt bound ecg-model ucr_ECG5000 --split test")
@click.argument("model", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("reference", metavar="DATA")
@data_options
@click.option("--split", default=None, help="Read one split only.")
@memory_option
@seed_option
@output_options
def bound_command(
    model: Path,
    reference: str,
    memory: str | None,
    report: Path | None,
    as_json: bool,
    force: bool,
    **options: Any,
) -> None:
    """Measure the terms of the paper's bound (Theorem 7).

    They are measured for the model in MODEL, on DATA that did not train it.
    """
    if report is not None:
        check_target(report, force=force, kind="file", reads={"DATA": reference, "MODEL": model})
    terms = adapt.api.bound(model, reference, memory=MemoryBudget.parse(memory), **options)
    show(adapt.result.bound_page(terms, str(model)), as_json=as_json, report=report, force=force)
