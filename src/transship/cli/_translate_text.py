"""What `transship translate` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from transship.verbs.translate.api import Fitted


def print_fit(fitted: Fitted) -> None:
    """Print the candidates of a fit, which one was chosen and why, and the advice."""
    found = fitted.fit
    click.echo(
        f"{found.pairs:,} pairs; document to document; recall@{found.chosen.forecast.k} of native neighbours"
    )
    click.echo(
        f"{'method':24}{'forecast':>10}{'held out':>10}{'cosine':>8}{'twin@1':>8}{'nDCG':>8}{'fused':>8}"
    )
    for one in found.candidates:
        name = f"{one.name}{' +variance' if one.restored else ''}"
        marks = [f"{value:.3f}" if value is not None else "" for value in (one.ndcg, one.fused)]
        click.echo(
            f"{name:24}{one.forecast.recall:10.3f}{one.held_out.recall:10.3f}{one.forecast.cosine:8.3f}"
            f"{one.forecast.twin_recall:8.3f}{marks[0]:>8}{marks[1]:>8}"
        )
    old = f"{found.ndcg_old:.3f}" if found.ndcg_old is not None else ""
    click.echo(f"{'old model alone':24}{found.old_alone:10.3f}{'':10}{'':8}{'':8}{old:>8}")
    if found.ndcg_native is not None:
        click.echo(f"{'everything re-embedded':24}{1.0:10.3f}{'':10}{'':8}{'':8}{found.ndcg_native:8.3f}")
    click.echo(f"chosen: {found.why}")
    if found.query_side is not None:
        with_mean, without = found.query_side.with_mean[1], found.query_side.without_mean[1]
        click.echo(
            f"query with the old mean {with_mean:.3f}, without {without:.3f} (recall against the new model)"
        )
    pairs = ", ".join(f"{before:.2f} → {after:.2f}" for before, after in found.thresholds)
    click.echo(f"score thresholds, old → new: {pairs}")
    for line in found.advice:
        click.echo(f"- {line}")
    click.echo(f"map {fitted.saved.hash[:8]} in {fitted.saved.path}")


def print_plan(found: Any, source: str, target: str, *, err: bool = False) -> None:
    """Print what applying a map will take."""
    from transship.numerics import format_bytes

    narrow, wide = found.widths
    click.echo(
        f"{source} → {target}: {found.rows:,} rows, {narrow} → {wide} wide, "
        f"{format_bytes(found.bytes_in)} read, "
        f"{format_bytes(found.bytes_out)} written, about {found.seconds:.0f} CPU seconds, "
        f"{format_bytes(found.memory)} of memory{', unit length' if found.unit else ''}",
        err=err,
    )
