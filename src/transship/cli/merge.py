"""`transship merge`: many fine-tunes into one model, by a recipe or one after another."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transship import parallel
from transship.cli.options import (
    device_options,
    local_model,
    memory_option,
    model_options,
    output_options,
    print_json,
    seed_option,
)

if TYPE_CHECKING:
    from transship.verbs.merge.fusion.engine import Fusion
    from transship.verbs.merge.plan import MergePlan
    from transship.verbs.merge.recipe.plan.adapters import AdapterMerge

RECIPE = click.argument("recipe", type=click.Path(dir_okay=False, path_type=Path))
OUT = click.argument("out", type=click.Path(file_okay=False, path_type=Path))
PICKLE = click.option("--allow-pickle", is_flag=True, help="Read .bin and .pt files too (weights only).")


@click.group("merge")
def command() -> None:
    """Join many fine-tunes into one model."""


@command.command("plan", epilog="Example: transship merge plan recipe.yaml")
@RECIPE
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON, every tensor of it.")
@memory_option
@PICKLE
def plan_command(recipe: Path, as_json: bool, memory: str | None, allow_pickle: bool) -> None:
    """Show what RECIPE will do: tensors, tokens, bytes and memory. No weights are read.

    What `merge run` with the same --memory would refuse is refused.
    """
    from transship.numerics import parse_bytes
    from transship.verbs.merge.api import merge

    merged = merge(recipe, allow_pickle=allow_pickle)
    if memory is not None:
        merged.check_memory(parse_bytes(memory))
    found = merged.plan
    if as_json:
        print_json(found.as_dict())
    else:
        click.echo(found.text())


@command.command("run", epilog="Example: transship merge run recipe.yaml merged")
@RECIPE
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--seed", type=int, default=None, help="Fixes the random methods; the recipe's seed by default."
)
@click.option(
    "--jobs", type=int, default=1, show_default=True, help="Threads that make tensors; same result for any."
)
@memory_option
@device_options
@click.option("--dtype", default=None, help="What models run in where data is read; float32 by default.")
@PICKLE
@output_options
def run_command(
    recipe: Path,
    out: Path,
    seed: int | None,
    jobs: int,
    memory: str | None,
    device: str,
    device_map: str | None,
    dtype: str | None,
    allow_pickle: bool,
    as_json: bool,
    report: Path | None,
    force: bool,
) -> None:
    """Carry RECIPE out and write the merged model to the folder OUT.

    Recipes are written as mergekit documents them; docs/from-mergekit.md lists what differs.
    """
    from transship.numerics import parse_bytes
    from transship.progress import Bars
    from transship.verbs.merge.api import merge

    merged = merge(recipe, seed=seed, allow_pickle=allow_pickle)
    limit = None if memory is None else parse_bytes(memory)
    merged.threads(jobs, limit)
    click.echo(_not_merged(merged.plan) if as_json else merged.plan.text(), err=True, nl=not as_json)
    result = merged.run(
        out,
        force=force,
        jobs=jobs,
        memory=limit,
        progress=Bars(),
        opening={"device": device, "device_map": device_map, "dtype": dtype},
    )
    if not parallel.is_main():
        return
    if report is not None:
        result.report(report, force=force)
    if as_json:
        print_json(result.as_dict())
    else:
        for line in result.lines():
            click.echo(line, err=True)
        click.echo(str(out))


def _not_merged(plan: MergePlan | AdapterMerge) -> str:
    """Return the lines of a plan on tensors that are not merged, as not all models have them."""
    lines = plan.text().splitlines(keepends=True)
    return "".join(line.rstrip() + "\n" for line in lines if line.startswith(("copied ", "dropped ")))


def _model_choices(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say how models are opened and run."""
    return model_options(device_options(function))


@command.command(
    "start", epilog="Example: transship merge start merged --base all-MiniLM-L6-v2 --keep-inputs 500"
)
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--base", required=True, help="The model that all fine-tunes were made from.")
@click.option(
    "--method",
    default="auto",
    show_default=True,
    help="How models join; see `transship methods merge`. auto: average.",
)
@click.option(
    "-o", "--option", nargs=2, multiple=True, metavar="NAME VALUE", help="A parameter of the method."
)
@click.option(
    "--heads",
    multiple=True,
    default=("auto",),
    show_default=True,
    help="own, tuned, tuned-fresh, carried-once, carried, carried-polished; several are compared, the first "
    "is saved. auto: carried-polished with kept inputs, carried-once without.",
)
@click.option(
    "--head-option", nargs=2, multiple=True, metavar="NAME VALUE", help="A setting of how heads are fitted."
)
@click.option(
    "--keep-inputs",
    default=0,
    show_default=True,
    metavar="N",
    help="How many inputs of each task may be kept in OUT; heads stay fresh with some.",
)
@click.option(
    "--strength",
    default="auto",
    show_default=True,
    help="Of the merged vector: a number, norm or validation. auto: norm for method auto with kept inputs, "
    "else 1.",
)
@click.option("--batch-size", default=64, show_default=True, help="Inputs per forward pass.")
@seed_option
@_model_choices
@memory_option
@click.option("--force", is_flag=True, help="Replace what is already there.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def start_command(out: Path, base: str, **given: Any) -> None:
    """Start a fusion in the folder OUT: fine-tunes of one base will join it one after another."""
    from transship.atomic import check_target
    from transship.verbs.merge.fusion import Fusion

    check_target(out, force=given["force"])
    if given["memory"] is not None:
        _check_start(given["memory"], base)
    fusion = Fusion(
        local_model(base),
        given["method"],
        options=dict(given["option"]),
        heads=given["heads"],
        head_options=dict(given["head_option"]),
        keep_inputs=given["keep_inputs"],
        strength=given["strength"],
        seed=given["seed"],
        batch_size=given["batch_size"],
        device=given["device"],
        device_map=given["device_map"],
        trust_remote_code=given["trust_remote_code"],
        allow_pickle=given["allow_pickle"],
    )
    fusion.save(out, force=given["force"])
    _show_status(out, given["as_json"])


@command.command("add", epilog="Example: transship merge add merged tuned-trec --data trec.parquet")
@OUT
@click.argument("tuned")
@click.option("--data", default=None, help="Inputs of the task; test rows in it are only measured on.")
@click.option("--column", default=None, help="The column of DATA that holds the inputs.")
@click.option("--label", default=None, help="The column of DATA that holds the labels.")
@click.option("--test", default=None, help="Other data to measure on.")
@click.option("--name", default=None, help="What the task is called; the folder's name by default.")
@click.option("--inputs", default=1000, show_default=True, help="At most so many inputs are read.")
@click.option(
    "--test-rows", default=1000, show_default=True, help="At most so many test rows are measured on."
)
@_model_choices
@memory_option
@output_options
def add_command(out: Path, tuned: str, **given: Any) -> None:
    """Let the fine-tune TUNED (a folder, a hub id or an adapter) join the fusion in OUT.

    A killed run leaves OUT as it was, and the same command can be run again.
    """
    columns = {name: given[name] for name in ("column", "label") if given[name] is not None}

    def work(fusion: Fusion) -> None:
        from transship.data import load

        data = None if given["data"] is None else load(given["data"], **columns)
        test = None if given["test"] is None else load(given["test"], **columns)
        _check_memory(given["memory"], fusion, tuned, data)
        reopen, rows = None, given["test_rows"]
        if test is not None:
            reopen = {"test": {"reference": _full(given["test"]), "rows": rows, **columns}}
        elif data is not None and data.splits is not None:
            reopen = {"test": {"reference": _full(given["data"]), "split": "test", "rows": rows, **columns}}
        fusion.add(
            local_model(tuned),
            data,
            test=test,
            name=given["name"],
            inputs=given["inputs"],
            test_rows=rows,
            reopen=reopen,
        )

    _change(out, given, work)


@command.command("remove", epilog="Example: transship merge remove merged tuned-trec")
@OUT
@click.argument("tuned")
@click.option("--data", default=None, help="The same data as when it was added, where the method reads any.")
@click.option("--column", default=None, help="The column of DATA that holds the inputs.")
@click.option("--label", default=None, help="The column of DATA that holds the labels.")
@_model_choices
@memory_option
@output_options
def remove_command(out: Path, tuned: str, **given: Any) -> None:
    """Take the fine-tune TUNED out of the fusion in OUT again, as if it had never joined.

    Only where the method's state is a sum over models: average, task-arithmetic, regmean, fisher.
    """
    columns = {name: given[name] for name in ("column", "label") if given[name] is not None}

    def work(fusion: Fusion) -> None:
        from transship.data import load

        data = None if given["data"] is None else load(given["data"], **columns)
        _check_memory(given["memory"], fusion, tuned, data)
        fusion.remove(local_model(tuned), data)

    _change(out, given, work)


@command.command("status", epilog="Example: transship merge status merged")
@OUT
@memory_option
@output_options
def status_command(out: Path, memory: str | None, as_json: bool, report: Path | None, force: bool) -> None:
    """Show what is in the fusion in OUT: tasks, accuracies, and the bytes that it keeps."""
    from transship.numerics import MemoryBudget

    # a page runs the merged model on kept inputs, which takes what starting does
    MemoryBudget.parse(memory).require(0, f"reading {out}")
    if report is not None:
        if memory is not None:
            _check_start(memory, str(out))
        from transship.verbs.merge.fusion import Fusion

        Fusion.load(out).report(report, force=force)
    _show_status(out, as_json)


def _check_start(allowed: str, base: str) -> None:
    """Refuse a base that does not fit: its weights as they are run, once more while they are written."""
    from transship.checkpoints.footprint import Footprint
    from transship.numerics import MemoryBudget

    model = Footprint.of(local_model(base))
    MemoryBudget.parse(allowed).require(3 * model.weights + model.forward(1), f"reading {base}")


def _check_memory(allowed: str | None, fusion: Fusion, tuned: str, data: Any) -> None:
    """Refuse a fine-tune that does not fit; leaving takes what joining does."""
    if allowed is None:
        return
    from transship.numerics import MemoryBudget
    from transship.verbs.merge.fusion.needs import adding_bytes

    MemoryBudget.parse(allowed).require(adding_bytes(fusion, local_model(tuned), data), f"reading {tuned}")


def _change(out: Path, given: dict[str, Any], work: Callable[[Any], None]) -> None:
    from transship.atomic import check_target, locked
    from transship.verbs.merge.fusion import Fusion
    from transship.verbs.merge.fusion.state import read_about

    read_about(out)
    if given["report"] is not None:
        check_target(given["report"], force=given["force"])
    opening = {name: given[name] for name in ("device", "device_map", "trust_remote_code", "allow_pickle")}
    with locked(out) if parallel.is_main() else contextlib.nullcontext():
        fusion = Fusion.load(out, **opening)
        work(fusion)
        if not parallel.is_main():
            return
        fusion.save(out, force=True)
    if given["report"] is not None:
        with parallel.apart():  # the page runs models again, and the others have left off
            fusion.report(given["report"], force=given["force"])
    _show_status(out, given["as_json"])


def _show_status(out: Path, as_json: bool) -> None:
    from transship.verbs.merge.fusion.status import status, status_lines

    found = status(out)
    if as_json:
        print_json(found)
    else:
        click.echo("\n".join(status_lines(found)))


def _full(reference: str) -> str:
    """Return a file's full path; names of data folders and hub ids as they are."""
    path = Path(reference).expanduser()
    return str(path.resolve()) if path.exists() else reference
