"""What a recipe became: its plan, what it left to be found out, and a page about it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transship.numerics import format_bytes
from transship.verbs.merge.plan import MergePlan
from transship.verbs.merge.recipe.plan.adapters import AdapterMerge

if TYPE_CHECKING:
    from transship.report import Page


@dataclass(frozen=True)
class Merged:
    """A recipe that was carried out.

    Attributes:
        plan: what was done.
        folder: where the result is.
        learnt: what was found out on data: the weights of `weights: auto`, how heads agree.
    """

    plan: MergePlan | AdapterMerge
    folder: Path
    learnt: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**self.plan.as_dict(), **self.learnt, "folder": str(self.folder)}

    def lines(self) -> list[str]:
        """Return what was found out as people read it."""
        lines = []
        if "weights" in self.learnt:
            weights = ", ".join(f"{name} {weight:g}" for name, weight in self.learnt["weights"].items())
            search = self.learnt["search"]
            lines.append(f"weights   {weights}")
            lines.append(f"search    {search['start']:.4g} → {search['end']:.4g}, {search['trials']} trials")
        for name, shares in self.learnt.get("agreement", {}).items():
            parts = [f"{100 * share:.1f} % with the {kind} head" for kind, share in shares.items()]
            lines.append(f"answers   {name}: as its own model {', '.join(parts)}")
        return lines

    def page(self) -> Page:
        """Return a page that says what became of every tensor."""
        # start-up: a merge without a page does not need it
        from transship import report

        facts = self.plan.as_dict()
        tensors = [
            [tensor["name"], tensor.get("action", "factors"), str(tensor.get("shape", tensor.get("rank")))]
            for tensor in facts["tensors"]
        ]
        figures = [
            report.KeyFigure("tensors", len(tensors)),
            report.KeyFigure("models", len(facts["models"])),
        ]
        if isinstance(self.plan, MergePlan):
            figures.append(report.KeyFigure("written", format_bytes(self.plan.bytes_written)))
            figures.append(report.KeyFigure("memory, at most", format_bytes(self.plan.peak_memory)))
        notes = [*facts.get("copied", ()), *(f"left out: {name}" for name in facts.get("dropped", ()))]
        sections = [
            report.Section("Figures", [report.KeyFigures(figures)]),
            report.Section("Tensors", [report.Table(["tensor", "action", "shape or rank"], tensors)]),
        ]
        if notes:
            rows = [[note] for note in notes]
            sections.append(report.Section("Not merged", [report.Table(["tensor"], rows)]))
        return report.Page(
            title=f"Merge by {facts['method']}",
            summary=f"Made from {', '.join(facts['models'])}.",
            sections=sections,
            provenance=report.Provenance(parameters={"recipe": self.plan.recipe.text}),
        )

    def report(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write the page."""
        # start-up: a merge without a page does not need it
        from transship.report import html

        return html.write(self.page(), path, force=force)
