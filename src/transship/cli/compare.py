"""`transship compare`: which layers of two models agree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transship import parallel
from transship.cli.options import (
    compute_options,
    local_model,
    memory_option,
    output_options,
    print_json,
    trust_option,
)

if TYPE_CHECKING:
    from transship.activations.compare import Comparison
    from transship.data import Dataset
    from transship.report import Provenance

ALIGNMENTS = ("auto", "same", "offsets", "ends", "grid", "linear", "mean", "cls")


@click.command(
    "compare", epilog="Example: transship compare bert-a bert-b --data texts.parquet --report page.html"
)
@click.argument("source")
@click.argument("target")
@click.option(
    "--data", "reference", required=True, help="Inputs: a file, a folder, `digits`, or a hub data set."
)
@click.option("--column", help="The column of the inputs, where its name is unusual.")
@click.option("--split", help="Read only this part of the data.")
@click.option(
    "--inputs", default=500, show_default=True, type=click.IntRange(1), help="Inputs to run, drawn by seed."
)
@click.option(
    "--tokens", default=8, show_default=True, type=click.IntRange(0), help="Tokens per input; 0 for all."
)
@click.option(
    "--align", type=click.Choice(ALIGNMENTS), default="auto", show_default=True, help="Which tokens pair up."
)
@click.option(
    "--batch-size", default=32, show_default=True, type=click.IntRange(1), help="Inputs per forward pass."
)
@output_options
@compute_options
@memory_option
@trust_option
def command(
    source: str,
    target: str,
    reference: str,
    column: str | None,
    split: str | None,
    inputs: int,
    tokens: int,
    align: Any,
    batch_size: int,
    report: Path | None,
    as_json: bool,
    force: bool,
    seed: int,
    device: str,
    device_map: str | None,
    dtype: str | None,
    memory: str | None,
    trust_remote_code: bool,
) -> None:
    """Run SOURCE and TARGET over the same inputs and show which of their layers agree.

    Each model reads them with its own tokenizer or image processor; tokens pair up by the text they cover.
    """
    from transship.data import load

    if report is not None:
        from transship.atomic import check_target

        check_target(report, force=force)
    part = load(reference, column=column, split=split).take(inputs, seed=seed)
    click.echo(f"comparing {source} and {target} over {len(part)} inputs of {part.name}", err=True)

    from transship.activations import compare, load_model
    from transship.progress import Bars

    if memory is not None:
        _check_memory(memory, (source, target), part, batch_size, dtype, trust_remote_code)
    loading: dict[str, Any] = {
        "device": device,
        "device_map": device_map,
        "dtype": dtype,
        "trust_remote_code": trust_remote_code,
    }
    bars = Bars()
    bars("inputs", 0, len(part))
    one, other = (load_model(local_model(name), name=name, **loading) for name in (source, target))
    found = compare(
        one,
        other,
        part.inputs,
        align=align,
        tokens_per_input=tokens or None,
        seed=seed,
        batch_size=batch_size,
        progress=lambda done: bars("inputs", done, len(part)),
    )
    if not parallel.is_main():
        return
    if report is not None:
        from transship.activations.page import comparison_page
        from transship.report import html

        html.write(comparison_page(found, _provenance(found, part)), report, force=force)
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found)
    if report is not None:
        click.echo(f"the page is at {report}", err=as_json)


def _check_memory(
    memory: str, models: tuple[str, str], part: Dataset, batch_size: int, dtype: str | None, trust: bool
) -> None:
    from transship.activations.footprint import comparing_bytes
    from transship.activations.lengths import longest
    from transship.checkpoints.footprint import Footprint
    from transship.numerics import MemoryBudget

    one, other = (Footprint.of(local_model(name), dtype=dtype, trust_remote_code=trust) for name in models)
    tokens = [longest(local_model(name), list(part.inputs)) for name in models]
    needed = comparing_bytes(one, other, batch_size, max(tokens, key=lambda count: count or 0))
    instead = "pass a smaller --batch-size" if batch_size > 1 else ""
    MemoryBudget.parse(memory).require(needed, f"running {models[0]} and {models[1]}", instead)


def _provenance(found: Comparison, part: Dataset) -> Provenance:
    from transship.report import Provenance, library_versions

    command = f"transship compare {found.source} {found.target} --data {part.name}"
    return Provenance(command, {part.name: part.fingerprint()}, found.options, library_versions())


def _print(found: Comparison) -> None:
    from transship.activations.page import best_partners, comparison_summary

    click.echo(comparison_summary(found))
    for stack in found.stacks:
        click.echo(f"\nlayer of {found.target}  most similar layer of {found.source}  CKA")
        for layer, partner, cka in best_partners(stack):
            click.echo(f"  {layer:12s} {partner:12s} {cka:.3f}")
    if found.unmatched:
        click.echo(f"\n{len(found.unmatched)} sites have no partner (--json or --report lists them)")
