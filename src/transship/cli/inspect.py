"""`transship inspect`: what a checkpoint, an adapter, an update, a map or another artifact is."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from transship.cli.options import local_model, memory_option, model_options, print_json
from transship.numerics import INTERPRETER, TORCH, MemoryBudget, format_bytes

if TYPE_CHECKING:
    from transship.activations.sites import Site
    from transship.checkpoints import Checkpoint
    from transship.checkpoints.describe import Description

_MOVED_MOST = 12  # tensors of an update that are printed


@click.command("inspect", epilog="Example: transship inspect sentence-transformers/all-MiniLM-L6-v2 --sites")
@click.argument("path")
@click.option("--base", help="Show what PATH, a fine-tune or an adapter, changed in this model.")
@click.option("--sites", "all_sites", is_flag=True, help="List every site, not only their numbers by role.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@memory_option
@model_options
def command(
    path: str,
    base: str | None,
    all_sites: bool,
    as_json: bool,
    memory: str | None,
    trust_remote_code: bool,
    allow_pickle: bool,
) -> None:
    """Show what PATH is: a checkpoint (folder, file or hub id), an adapter, or what a verb wrote.

    Of a map, an adapted model or a fusion it says how it was made and what was measured. Names, shapes and
    dtypes of weights come from the files' headers; weights are read only for --base.
    """
    from transship.checkpoints import open as open_checkpoint
    from transship.checkpoints.describe import describe
    from transship.cli._artifacts import describe_artifact

    if base is None:
        # sites are found in an empty model, and artifacts of the verbs by their classes: both import torch
        MemoryBudget.parse(memory, TORCH).require(0, f"inspecting {path}")
    made = describe_artifact(path) if base is None else None
    if made is not None:
        figures, lines = made
        print_json(figures) if as_json else click.echo("\n".join(lines))
        return
    allowed = {"allow_pickle": allow_pickle, "trust_remote_code": trust_remote_code}
    with open_checkpoint(local_model(path), **allowed) as checkpoint:
        if base is not None:
            MemoryBudget.parse(memory, INTERPRETER).require(_update_bytes(checkpoint), f"what {path} changed")
        description = dataclasses.replace(describe(checkpoint), name=path)
        found: dict[str, Any] = dataclasses.asdict(description)
        if not as_json:
            _print_description(description)
        if base is not None:
            with open_checkpoint(local_model(base), **allowed) as other:
                found["update"] = _update_rows(other, checkpoint)
            if not as_json:
                _print_update(found["update"], base)
        elif description.kind == "checkpoint":
            from transship.activations.skeleton import checkpoint_sites

            sites = checkpoint_sites(checkpoint)
            found["sites"] = [dataclasses.asdict(site) | {"name": site.name} for site in sites]
            if not as_json:
                _print_sites(sites, whole=all_sites)
    if as_json:
        print_json(found)


def _update_bytes(tuned: Checkpoint) -> int:
    """Return what reading an update takes: chunks of both sides, and an adapter's largest pair of factors."""
    from transship.checkpoints import Adapter
    from transship.checkpoints.dtypes import CHUNK

    sizes = [info.size for info in tuned.tensors.values()] if isinstance(tuned, Adapter) else []
    return 16 * 4 * CHUNK + 4 * 4 * max(sizes, default=0)


def _update_rows(base: Checkpoint, tuned: Checkpoint) -> list[dict[str, Any]]:
    from transship.checkpoints import Adapter, Update
    from transship.checkpoints.describe import describe_update

    if isinstance(tuned, Adapter):
        return describe_update(Update.from_adapter(tuned, base))
    return describe_update(Update.between(base, tuned))


def _print_description(description: Description) -> None:
    what = f"{description.kind}, {description.architecture}" if description.architecture else description.kind
    click.echo(f"{click.style(description.name, bold=True)}: {what}")
    size = f"{description.parameters:,} parameters in {description.tensors} tensors"
    click.echo(f"  {size}, {format_bytes(description.nbytes)} ({', '.join(description.dtypes)})")
    for label, value in description.settings.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        click.echo(f"  {label}: {shown}")
    for alias, tensor in description.tied.items():
        click.echo(f"  tied: {alias} is {tensor}")


def _print_sites(sites: Sequence[Site], *, whole: bool) -> None:
    if whole:
        width = max((len(site.name) for site in sites), default=0)
        for site in sites:
            click.echo(f"  {site.name.ljust(width)}  {site.in_width} → {site.out_width}  {site.path}")
        return
    counts: Counter[tuple[str, str, int, int]] = Counter()
    for site in sites:
        counts[site.stack, site.role, site.in_width, site.out_width] += 1
    click.echo("  sites by role (--sites lists them all):")
    for (stack, role, incoming, outgoing), count in counts.items():
        name = f"{stack}.{role}" if stack else role
        click.echo(f"    {count:3d} × {name}  {incoming} → {outgoing}")


def _print_update(rows: Sequence[dict[str, Any]], base: str) -> None:
    moved = [row for row in rows if row["norm"] > 0]
    click.echo(f"  {len(moved)} of {len(rows)} tensors differ from {base}; those that moved most:")
    for row in moved[:_MOVED_MOST]:
        rank = f", rank {row['rank']}" if row["rank"] is not None else ""
        click.echo(f"    {row['relative']:8.2%}  {row['tensor']} (norm {row['norm']:.4g}{rank})")
