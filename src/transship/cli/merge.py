"""`transship merge`: many fine-tunes into one model, by a recipe."""

from __future__ import annotations

from pathlib import Path

import click

from transship.cli.options import memory_option, output_options, print_json

RECIPE = click.argument("recipe", type=click.Path(dir_okay=False, path_type=Path))
PICKLE = click.option("--allow-pickle", is_flag=True, help="Read .bin and .pt files too (weights only).")


@click.group("merge")
def command() -> None:
    """Join many fine-tunes into one model."""


@command.command("plan", epilog="Example: transship merge plan recipe.yaml")
@RECIPE
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON, every tensor of it.")
@PICKLE
def plan_command(recipe: Path, as_json: bool, allow_pickle: bool) -> None:
    """Show what RECIPE will do: tensors, tokens, bytes and memory. No weights are read."""
    from transship.verbs.merge.plan import plan

    found = plan(recipe, allow_pickle=allow_pickle)
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
@memory_option
@PICKLE
@output_options
def run_command(
    recipe: Path,
    out: Path,
    seed: int | None,
    memory: str | None,
    allow_pickle: bool,
    as_json: bool,
    report: Path | None,
    force: bool,
) -> None:
    """Carry RECIPE out and write the merged model to the folder OUT.

    Recipes are written as mergekit documents them; docs/from-mergekit.md lists what differs.
    """
    from transship.numerics import parse_bytes
    from transship.progress import Progress
    from transship.verbs.merge.run import merge

    merged = merge(recipe, seed=seed, allow_pickle=allow_pickle)
    if memory is not None:
        merged.check_memory(parse_bytes(memory))
    if not as_json:
        click.echo(merged.plan.text(), err=True)
    progress = Progress("merge", merged.tensors, unit="tensors")
    merged.save(out, force=force, progress=lambda done, _, name: progress(done, name))
    progress(merged.tensors)
    if report is not None:
        merged.report(report, force=force)
    if as_json:
        print_json(merged.plan.as_dict() | {"folder": str(out)})
    else:
        click.echo(str(out))
