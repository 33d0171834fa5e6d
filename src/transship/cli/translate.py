"""`transship translate`: vectors of an old encoder in the space of a new one."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transship.cli.options import (
    engine_options,
    memory_option,
    output_options,
    print_json,
    pushing,
    read_settings,
    seed_option,
    settings_options,
    show,
    writing,
)
from transship.errors import OptionError
from transship.numerics import MemoryBudget
from transship.progress import Bars
from transship.verbs import translate
from transship.verbs.translate.settings import (
    AnchorSettings,
    Columns,
    EncoderSettings,
    FitSettings,
    JudgedFiles,
)

if TYPE_CHECKING:
    from transship.verbs.translate.stores import RowsDone

column_options = settings_options(Columns)
map_argument = click.argument("map_folder", metavar="MAP", type=click.Path(path_type=Path))
force_option = click.option("--force", is_flag=True, help="Replace what is already there.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@click.group("translate", epilog="Example: transship translate fit old.parquet new.parquet map")
def command() -> None:
    """Change the embedding model and keep the vectors.

    A store of vectors is a Parquet file or folder, a .npy file, FOLDER/TABLE.lance, a .faiss index, or
    qdrant:LOCATION#COLLECTION.
    """


@command.command(
    "fit", epilog="Example: transship translate fit old.parquet new.parquet map --report page.html"
)
@click.argument("old")
@click.argument("new")
@map_argument
@click.option(
    "-o",
    "--option",
    "options",
    nargs=2,
    multiple=True,
    metavar="NAME VALUE",
    help="A parameter of the method.",
)
@settings_options(FitSettings, without=("seed",))
@settings_options(JudgedFiles)
@column_options
@output_options
@seed_option
@memory_option
@pushing("map_folder")
def fit(old: str, new: str, map_folder: Path, options: Any, **given: Any) -> None:
    """Fit a map between the vectors of two encoders.

    OLD and NEW share rows by id. Forecasts say what the map is worth; it is written to the folder MAP.
    """
    if given["table"] and not given["queries"]:
        raise OptionError(
            "needs the queries' vectors", where="--relevance", fix="add --queries (and --old-queries)"
        )
    page, force = given["report"], given["force"]
    with writing(map_folder):
        fitted = translate.fit_map(
            old,
            new,
            map_folder,
            read_settings(FitSettings, given, options=dict(options), curve=page is not None, force=force),
            columns=read_settings(Columns, given),
            judged=read_settings(JudgedFiles, given) if given["table"] else None,
            memory=MemoryBudget.parse(given["memory"]),
            progress=Bars(),
        )
    line = " ".join(["transship", *sys.argv[1:]])
    show(fitted.page(line), as_json=given["as_json"], report=page, force=force)


@command.command("check", epilog="Example: transship translate check map old-more.parquet new-more.parquet")
@map_argument
@click.argument("old")
@click.argument("new")
@settings_options(FitSettings, only=("pairs", "k", "seed"))
@json_option
@engine_options
@memory_option
@column_options
def check(map_folder: Path, old: str, new: str, **given: Any) -> None:
    """Measure a map on pairs that it was not fitted on.

    Pairs of OLD and NEW that MAP was fitted on are left out. If hardly any others are left, they are measured
    too, and their number is printed.
    """
    with _engine("fit.api", given) as workers:
        checked = translate.check_map(
            map_folder,
            old,
            new,
            columns=read_settings(Columns, given),
            most=given["pairs"],
            k=given["k"],
            seed=given["seed"],
            engine=workers,
            memory=MemoryBudget.parse(given["memory"]),
        )
    show(checked.page(), as_json=given["as_json"])


@command.command("plan", epilog="Example: transship translate plan map vectors.parquet moved.parquet")
@map_argument
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@memory_option
@json_option
@column_options
def plan(map_folder: Path, source: str, target: str, **given: Any) -> None:
    """State rows, bytes, time and memory of a translation.

    This is the plan for applying MAP to IN. Nothing is written.
    """
    planned = translate.plan_apply(translate.load_map(map_folder), source, target, **_reading(given))
    if given["as_json"]:
        print_json(asdict(planned))
    else:
        click.echo(f"{source} → {target}: {planned}")


@command.command("apply", epilog="Example: transship translate apply map vectors.parquet moved.parquet")
@map_argument
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@memory_option
@json_option
@force_option
@engine_options
@column_options
def apply(map_folder: Path, source: str, target: str, **given: Any) -> None:
    """Translate the rows of a store into another store.

    IN is only read. If a run is stopped, the same command continues it.
    """
    with _engine("apply", given) as workers:
        # torch is first imported here, after the other processes have started
        saved, reading = translate.load_map(map_folder), _reading(given)
        if saved.direction == "index":
            planned = translate.plan_apply(saved, source, target, **reading)
            click.echo(f"{source} → {target}: {planned}", err=True)
        steps = translate.apply_map(saved, source, target, **reading, force=given["force"], engine=workers)
        last = _watch(steps, "rows", target)
    if given["as_json"]:
        print_json({"rows": last.rows, "map": saved.hash, "out": target})
    else:
        click.echo(f"{last.rows:,} rows in {target}, map {saved.hash[:8]}")


@command.command(
    "embed", epilog="Example: transship translate embed --model minilm-l6 texts.parquet vectors.parquet"
)
@click.argument("texts")
@click.argument("target", metavar="OUT")
@click.option("--model", required=True, help="A folder, a known name or a hub id of an encoder.")
@click.option("--column", help="The column of the texts; several as title,text are joined.")
@click.option("--id-column", help="The column of the ids, where its name is unusual.")
@settings_options(EncoderSettings)
@force_option
@json_option
@engine_options
@memory_option
def embed(texts: str, target: str, model: str, **given: Any) -> None:
    """Embed texts with a model into a store.

    The rows of OUT keep the ids of TEXTS. If a run is stopped, the same command continues
    it.
    """
    # a model on a GPU has it to itself; Ray hides GPUs from work that asks for none
    with _engine("embed", given, gpus=1 if given["device"].startswith("cuda") else 0) as workers:
        steps = translate.embed_texts(
            model,
            texts,
            target,
            engine=workers,
            memory=MemoryBudget.parse(given["memory"]),
            **{name: given[name] for name in ("column", "id_column", "force")},
            **asdict(read_settings(EncoderSettings, given)),
        )
        last = _watch(steps, "texts", target)
    if given["as_json"]:
        print_json({"rows": last.rows, "out": target, "model": model})
    else:
        click.echo(f"{last.rows:,} texts in {target}, by {model}")


@command.command(
    "anchors", epilog="Example: transship translate anchors old.parquet anchors.parquet --count 2000"
)
@click.argument("old")
@click.argument("target", metavar="OUT")
@settings_options(AnchorSettings)
@memory_option
@force_option
@json_option
@column_options
def anchors(old: str, target: str, **given: Any) -> None:
    """Choose the rows that the new model should embed first.

    Their ids are written to OUT, a Parquet file. A map is then fitted on these rows of OLD.
    """
    settings = asdict(read_settings(AnchorSettings, given))
    summary = translate.choose_anchors(old, target, **settings, **_reading(given), force=given["force"])
    if given["as_json"]:
        print_json(summary)
        return
    click.echo(f"{summary['count']:,} of {summary['rows']:,} ids in {target}, chosen by {summary['way']}")
    for name, recall in summary.get("recall", {}).items():
        click.echo(f"  {name}: held-out recall@10 {recall:.3f}")


def _reading(given: dict[str, Any]) -> dict[str, Any]:
    """Return what every step that reads a store is told."""
    return {"columns": read_settings(Columns, given), "memory": MemoryBudget.parse(given["memory"])}


def _engine(home: str, given: dict[str, Any], gpus: float = 0) -> Any:
    home = f"transship.verbs.translate.{home}"
    return translate.choose_engine(
        given["engine"], address=given["address"], jobs=given["jobs"], gpus=gpus, home=home
    )


def _watch(steps: Iterable[RowsDone], what: str, target: str) -> RowsDone:
    """Follow a run: one moving line with the time left on a terminal, plain lines elsewhere."""
    last: RowsDone | None = None
    bars = Bars(unit=what)
    try:
        for last in steps:
            bars("translate", last.done, last.rows)
    except KeyboardInterrupt as stop:
        if last is not None and last.done:
            stop.add_note(
                f"of {last.done:,} of {last.rows:,} {what} the finished parts are kept beside {target}, and "
                "the same command goes on from there"
            )
        raise
    assert last is not None
    return last
