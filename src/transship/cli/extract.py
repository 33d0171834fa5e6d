"""`transship extract`: an adapter of a fine-tune."""

from __future__ import annotations

from typing import Any

import click

from transship import checkpoints, data
from transship.atomic import check_target
from transship.cli.options import memory_option, model_options, pushing, show
from transship.numerics import INTERPRETER, MemoryBudget
from transship.report import Column, Facts, Page, Section, Table


@click.command("extract", epilog="Example: transship extract my-fine-tune its-base my-adapter --rank 16")
@click.argument("tuned")
@click.argument("base")
@click.argument("out")
@click.option("--rank", type=int, help="Rank of every tensor's factors.")
@click.option(
    "--energy", type=float, help="Least share of each tensor's squared change to keep, such as 0.99."
)
@click.option("--force", is_flag=True, help="Replace OUT.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@memory_option
@model_options
@pushing()
def command(
    tuned: str,
    base: str,
    out: str,
    rank: int | None,
    energy: float | None,
    force: bool,
    as_json: bool,
    memory: str | None,
    **allowed: bool,
) -> None:
    """Make a LoRA adapter of the fine-tune TUNED of BASE.

    OUT is a folder that PEFT loads. Each matrix keeps its largest singular values. Norms, and matrices whose
    factors would be no smaller, are kept in full.
    """
    check_target(out, force=force)
    with (
        checkpoints.open(data.local_model(tuned), **allowed) as fine_tune,
        checkpoints.open(data.local_model(base), **allowed) as origin,
    ):
        largest = max((info.size for info in origin.tensors.values()), default=0)
        factors = 4 * origin.parameters if rank is None else 0
        MemoryBudget.parse(memory, INTERPRETER).require(8 * 5 * largest + factors, f"extracting {tuned}")
        extraction = checkpoints.extract(fine_tune, origin, rank=rank, energy=energy)
        folder = extraction.save(out, force=force)
    show(_page(extraction, str(folder)), as_json=as_json)


def _page(extraction: checkpoints.Extraction, folder: str) -> Page:
    factored = [each for each in extraction.tensors if each.rank is not None]
    rows = [[each.name, each.rank, 100 * each.energy] for each in factored]
    columns = [Column("tensor", code=True), Column("rank"), Column("kept", 2, unit="%")]
    facts: dict[str, Any] = {
        "folder": folder,
        "energy": extraction.energy,
        "tensors": [
            {"name": each.name, "rank": each.rank, "energy": each.energy, "why": each.why}
            for each in extraction.tensors
        ],
    }
    whole = [[each.name, each.why] for each in extraction.tensors if each.rank is None]
    sections = [Section("", [Facts(facts, shown=False)]), Section("Factors", [Table(columns, rows)])]
    if whole:
        sections.append(Section("Kept in full", [Table([Column("tensor", code=True), "why"], whole)]))
    summary = f"{len(factored)} tensors as factors and {len(whole)} in full keep "
    summary += f"{extraction.energy:.2%} of the squared change."
    return Page(f"{folder}: adapter of {extraction.tuned.name} on {extraction.base.name}", summary, sections)
