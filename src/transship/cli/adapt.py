"""`transship adapt`: a pretrained transformer for data of another modality."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transship.cli.options import memory_option, output_options, print_json, seed_option, trust_option
from transship.errors import TransshipWarning

if TYPE_CHECKING:
    from transship.verbs.adapt.api import Fitted


@click.group("adapt")
def command() -> None:
    """Fit a pretrained transformer to data that it has never seen: series, fields, tables, tokens."""


def data_options(function: Any) -> Any:
    """Add the options that say where inputs and targets stand."""
    function = click.option("--column", default=None, help="The column that holds the inputs.")(function)
    return click.option("--label", default=None, help="The column that holds the targets.")(function)


@command.command(
    "fit",
    epilog="Example: transship adapt fit --backbone minilm-l6 --train ucr_ECG5000 ecg-model",
)
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--backbone", required=True, help="A BERT, RoBERTa, MPNet, DistilBERT, ViT or Swin model.")
@click.option(
    "--train", required=True, metavar="DATA", help="Inputs with targets; of splits, only train is read."
)
@click.option(
    "--task",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "classification", "multilabel", "regression", "dense"]),
    help="What is predicted.",
)
@data_options
@click.option("--method", default=None, help="How to adapt; see `transship methods adapt`.")
@click.option(
    "-o", "--option", nargs=2, multiple=True, metavar="NAME VALUE", help="A parameter of the method."
)
@click.option(
    "--proxy", default="auto", show_default=True, help="Labelled data of the backbone's own modality."
)
@click.option("--proxy-items", default=2400, show_default=True, help="The most of them.")
@click.option(
    "--kind",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "series", "grid", "tokens", "tabular"]),
    help="What inputs are.",
)
@click.option("--tokens", default=32, show_default=True, help="The most tokens per series.")
@click.option("--patch", default=None, type=int, help="Samples per token, or the side of a patch.")
@click.option(
    "--stem",
    default="patch",
    show_default=True,
    type=click.Choice(["patch", "multiscale", "rocket"]),
    help="What a token sees of a series: its patch, longer windows too, or random convolutions.",
)
@click.option(
    "--missing",
    default="refuse",
    show_default=True,
    type=click.Choice(["refuse", "fill"]),
    help="What to do about NaN.",
)
@click.option(
    "--base",
    default=None,
    help="The raw model that the network corrects: rocket, ridge, logistic, none; the best one otherwise.",
)
@click.option(
    "--predictor",
    default="linear",
    show_default=True,
    type=click.Choice(["linear", "transport", "pooled"]),
    help="A linear head, label transport, or a dense head without weights.",
)
@click.option(
    "--freeze-embedder",
    default="no",
    show_default=True,
    type=click.Choice(["no", "yes"]),
    help="Leave the embedder as stage 1 made it.",
)
@click.option(
    "--lora-rank", default=0, show_default=True, help="Train the body by LoRA factors of this rank."
)
@click.option("--omega", default="grid", show_default=True, help="ω, or grid.")
@click.option("--sensitivity", default=None, metavar="ω,ω,…", help="Fit again with each ω, for the report.")
@click.option(
    "--path", default=None, type=int, metavar="N", help="Fit again from N points along stage 1, too."
)
@click.option("--metric", default=None, help="What validation chooses by; the task's usual one by default.")
@click.option("--loss", default=None, help="Of stage 2; the task's usual one by default.")
@click.option(
    "--epochs", default=None, type=int, help="Passes over the rows in stage 2; by their number otherwise."
)
@click.option("--steps", default=None, type=int, help="Steps of stage 2, instead of epochs.")
@click.option("--batch-size", default=None, type=int, help="Rows per batch; by their number otherwise.")
@click.option("--accumulation", default=1, show_default=True, help="Batches per step.")
@click.option("--learning-rate", default=2e-4, show_default=True, help="Of the body.")
@click.option(
    "--embedder-factor", default=10.0, show_default=True, help="Embedder and head learn so much faster."
)
@click.option(
    "--patience", default=None, type=int, help="Stop after so many validations without a better one."
)
@click.option(
    "--validation",
    default="0.2",
    show_default=True,
    help="A share of the rows, or other data: of splits, only validation is read.",
)
@click.option("--no-baseline", is_flag=True, help="Do not run the raw baselines.")
@click.option(
    "--precision",
    default="no",
    show_default=True,
    type=click.Choice(["no", "bf16", "fp16"]),
    help="Mixed precision.",
)
@click.option(
    "--device", default="auto", show_default=True, help="auto for accelerate's choice, or cpu, cuda:1, mps."
)
@seed_option
@trust_option
@memory_option
@output_options
def fit_command(
    out: Path,
    option: tuple[tuple[str, str], ...],
    sensitivity: str | None,
    path: int | None,
    no_baseline: bool,
    validation: str,
    omega: str,
    report: Path | None,
    as_json: bool,
    force: bool,
    train: str,
    column: str | None,
    label: str | None,
    memory: str | None,
    **settings: Any,
) -> None:
    """Fit a model to the data TRAIN and write it into the folder OUT.

    Raw baselines come first: linear models on the values and on random convolutions of them, in seconds.
    What they reach on the validation rows stands beside the adapted model's figure, with a word on which to
    use. A fit that was killed goes on where it was when the same command runs again.
    """
    from transship.atomic import check_target
    from transship.verbs.adapt import api

    parameters = {name: value for name, value in settings.items() if value is not None}
    parameters |= {
        "freeze_embedder": parameters["freeze_embedder"] == "yes",
        "omega": _number(omega),
        "method_options": dict(option) or None,
        "verbose": True,
    }
    if report is not None:
        check_target(report, force=force)
    omegas = api.read_omegas(sensitivity, parameters) if sensitivity else []
    if path is not None:
        api.broken_off(str(parameters.get("method", "recraft")), parameters["method_options"], path)
    warnings.simplefilter("ignore", TransshipWarning)  # they are among the notes that are printed
    from transship.numerics import MemoryBudget

    fitted = api.fit(
        train,
        out,
        memory=MemoryBudget.parse(memory),
        column=column,
        label=label,
        validation=_number(validation),
        compare=not no_baseline,
        force=force,
        tell=lambda line: click.echo(line, err=True),
        **parameters,
    )
    if omegas:  # in all processes: they share these fits too
        api.sensitivity(fitted, omegas)
    if path is not None:
        api.path(fitted, path)
    if not fitted.main:
        return
    if report is not None:
        api.write_report(fitted, report, "transship " + " ".join(sys.argv[1:]), force=force)
    if as_json:
        print_json(api.as_json(fitted.summary()))
        return
    _print_fit(fitted)


@command.command("predict", epilog="Example: transship adapt predict ecg-model ucr_ECG5000 --split test")
@click.argument("model", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("reference", metavar="DATA")
@data_options
@click.option("--split", default=None, help="Read one split only.")
@click.option(
    "--out",
    default=None,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write .csv, .parquet or .npy.",
)
@memory_option
@click.option("--force", is_flag=True, help="Replace what is already there.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def predict_command(
    model: Path,
    reference: str,
    column: str | None,
    label: str | None,
    split: str | None,
    out: Path | None,
    memory: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Predict for DATA with the model in MODEL, and measure where DATA has targets."""
    from transship.numerics import MemoryBudget
    from transship.verbs.adapt import api

    made, metrics, rows = api.predict(
        model,
        reference,
        column=column,
        label=label,
        split=split,
        out=out,
        force=force,
        memory=MemoryBudget.parse(memory),
    )
    if as_json:
        few = made.tolist() if out is None else None
        print_json(
            api.as_json({"rows": len(made), "metrics": metrics, "predictions": few, "out": out and str(out)})
        )
        return
    for name, value in metrics.items():
        if value == value:
            click.echo(f"{name}: {value:.4f}")
    if out is not None:
        click.echo(f"{len(made):,} predictions in {out}")
    elif not metrics:
        for one, value in zip(rows.ids[:20], made[:20], strict=False):
            click.echo(f"{one}\t{value}")


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
    column: str | None,
    label: str | None,
    split: str | None,
    memory: str | None,
    seed: int,
    report: Path | None,
    as_json: bool,
    force: bool,
) -> None:
    """Measure the terms of Theorem 7 for the model in MODEL on DATA that did not train it."""
    from transship.atomic import check_target
    from transship.numerics import MemoryBudget
    from transship.verbs.adapt import api

    if report is not None:
        check_target(report, force=force)
    budget = MemoryBudget.parse(memory)
    found = api.bound(model, reference, column=column, label=label, split=split, seed=seed, memory=budget)
    if report is not None:
        api.bound_report(found, str(model), report, force=force)
    if as_json:
        print_json(api.as_json(found.to_dict()))
        return
    for name, value in found.bars().items():
        click.echo(f"{name + ':':28}{value:8.4f}")
    click.echo(f"{'bound:':28}{found.total:8.4f}")
    click.echo(f"{'target error:':28}{found.err_target:8.4f}   {'holds' if found.holds else 'does not hold'}")
    for caveat in found.caveats:
        click.echo(f"- {caveat}")


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _print_fit(fitted: Fitted) -> None:
    about = fitted.model.adapted_.about
    metric = about["metric"]
    click.echo(f"{'model':28}{'validation ' + metric:>24}")
    click.echo(f"{'adapted (' + about['method'] + ')':28}{about['validation'][metric]:24.4f}")
    for row in about["baselines"]:
        click.echo(f"{'raw ' + row['name']:28}{row['validation']:24.4f}")
    if about["advice"]:
        click.echo(about["advice"])
    for note in about["notes"]:
        click.echo(f"- {note}")
    click.echo(f"model in {fitted.folder}")
