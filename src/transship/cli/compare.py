"""`transship compare`: which layers of two models agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from transship import activations, checkpoints, data, parallel, report
from transship.atomic import check_target
from transship.cli.options import (
    compute_options,
    memory_option,
    output_options,
    read_settings,
    settings_options,
    show,
    trust_option,
)
from transship.fields import setting
from transship.numerics import MemoryBudget
from transship.progress import Bars


@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """What two models are compared on.

    Attributes:
        data: inputs: a file, a folder, `digits`, or a hub data set.
        column: the column of the inputs, where its name is unusual.
        split: read only this part of the data.
        inputs: inputs to run, drawn by seed.
        tokens: tokens per input; 0 for all.
        align: which tokens pair up.
        batch_size: inputs per forward pass.
    """

    data: str
    column: str | None = None
    split: str | None = None
    inputs: int = setting(500, least=1)
    tokens: int = setting(8, least=0)
    align: Literal["auto", "same", "offsets", "ends", "grid", "linear", "mean", "cls"] = "auto"
    batch_size: int = setting(32, least=1)


@click.command(
    "compare", epilog="Example: transship compare bert-a bert-b --data texts.parquet --report page.html"
)
@click.argument("source")
@click.argument("target")
@settings_options(CompareSettings)
@output_options
@compute_options
@memory_option
@trust_option
def command(
    source: str,
    target: str,
    report: Path | None,
    as_json: bool,
    force: bool,
    seed: int,
    memory: str | None,
    **given: Any,
) -> None:
    """Show which layers of two models agree.

    SOURCE and TARGET run over the same inputs. Each model reads them with its own tokenizer or image
    processor; tokens pair up by the text they cover.
    """
    settings = read_settings(CompareSettings, given)
    loading = {name: given[name] for name in ("device", "device_map", "dtype", "trust_remote_code")}
    if report is not None:
        check_target(report, force=force, kind="file", reads={"--data": settings.data})
    part = data.load(settings.data, column=settings.column, split=settings.split).take(
        settings.inputs, seed=seed
    )
    line = f"comparing {source} and {target} over {len(part)} inputs of {part.name}"
    click.echo(line, err=True)
    if memory is not None:
        _check_memory(memory, (source, target), part, settings.batch_size, loading)
    bars = Bars()
    bars("inputs", 0, len(part))
    first, second = (
        activations.load_model(data.local_model(name), name=name, **loading) for name in (source, target)
    )
    comparison = activations.compare(
        first,
        second,
        part.inputs,
        align=settings.align,
        tokens_per_input=settings.tokens or None,
        seed=seed,
        batch_size=settings.batch_size,
        progress=lambda done: bars("inputs", done, len(part)),
    )
    if parallel.is_main():
        page = activations.comparison_page(comparison, _provenance(comparison, part))
        show(page, as_json=as_json, report=report, force=force)


def _check_memory(
    memory: str, models: tuple[str, str], part: data.Dataset, batch_size: int, loading: Mapping[str, Any]
) -> None:
    reading = {name: loading[name] for name in ("dtype", "trust_remote_code")}
    first, second = (checkpoints.Footprint.of(data.local_model(name), **reading) for name in models)
    tokens = [activations.longest(data.local_model(name), list(part.inputs)) for name in models]
    needed = activations.comparing_bytes(first, second, batch_size, max(tokens, key=lambda count: count or 0))
    instead = "pass a smaller --batch-size" if batch_size > 1 else ""
    MemoryBudget.parse(memory).require(needed, f"running {models[0]} and {models[1]}", instead)


def _provenance(comparison: activations.Comparison, part: data.Dataset) -> report.Provenance:
    command = f"transship compare {comparison.source} {comparison.target} --data {part.name}"
    return report.Provenance(
        command, {part.name: part.fingerprint()}, comparison.options, report.library_versions()
    )
