"""`transship transport`: move a fine-tune to another base model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from transship import data, parallel
from transship.atomic import check_target
from transship.cli.options import (
    compute_options,
    memory_option,
    model_options,
    output_options,
    pushing,
    read_settings,
    settings_options,
    show,
    writing,
)
from transship.errors import DataError, OptionError
from transship.fields import setting
from transship.numerics import MemoryBudget
from transship.progress import Bars, quiet
from transship.report import Facts, Section, terminal
from transship.targets import Kind
from transship.verbs import transport
from transship.verbs.transport.settings import Opening, Roles, Settings

if TYPE_CHECKING:
    from transship.verbs.transport import TransportMethod


@dataclass(frozen=True, kw_only=True)
class TransportInputs:
    """What a transport reads and keeps.

    Attributes:
        data: inputs of the task: a file, a folder, or a data set's name. Labels only choose the strength.
        column: the column of DATA that holds the inputs.
        label: the column of DATA that holds the labels.
        keep: inputs on which the result keeps the target's answers.
        test: labelled rows to measure on; nothing is chosen on them.
        warm_start: fine-tune both TARGET and OUT on the labels of DATA for this many steps, and show their
            accuracy on --test along the way.
        original: labelled rows of TARGET's own domain, to see what it forgets.
        classes: for CLIP: class names, one per line, that become zero-shot heads.
        roles: what moves besides linear maps: everything, or what the paper's code moves.
        prepared: a folder that keeps the statistics for later runs.
    """

    data: str
    column: str | None = None
    label: str | None = None
    keep: str | None = setting(None, metavar="DATA")
    test: str | None = setting(None, metavar="DATA")
    warm_start: int = setting(0, metavar="STEPS", least=0)
    original: str | None = setting(None, metavar="DATA")
    classes: Path | None = setting(None, file=True, exists=True)
    roles: Literal["all", "paper"] = "all"
    prepared: Path | None = None


@click.command(
    "transport",
    epilog="Example: transship transport base-a tuned-a base-b tuned-b --data reviews.parquet",
)
@click.argument("source")
@click.argument("tuned")
@click.argument("target")
@click.argument("out", type=click.Path(path_type=Path))
@settings_options(TransportInputs)
@click.option(
    "--role", nargs=2, multiple=True, metavar="ROLE CHOICE", help="Set one role, such as `norms diagonal`."
)
@click.option(
    "--method", default="auto", show_default=True, help="How to move it; see `transship methods transport`."
)
@click.option(
    "-o", "--option", nargs=2, multiple=True, metavar="NAME VALUE", help="A parameter of the method."
)
@settings_options(Settings, without=("seed",))
@output_options
@compute_options
@memory_option
@model_options
@pushing()
def command(source: str, tuned: str, target: str, out: Path, **given: Any) -> None:
    """Move the fine-tune TUNED of SOURCE to TARGET.

    The result is written to OUT. TUNED is a fine-tune of SOURCE, or a LoRA adapter for it. An adapter gives
    an adapter. No weight is trained on labels, and test rows choose nothing: --test only measures on them. If
    a run is killed, the same command continues it.
    """
    force, report, as_json = given["force"], given["report"], given["as_json"]
    models = [data.local_model(name) for name in (source, tuned, target)]
    _require_places(out, models, given)
    files = read_settings(TransportInputs, given)
    prepared = files.prepared or transport.default_prepared()
    transport.require_folder(prepared, "--prepared")
    columns = {name: given[name] for name in ("column", "label") if given[name] is not None}
    plan = transport.make_plan(
        transport.Request(
            source=models[0],
            tuned=models[1],
            target=models[2],
            method=_method(given["method"], given["option"]),
            settings=read_settings(
                Settings,
                given,
                roles=Roles.parse({**dataclasses.asdict(Roles.parse(files.roles)), **dict(given["role"])}),
                classes=() if files.classes is None else _lines(files.classes),
            ),
            opening=read_settings(Opening, given),
            data=data.load(files.data, **columns),
            keep=None if files.keep is None else data.load(files.keep),
            test=None if files.test is None else data.load(files.test, **columns),
            original=None if files.original is None else _other(files.original, columns),
            warm_start=files.warm_start,
            prepared=prepared,
            memory=MemoryBudget.parse(given["memory"]),
        )
    )
    transport.check_finish(plan)
    check_target(out, force=force, needs=plan.result_bytes, kind="folder")
    if not as_json:
        click.echo(terminal.render(plan.page()), err=True)
        if (cost := transport.cost_of(plan)) is not None:
            click.echo(f"finish: {cost}", err=True)
    with writing(out):
        result = transport.carry_out(plan, progress=quiet if as_json else Bars())
        idle = result.does_nothing and not force
        if parallel.is_main() and not idle:
            result.save(out, force=force)
    if parallel.is_main():
        page = result.page()
        written = Section("", [Facts({"out": "not written" if idle else str(out)})])
        page = dataclasses.replace(page, sections=[*page.sections, written])
        show(page, as_json=as_json, report=report, force=force)
        if idle:
            result.save(out)  # refuses, and says why
        for warning in result.warnings:
            click.echo(f"warning: {warning}", err=True)
    if files.prepared is None and parallel.agreed(True):  # once it is written, nobody needs them
        plan.forget()


def _require_places(out: Path, models: list[str], given: dict[str, Any]) -> None:
    """Refuse to write over what is read, or what is there."""
    inputs: dict[str, Any] = dict(zip(("SOURCE", "TUNED", "TARGET"), models, strict=True))
    for name in ("data", "keep", "test", "original"):
        files = () if given[name] is None else data.data_files(given[name])
        inputs |= {f"--{name}" if len(files) == 1 else f"--{name} {file.name}": file for file in files}
    inputs["--classes"] = given["classes"]
    for written in (out, given["report"]):
        if written is not None:
            kind: Kind = "folder" if written is out else "file"
            check_target(written, force=given["force"], kind=kind, reads=inputs)
    if given["report"] is not None and given["report"].resolve() == out.resolve():
        raise OptionError("it is OUT, which becomes a folder", where="--report", fix="name another file")


def _method(name: str, options: tuple[tuple[str, str], ...]) -> TransportMethod | None:
    if name == "auto" and options:
        raise OptionError(
            "auto chooses the method, so it takes no parameters", where="-o", fix="add --method NAME"
        )
    return transport.as_method(name, dict(options))


def _other(reference: str, columns: dict[str, Any]) -> Any:
    """Return data that may have the columns of DATA, or others."""
    try:
        return data.load(reference, **columns)
    except DataError:
        if not columns:
            raise
        return data.load(reference)


def _lines(file: Path) -> tuple[str, ...]:
    lines = data.read_utf8(file).splitlines()
    return tuple(line.strip() for line in lines if line.strip())
