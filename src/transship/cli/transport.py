"""`transship transport`: move a fine-tune to another base model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transship import parallel
from transship.cli.options import (
    compute_options,
    local_model,
    memory_option,
    model_options,
    output_options,
    print_json,
)

if TYPE_CHECKING:
    from transship.verbs.transport import Result


@click.command(
    "transport",
    epilog="Example: transship transport base-a tuned-a base-b tuned-b --data reviews.parquet",
)
@click.argument("source")
@click.argument("tuned")
@click.argument("target")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--data", required=True, help="Inputs of the task; labels, if any, only choose the strength.")
@click.option("--column", default=None, help="The column of DATA that holds the inputs.")
@click.option("--label", default=None, help="The column of DATA that holds the labels.")
@click.option(
    "--method", default="auto", show_default=True, help="How to move it; see `transship methods transport`."
)
@click.option(
    "-o", "--option", nargs=2, multiple=True, metavar="NAME VALUE", help="A parameter of the method."
)
@click.option("--strength", default="auto", show_default=True, help="A number, or auto.")
@click.option("--batches", default=10, show_default=True, help="Batches of inputs that maps are fitted on.")
@click.option("--batch-size", default=32, show_default=True, help="Inputs per batch.")
@click.option("--shots", default=None, type=int, help="Labelled inputs per class, instead of batches.")
@click.option(
    "--path-steps", default=1, show_default=True, help="Move it in so many parts, maps re-estimated between."
)
@click.option(
    "--head-inputs", default=1000, show_default=True, help="Inputs that a carried head is fitted on."
)
@click.option(
    "--keep", default=None, metavar="DATA", help="Inputs on which a carried head keeps the target's answers."
)
@click.option(
    "--test", default=None, metavar="DATA", help="Labelled rows to measure on; nothing is chosen on them."
)
@click.option(
    "--warm-start",
    default=0,
    metavar="STEPS",
    type=click.IntRange(0),
    help="Fine-tune TARGET and OUT alike on the labels of DATA, and show both on --test along the way.",
)
@click.option(
    "--original",
    default=None,
    metavar="DATA",
    help="Labelled rows of TARGET's own domain, to see what it forgets.",
)
@click.option(
    "--classes",
    default=None,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="For CLIP: class names, one per line, that become zero-shot heads.",
)
@click.option(
    "--template", multiple=True, metavar="TEXT", help="What is said of a class, with {} for its name."
)
@click.option(
    "--depth",
    default="interpolate",
    show_default=True,
    type=click.Choice(["interpolate", "nearest", "skip"]),
    help="What stands for a block of a deeper or shallower target.",
)
@click.option(
    "--align",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "same", "offsets", "ends", "grid", "linear", "mean", "cls"]),
    help="How the tokens of both models correspond.",
)
@click.option(
    "--tokens-per-input", default=None, type=int, help="At most so many tokens per input; 0 for all."
)
@click.option(
    "--roles",
    default="all",
    show_default=True,
    type=click.Choice(["all", "paper"]),
    help="What moves beside linear maps.",
)
@click.option(
    "--role", nargs=2, multiple=True, metavar="ROLE CHOICE", help="One choice, such as `norms diagonal`."
)
@click.option("--unlabelled", is_flag=True, help="Choose the strength without labels even if DATA has them.")
@click.option(
    "--prepared",
    default=None,
    type=click.Path(path_type=Path),
    help="Where statistics are kept for a later run.",
)
@output_options
@compute_options
@memory_option
@model_options
def command(source: str, tuned: str, target: str, out: Path, **given: Any) -> None:
    """Move what TUNED learned on top of SOURCE to TARGET, and write the result to OUT.

    TUNED is a fine-tune of SOURCE or a LoRA adapter for it; an adapter gives an adapter. No training takes
    place, and nothing is chosen on test rows: --test measures the result on them. A killed run goes on when
    it is started again with the same arguments.
    """
    from transship.atomic import check_target
    from transship.data import load
    from transship.errors import OptionError
    from transship.numerics import MemoryBudget
    from transship.registry import build_method
    from transship.verbs.transport.measure import Examination
    from transship.verbs.transport.models import Opening
    from transship.verbs.transport.plan import check_request, memory_bytes, plan_lines, target_bytes
    from transship.verbs.transport.result import require_apart, require_folder
    from transship.verbs.transport.run import default_prepared
    from transship.verbs.transport.settings import Roles, Settings
    from transship.verbs.transport.work import Work

    inputs = _inputs((source, tuned, target), given)
    for written in (out, given["report"]):
        if written is not None:
            require_apart(written, inputs)
            check_target(written, force=given["force"])
    if given["report"] is not None and given["report"].resolve() == out.resolve():
        raise OptionError("it is OUT, which becomes a folder", where="--report", fix="name another file")
    prepared = given["prepared"] or default_prepared()
    require_folder(prepared, "--prepared")
    method = given["method"]
    if method != "auto":
        method = build_method("transport", method, dict(given["option"]))
    elif given["option"]:
        raise OptionError(
            "auto chooses the method, so it takes no parameters", where="-o", fix="add --method NAME"
        )
    roles = Roles.parse({**_choices(given["roles"]), **dict(given["role"])})
    settings = Settings(
        strength=_strength(given["strength"]),
        roles=roles,
        classes=() if given["classes"] is None else _lines(given["classes"]),
        templates=given["template"],
        validation=not given["unlabelled"],
        **{
            name: given[name]
            for name in (
                "batches",
                "batch_size",
                "shots",
                "path_steps",
                "head_inputs",
                "depth",
                "align",
                "tokens_per_input",
                "seed",
            )
        },
    )
    opening = Opening(
        device=given["device"],
        device_map=given["device_map"],
        dtype=given["dtype"],
        trust_remote_code=given["trust_remote_code"],
        allow_pickle=given["allow_pickle"],
    )
    columns = {name: given[name] for name in ("column", "label") if given[name] is not None}
    data = load(given["data"], **columns)
    keep = None if given["keep"] is None else load(given["keep"])
    test = None if given["test"] is None else load(given["test"], **columns)
    original = None if given["original"] is None else _other(given["original"], columns)
    if given["memory"] is not None:
        models = [local_model(name) for name in (source, tuned, target)]
        needed = memory_bytes(models, opening, given["batch_size"], list(data.inputs))
        instead = "pass a smaller --batch-size and more --batches"
        MemoryBudget.parse(given["memory"]).require(needed, "this transport", instead)
    quiet = given["as_json"]
    work = Work.open(
        local_model(source),
        local_model(tuned),
        local_model(target),
        data,
        opening,
        settings,
        prepared=prepared,
        progress=None if quiet else _Progress(),
    )
    check_target(out, force=given["force"], needs=target_bytes(work, method))
    check_request(work, method, keep)
    examination = Examination.open(work, test, original, keep=keep, warm_steps=given["warm_start"])
    if not quiet:
        for line in plan_lines(work, method):
            click.echo(line, err=True)
    result = examination.measured(work, work.run(method, keep=keep))
    if parallel.is_main():
        result.save(out, force=given["force"])
        if given["report"] is not None:
            result.report(given["report"], force=given["force"])
    if given["prepared"] is None and parallel.agreed(True):  # once it is written, nobody needs them
        work.forget()
    if quiet:
        print_json({**result.summary(), "out": str(out)})
    else:
        _print(result, out, given["report"])


def _inputs(models: tuple[str, str, str], given: dict[str, Any]) -> dict[str, Any]:
    """Return what is read, by what the user calls it."""
    from transship.data import data_files

    found: dict[str, Any] = {
        role: local_model(model) for role, model in zip(("SOURCE", "TUNED", "TARGET"), models, strict=True)
    }
    for name in ("data", "keep", "test", "original"):
        files = () if given[name] is None else data_files(given[name])
        found |= {f"--{name}" if len(files) == 1 else f"--{name} {file.name}": file for file in files}
    return found | {"--classes": given["classes"]}


def _choices(roles: str) -> dict[str, str]:
    import dataclasses

    from transship.verbs.transport.settings import Roles

    return dataclasses.asdict(Roles.parse(roles))


def _strength(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _other(reference: str, columns: dict[str, Any]) -> Any:
    """Return data that may have the columns of DATA, or others."""
    from transship.data import load
    from transship.errors import DataError

    try:
        return load(reference, **columns)
    except DataError:
        if not columns:
            raise
        return load(reference)


def _lines(file: Path) -> tuple[str, ...]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return tuple(line.strip() for line in lines if line.strip())


def _print(result: Result, out: Path, report: Path | None) -> None:
    for note in result.notes:
        click.echo(note)
    if result.candidates:
        click.echo(f"agreement with the fine-tuned source on {result.compared_on}")
        click.echo(f"{'method':28s} {'strength':>8s} {'agreement':>10s} {'validation':>10s}")
        for one in result.candidates:
            validation = "" if one.validation is None else f"{one.validation:.4f}"
            click.echo(f"{one.method:28s} {one.strength:8g} {one.agreement:10.4f} {validation:>10s}")
    score = f", {result.choice.by} {result.choice.score:.4f}" if result.choice.curve else ""
    moved = result.moved
    kept = f", norm kept {moved.norm_after / moved.norm_before:.3f}" if moved.norm_before else ""
    what = f"{len(moved.dense)} tensors moved{kept}" if result.strength else "the target's body is untouched"
    click.echo(f"{result.method} at strength {result.strength:g}{score}; {what}")
    if moved.left:
        count = len(moved.left)
        click.echo("1 tensor was not moved:" if count == 1 else f"{count} tensors were not moved:")
        for left in moved.left[:20]:
            click.echo(f"  {left.tensor} ({left.role}): {left.reason}")
        if len(moved.left) > 20:
            click.echo(f"  … and {len(moved.left) - 20} more, listed in --json and --report")
    for line in result.measured.lines() if result.measured is not None else ():
        click.echo(line)
    click.echo(f"wrote {out}" + (f" and {report}" if report is not None else ""))


class _Progress:
    """A bar per stage on a terminal; one line per stage elsewhere."""

    def __init__(self) -> None:
        self.stage = ""
        self.bar: Any = None

    def __call__(self, what: str, done: int, total: int) -> None:
        from tqdm import tqdm  # type: ignore[import-untyped]

        if what != self.stage:
            if self.bar is not None:
                self.bar.close()
            self.stage = what
            strength = what == "strength"
            unit = " tries" if strength else " inputs"
            self.bar = tqdm(total=total, desc=what, unit=unit, disable=None, leave=False)
            if self.bar.disable and not strength:
                click.echo(f"{what}: {total} inputs", err=True)
        self.bar.update(done - self.bar.n)
        if done >= total:
            self.bar.close()
            self.stage = "" if what == "strength" else what  # the next search has a bar of its own
