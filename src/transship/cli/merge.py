"""`transship merge`: many fine-tunes into one model, by a recipe or one after another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import transship as ts
from transship import parallel
from transship.atomic import check_target
from transship.cli.options import (
    device_options,
    memory_option,
    model_options,
    output_options,
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
from transship.verbs.merge.settings import (
    AddSettings,
    PlanSettings,
    RemoveSettings,
    RunSettings,
    StartSettings,
)

if TYPE_CHECKING:
    from transship.data import Dataset
    from transship.verbs.merge.fusion import Fusion

RECIPE = click.argument("recipe", type=click.Path(dir_okay=False, path_type=Path))
OUT = click.argument("out", type=click.Path(file_okay=False, path_type=Path))
NEW = click.argument("out", type=click.Path(path_type=Path))
OPENING = ("device", "device_map", "trust_remote_code", "allow_pickle")


# options of mergekit-yaml that have no meaning here → what there is instead; with a star they take a value
MERGEKIT = {
    "--lora-merge-cache*": "adapters are added from their factors while they are read, so there is no cache",
    "--lora-merge-dtype*": "adapters are added in float32",
    "--transformers-cache*": "set HF_HOME to move the hub's cache",
    "--random-seed*": "use --seed",
    "--num-threads*": "use --jobs",
    "--lazy-unpickle": "tensors are always read one at a time; --allow-pickle opens .bin files",
    "--low-cpu-memory": "use --memory SIZE to bound the memory",
    "--read-to-gpu": "tensors are merged on the processor",
    "--multi-gpu": "tensors are merged on the processor; use --device-map where data is read",
    "--gpu-rich": "tensors are merged on the processor; use --device where data is read",
    "--clone-tensors": "tied tensors are written once",
    "--async-write": "use --jobs: the writer does not wait for the threads that merge",
    "--safe-serialization": "weights are always written as safetensors",
}


def _mergekit_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of mergekit-yaml: under their names where they mean something, else hidden."""
    for flag in reversed(MERGEKIT):
        name = flag.rstrip("*")
        function = click.option(name, is_flag=not flag.endswith("*"), default=None, hidden=True)(function)
    both = {"copy-tokenizer": "Write the tokenizer's files.", "write-model-card": "Write README.md."}
    for name, text in both.items():
        function = click.option(f"--{name}/--no-{name}", default=True, show_default=True, help=text)(function)
    function = click.option("--cuda", is_flag=True, help="The same as --device cuda.")(function)
    crimes = "Merge what does not belong together, with a warning: `compatibility: warn`."
    return click.option("--allow-crimes", is_flag=True, help=crimes)(function)


def _take_mergekit(settings: dict[str, Any]) -> str | None:
    """Take mergekit's options out of what was given, say what has a counterpart; return the compatibility."""
    for flag, instead in MERGEKIT.items():
        name = flag.rstrip("*")
        if settings.pop(name.removeprefix("--").replace("-", "_")) not in (None, False):
            if instead.startswith("use --"):
                raise OptionError("it has another name here", where=name, fix=instead)
            click.echo(f"note: {name} does nothing here: {instead}", err=True)
    if settings.pop("cuda"):
        settings["device"] = "cuda"
    return "warn" if settings.pop("allow_crimes") else None


@click.group("merge", epilog="Example: transship merge run recipe.yaml merged")
def command() -> None:
    """Join many fine-tunes into one model.

    Recipes do it at once (plan, run); a fusion takes one after another (start, add, remove, status).
    """


@command.command("plan", epilog="Example: transship merge plan recipe.yaml")
@RECIPE
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON, every tensor of it.")
@memory_option
@settings_options(PlanSettings, only=["allow_pickle"])
def plan_command(recipe: Path, as_json: bool, memory: str | None, allow_pickle: bool) -> None:
    """Show what a recipe will do, without reading weights.

    The plan has tensors, tokens, bytes and memory. What `merge run` with the same --memory would refuse is
    refused.
    """
    merge = ts.merge(recipe, allow_pickle=allow_pickle)
    merge.check(memory=memory)
    show(merge.plan.page(), as_json=as_json)


@command.command("run", epilog="Example: transship merge run recipe.yaml merged")
@RECIPE
@NEW
@settings_options(PlanSettings, only=["seed"])
@settings_options(RunSettings)
@settings_options(PlanSettings, only=["allow_pickle"])
@_mergekit_options
@output_options
@pushing()
def run_command(
    recipe: Path,
    out: Path,
    seed: int | None,
    allow_pickle: bool,
    as_json: bool,
    report: Path | None,
    force: bool,
    **settings: Any,
) -> None:
    """Carry a recipe out and write the merged model.

    The model goes to the folder OUT. Recipes are written as mergekit documents them; docs/from-mergekit.md
    lists what differs.
    """
    compatibility = _take_mergekit(settings)
    merge = ts.merge(recipe, seed=seed, allow_pickle=allow_pickle, compatibility=compatibility)
    merge.check(**settings)
    if report is not None:
        from transship.verbs.merge.plan import read_by  # start-up

        check_target(report, force=force, kind="file", reads=read_by(merge.plan))
    click.echo(ts.report.terminal.render(merge.plan.page()), err=True)
    with writing(out):
        result = merge.run(out, force=force, progress=Bars(), **settings)
    if not parallel.is_main():
        return
    if report is not None:
        result.report(report, force=force)
    if as_json:
        show(result.page(), as_json=True)
        return
    if learnt := result.sections():
        click.echo(ts.report.terminal.render(ts.report.Page("", sections=learnt)), err=True)
    click.echo(str(out))


def _model_choices(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say how models are opened and run."""
    return model_options(device_options(function))


@command.command(
    "start", epilog="Example: transship merge start merged --base all-MiniLM-L6-v2 --keep-inputs 500"
)
@NEW
@settings_options(StartSettings, only=["base", "method"])
@click.option(
    "-o", "--option", nargs=2, multiple=True, metavar="NAME VALUE", help="A parameter of the method."
)
@settings_options(StartSettings, only=["heads"])
@click.option(
    "--head-option", nargs=2, multiple=True, metavar="NAME VALUE", help="A setting of how heads are fitted."
)
@settings_options(StartSettings, without=["base", "method", "heads"])
@seed_option
@_model_choices
@memory_option
@click.option("--force", is_flag=True, help="Replace what is already there.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@pushing()
def start_command(
    out: Path,
    option: tuple[tuple[str, str], ...],
    head_option: tuple[tuple[str, str], ...],
    memory: str | None,
    force: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Start a fusion, which fine-tunes join later.

    It is the folder OUT. Fine-tunes of one base join it one after another.
    """
    check_target(out, force=force, kind="folder", reads={"--base": ts.data.local_model(given["base"])})
    settings: dict[str, Any] = vars(read_settings(StartSettings, given))
    base = ts.data.local_model(settings.pop("base"))
    if memory is not None:
        _check_start(memory, base)
    heads = settings.pop("heads") or "auto"
    opening = {name: given[name] for name in (*OPENING, "seed")}
    options: dict[str, Any] = {"options": dict(option), "head_options": dict(head_option), "heads": heads}
    with writing(out):
        ts.Fusion(base, **settings, **options, **opening).save(out, force=force)
    _show_status(out, as_json)


@command.command("add", epilog="Example: transship merge add merged tuned-trec --data trec.parquet")
@OUT
@click.argument("tuned")
@settings_options(AddSettings)
@_model_choices
@memory_option
@output_options
@pushing()
def add_command(out: Path, tuned: str, **given: Any) -> None:
    """Let a fine-tune join a fusion.

    TUNED is a folder, a hub id or an adapter; the fusion is in OUT. A killed run leaves OUT as it was, and
    the same command can be run again.
    """
    settings = read_settings(AddSettings, given)
    columns = settings.columns

    def work(fusion: Fusion) -> None:
        data = None if settings.data is None else ts.data.load(settings.data, **columns)
        test = None if settings.test is None else ts.data.load(settings.test, **columns)
        _check_memory(given["memory"], fusion, tuned, data)
        reopen, rows = None, settings.test_rows
        if settings.test is not None:
            reopen = {"test": {"reference": _full(settings.test), "rows": rows, **columns}}
        elif settings.data is not None and data is not None and data.splits is not None:
            reopen = {"test": {"reference": _full(settings.data), "split": "test", "rows": rows, **columns}}
        fusion.add(
            ts.data.local_model(tuned),
            data,
            test=test,
            name=settings.name,
            inputs=settings.inputs,
            test_rows=rows,
            reopen=reopen,
            finish=settings.finish,
            progress=Bars(),
        )

    _change(out, given, work)


@command.command("remove", epilog="Example: transship merge remove merged tuned-trec")
@OUT
@click.argument("tuned")
@settings_options(RemoveSettings)
@_model_choices
@memory_option
@output_options
@pushing()
def remove_command(out: Path, tuned: str, **given: Any) -> None:
    """Take a fine-tune out of a fusion again.

    OUT is then as if TUNED had never joined. Only methods whose state is a sum over models can do it:
    average, task-arithmetic, regmean, fisher.
    """
    settings = read_settings(RemoveSettings, given)

    def work(fusion: Fusion) -> None:
        data = None if settings.data is None else ts.data.load(settings.data, **settings.columns)
        _check_memory(given["memory"], fusion, tuned, data)
        fusion.remove(ts.data.local_model(tuned), data, progress=Bars())

    _change(out, given, work)


@command.command("status", epilog="Example: transship merge status merged")
@OUT
@memory_option
@output_options
def status_command(out: Path, memory: str | None, as_json: bool, report: Path | None, force: bool) -> None:
    """Show the tasks of a fusion and their accuracies.

    The bytes that the fusion in OUT keeps are shown too.
    """
    # a page runs the merged model on kept inputs, which takes what starting does
    MemoryBudget.parse(memory).require(0, f"reading {out}")
    if report is not None:
        if memory is not None:
            _check_start(memory, str(out))
        ts.Fusion.load(out).report(report, force=force)
    _show_status(out, as_json)


def _check_start(allowed: str, base: str) -> None:
    """Refuse a base that does not fit: its weights as they are run, once more while they are written."""
    from transship.checkpoints.footprint import Footprint  # start-up: numpy

    model = Footprint.of(ts.data.local_model(base))
    MemoryBudget.parse(allowed).require(3 * model.weights + model.forward(1), f"reading {base}")


def _check_memory(allowed: str | None, fusion: Fusion, tuned: str, data: Dataset | None) -> None:
    """Refuse a fine-tune that does not fit; leaving takes what joining does."""
    if allowed is None:
        return

    MemoryBudget.parse(allowed).require(
        fusion.adding_bytes(ts.data.local_model(tuned), data), f"reading {tuned}"
    )


def _change(out: Path, given: dict[str, Any], work: Callable[[Fusion], None]) -> None:
    from transship.verbs.merge.fusion.folder import read_about  # start-up: torch

    read_about(out)
    check_target(out, force=True, kind="folder")
    if given["report"] is not None:
        check_target(given["report"], force=given["force"], kind="file")
    opening = {name: given[name] for name in OPENING}
    with writing(out):
        fusion = ts.Fusion.load(out, **opening)
        work(fusion)
        if not parallel.is_main():
            return
        fusion.save(out, force=True)
    if given["report"] is not None:
        with parallel.apart():  # the page runs models again, and the others have left off
            fusion.report(given["report"], force=given["force"])
    _show_status(out, given["as_json"])


def _show_status(out: Path, as_json: bool) -> None:
    from transship.verbs.merge.fusion.page import status_page  # start-up: torch

    show(status_page(out), as_json=as_json)


def _full(reference: str) -> str:
    """Return a file's full path; names of data folders and hub ids as they are."""
    path = Path(reference).expanduser()
    return str(path.resolve()) if path.exists() else reference
