"""`transship translate`: vectors of an old encoder in the space of a new one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from transship.cli.options import (
    device_options,
    engine_options,
    memory_option,
    output_options,
    print_json,
    seed_option,
    show,
)
from transship.errors import OptionError
from transship.numerics import MemoryBudget
from transship.progress import Bars

if TYPE_CHECKING:
    from transship.verbs.translate.stores import RowsDone

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group("translate")
def command() -> None:
    """Change the embedding model without embedding everything again.

    A store of vectors is a Parquet file or folder, a .npy file, FOLDER/TABLE.lance, a .faiss index, or
    qdrant:LOCATION#COLLECTION.
    """


def column_options(function: Command) -> Command:
    """Add `--id-column` and `--vector-column`."""
    function = click.option("--vector-column", help="The column or named vector, where its name is unusual.")(
        function
    )
    return click.option("--id-column", help="The column of the ids, where its name is unusual.")(function)


@command.command(
    "fit", epilog="Example: transship translate fit old.parquet new.parquet map --report page.html"
)
@click.argument("old")
@click.argument("new")
@click.argument("map_folder", metavar="MAP", type=click.Path(path_type=Path))
@click.option("--method", default="auto", show_default=True, help="How to map; auto compares and chooses.")
@click.option(
    "-o", "--option", "options", nargs=2, multiple=True, metavar="NAME VALUE", help="A method's field."
)
@click.option(
    "--direction",
    type=click.Choice(["index", "query"]),
    default="index",
    show_default=True,
    help="index: old rows into the new space; query: new queries into the old index.",
)
@click.option("--pairs", type=click.IntRange(50), help="Use at most this many pairs, drawn by seed.")
@click.option(
    "--held-out", default=0.1, show_default=True, type=click.FloatRange(0.01, 0.9), help="Share set aside."
)
@click.option("-k", default=10, show_default=True, type=click.IntRange(1), help="Neighbours that count.")
@click.option(
    "--gate", default=0.25, show_default=True, help="Least forecast recall; below it no map is written."
)
@click.option(
    "--restore/--no-restore", default=None, help="Restore variance; by default where it costs nothing."
)
@click.option("--source-model", default="", help="Name of the old model, kept in the map.")
@click.option("--target-model", default="", help="Name of the new model, kept in the map.")
@click.option(
    "--texts/--no-texts", default=None, help="Whether the texts are still at hand (for the advice)."
)
@click.option(
    "--old-encoder/--no-old-encoder", default=None, help="Whether the old model still runs (likewise)."
)
@click.option("--relevance", help="Judgements: a Parquet table of query_id, doc_id, score.")
@click.option("--queries", help="Query vectors of the new model, for --relevance.")
@click.option("--old-queries", help="Query vectors of the old model, for --relevance.")
@column_options
@output_options
@seed_option
@memory_option
def fit(
    old: str,
    new: str,
    map_folder: Path,
    options: tuple[tuple[str, str], ...],
    relevance: str | None,
    queries: str | None,
    old_queries: str | None,
    id_column: str | None,
    vector_column: str | None,
    as_json: bool,
    report: Path | None,
    memory: str | None,
    **settings: Any,
) -> None:
    """Fit MAP on rows that OLD and NEW share by id, with forecasts of what it is worth."""
    from transship.verbs.translate import Columns, FitSettings, JudgedFiles, fit_map

    if relevance is not None and queries is None:
        raise OptionError(
            "needs the queries' vectors", where="--relevance", fix="add --queries (and --old-queries)"
        )
    fitted = fit_map(
        old,
        new,
        map_folder,
        FitSettings(options=dict(options), curve=report is not None, **settings),
        columns=Columns(id_column, vector_column),
        judged=JudgedFiles(relevance, queries, old_queries) if relevance and queries else None,
        memory=MemoryBudget.parse(memory),
        progress=Bars(),
    )
    page = fitted.page(" ".join(["transship", *sys.argv[1:]]))
    show(page, as_json=as_json, report=report, force=settings["force"])


@command.command("check", epilog="Example: transship translate check map old.parquet new.parquet")
@click.argument("map_folder", metavar="MAP", type=click.Path(path_type=Path))
@click.argument("old")
@click.argument("new")
@click.option("--pairs", "most", type=click.IntRange(50), help="Use at most this many pairs, drawn by seed.")
@click.option("-k", default=10, show_default=True, type=click.IntRange(1), help="Neighbours that count.")
@click.option("--seed", default=0, show_default=True, help="Fixes every random choice.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@engine_options
@memory_option
@column_options
def check(
    map_folder: Path,
    old: str,
    new: str,
    most: int | None,
    k: int,
    seed: int,
    as_json: bool,
    id_column: str | None,
    vector_column: str | None,
    memory: str | None,
    **engine: Any,
) -> None:
    """Measure MAP again, on other pairs of OLD and NEW."""
    with _engine("fit.api", **engine) as workers:
        from transship.verbs.translate import Columns, check_map

        checked = check_map(
            map_folder,
            old,
            new,
            columns=Columns(id_column, vector_column),
            most=most,
            k=k,
            seed=seed,
            engine=workers,
            memory=MemoryBudget.parse(memory),
        )
    show(checked.page(), as_json=as_json)


@command.command("plan", epilog="Example: transship translate plan map vectors.parquet moved.parquet")
@click.argument("map_folder", metavar="MAP", type=click.Path(path_type=Path))
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@memory_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@column_options
def plan(
    map_folder: Path,
    source: str,
    target: str,
    memory: str | None,
    as_json: bool,
    id_column: str | None,
    vector_column: str | None,
) -> None:
    """State rows, bytes, time and memory of applying MAP to IN; nothing is written."""
    from transship.verbs.translate import Columns, load_map, plan_apply

    columns = Columns(id_column, vector_column)
    planned = plan_apply(
        load_map(map_folder), source, target, columns=columns, memory=MemoryBudget.parse(memory)
    )
    if as_json:
        print_json(asdict(planned))
    else:
        click.echo(f"{source} → {target}: {planned}")


@command.command("apply", epilog="Example: transship translate apply map vectors.parquet moved.parquet")
@click.argument("map_folder", metavar="MAP", type=click.Path(path_type=Path))
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@memory_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--force", is_flag=True, help="Replace what is already there.")
@engine_options
@column_options
def apply(
    map_folder: Path,
    source: str,
    target: str,
    memory: str | None,
    as_json: bool,
    force: bool,
    id_column: str | None,
    vector_column: str | None,
    **engine: Any,
) -> None:
    """Translate the rows of IN into OUT; IN is only read, and a stopped run goes on where it stopped."""
    # the other processes start before this one imports what takes time to import
    with _engine("apply.moving", **engine) as workers:
        from transship.verbs.translate import Columns, apply_map, load_map, plan_apply

        saved = load_map(map_folder)
        settings: Any = {
            "columns": Columns(id_column, vector_column),
            "memory": MemoryBudget.parse(memory),
        }
        if saved.direction == "index":
            click.echo(f"{source} → {target}: {plan_apply(saved, source, target, **settings)}", err=True)
        last = _watch(apply_map(saved, source, target, **settings, force=force, engine=workers), "rows")
    if as_json:
        print_json({"rows": last.rows, "map": saved.hash, "out": target})
    else:
        click.echo(f"{last.rows:,} rows in {target}, map {saved.hash[:8]}")


@command.command(
    "embed", epilog="Example: transship translate embed --model minilm-l6 texts.parquet vectors.parquet"
)
@click.argument("texts")
@click.argument("target", metavar="OUT")
@click.option("--model", required=True, help="A folder, a known name or a hub id of an encoder.")
@click.option("--column", help="The column of the texts, where its name is unusual.")
@click.option("--id-column", help="The column of the ids, where its name is unusual.")
@click.option("--prompt", default="", help="Words before every text, as some models want them.")
@click.option(
    "--pooling", type=click.Choice(["mean", "cls", "last", "max"]), help="The model's own by default."
)
@click.option(
    "--normalise/--no-normalise", default=None, help="Unit length; what the model's files say by default."
)
@click.option(
    "--batch-size", default=32, show_default=True, type=click.IntRange(1), help="Texts per forward pass."
)
@device_options
@click.option("--dtype", default=None, help="The dtype the model runs in.")
@click.option("--trust-remote-code", is_flag=True, help="Run code that a model's repository carries.")
@click.option("--force", is_flag=True, help="Replace what is already there.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@engine_options
@memory_option
def embed(
    texts: str,
    target: str,
    model: str,
    as_json: bool,
    memory: str | None,
    engine: Any,
    address: str | None,
    jobs: int | None,
    **settings: Any,
) -> None:
    """Embed TEXTS with a model into the store OUT, ids kept; a stopped run goes on where it stopped."""
    # a model on a GPU has it to itself
    gpus = 1 if settings["device"].startswith("cuda") else 0
    with _engine("apply.embed", engine, address, jobs, gpus) as workers:
        from transship.verbs.translate import embed_texts

        steps = embed_texts(
            model, texts, target, engine=workers, memory=MemoryBudget.parse(memory), **settings
        )
        last = _watch(steps, "texts")
    if as_json:
        print_json({"rows": last.rows, "out": target, "model": model})
    else:
        click.echo(f"{last.rows:,} texts in {target}, by {model}")


@command.command(
    "anchors", epilog="Example: transship translate anchors old.parquet anchors.parquet --count 2000"
)
@click.argument("old")
@click.argument("target", metavar="OUT")
@click.option(
    "--count", default=2000, show_default=True, type=click.IntRange(50), help="How many rows to choose."
)
@click.option(
    "--way",
    type=click.Choice(["random", "farthest", "kmeans"]),
    default="random",
    show_default=True,
    help="kmeans found 0.01 to 0.02 more of the top 10 with 500 anchors; farthest no more than random.",
)
@click.option("--measure", metavar="NEW", help="Vectors of the new model: compare the three ways on them.")
@memory_option
@click.option("--seed", default=0, show_default=True, help="Fixes every random choice.")
@click.option("--force", is_flag=True, help="Replace what is already there.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@column_options
def anchors(
    old: str,
    target: str,
    count: int,
    way: Any,
    measure: str | None,
    memory: str | None,
    seed: int,
    force: bool,
    as_json: bool,
    id_column: str | None,
    vector_column: str | None,
) -> None:
    """Choose rows of OLD to embed with the new model, and write their ids into OUT (Parquet)."""
    from transship.verbs.translate import Columns, choose_anchors

    summary = choose_anchors(
        old,
        target,
        count=count,
        way=way,
        measure=measure,
        columns=Columns(id_column, vector_column),
        seed=seed,
        force=force,
        memory=MemoryBudget.parse(memory),
    )
    if as_json:
        print_json(summary)
        return
    click.echo(f"{summary['count']:,} of {summary['rows']:,} ids in {target}, chosen by {way}")
    for name, recall in summary.get("recall", {}).items():
        click.echo(f"  {name}: held-out recall@10 {recall:.3f}")


def _engine(home: str, engine: Any, address: str | None, jobs: int | None, gpus: float = 0) -> Any:
    from transship.verbs.translate import choose_engine

    home = f"transship.verbs.translate.{home}"
    return choose_engine(engine, address=address, jobs=jobs, gpus=gpus, home=home)


def _watch(steps: Iterable[RowsDone], what: str) -> RowsDone:
    """Follow a run: one moving line with the time left on a terminal, plain lines elsewhere."""
    last: RowsDone | None = None
    bars = Bars(unit=what)
    for last in steps:
        bars("translate", last.done, last.rows)
    assert last is not None
    return last
