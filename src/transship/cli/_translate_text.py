"""What `transship translate` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from transship.numerics import format_bytes

if TYPE_CHECKING:
    from transship.verbs.translate.fit.result import FittedMap


def print_fit(fitted: FittedMap) -> None:
    """Print the candidates of a fit, which one was chosen and why, and the advice."""
    fit = fitted.fit
    click.echo(
        f"{fit.pairs:,} pairs; document to document; recall@{fit.chosen.forecast.k} of native neighbours"
    )
    click.echo(
        f"{'method':24}{'forecast':>10}{'held out':>10}{'cosine':>8}{'twin@1':>8}{'nDCG':>8}{'fused':>8}"
    )
    for trial in fit.trials:
        name = f"{trial.name}{' +variance' if trial.restored else ''}"
        marks = [f"{value:.3f}" if value is not None else "" for value in (trial.ndcg, trial.fused)]
        click.echo(
            f"{name:24}{trial.forecast.recall:10.3f}{trial.held_out.recall:10.3f}{trial.forecast.cosine:8.3f}"
            f"{trial.forecast.twin_recall:8.3f}{marks[0]:>8}{marks[1]:>8}"
        )
    old = f"{fit.ndcg_old:.3f}" if fit.ndcg_old is not None else ""
    click.echo(f"{'old model alone':24}{fit.old_alone:10.3f}{'':10}{'':8}{'':8}{old:>8}")
    if fit.ndcg_native is not None:
        click.echo(f"{'everything re-embedded':24}{1.0:10.3f}{'':10}{'':8}{'':8}{fit.ndcg_native:8.3f}")
    click.echo(f"chosen: {fit.why}")
    if fit.query_side is not None:
        with_mean, without = fit.query_side.with_mean[1], fit.query_side.without_mean[1]
        click.echo(
            f"query with the old mean {with_mean:.3f}, without {without:.3f} (recall against the new model)"
        )
    pairs = ", ".join(f"{before:.2f} → {after:.2f}" for before, after in fit.thresholds)
    click.echo(f"score thresholds, old → new: {pairs}")
    for line in fit.left_out:
        click.echo(line)
    for line in fit.advice:
        click.echo(f"- {line}")
    click.echo(f"map {fitted.saved.hash[:8]} in {fitted.saved.path}")


def print_plan(plan: Any, source: str, target: str, *, err: bool = False) -> None:
    """Print what applying a map will take."""
    narrow, wide = plan.widths
    click.echo(
        f"{source} → {target}: {plan.rows:,} rows, {narrow} → {wide} wide, "
        f"{format_bytes(plan.bytes_in)} read, "
        f"{format_bytes(plan.bytes_out)} written, about {plan.seconds:.0f} CPU seconds, "
        f"{format_bytes(plan.memory)} of memory{', unit length' if plan.unit else ''}",
        err=err,
    )
