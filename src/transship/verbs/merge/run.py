"""Carries out a recipe: tensor by tensor, read when it is needed, rounded once, written in order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transship import parallel
from transship.atomic import check_target
from transship.errors import OptionError
from transship.numerics import MemoryBudget, format_bytes
from transship.verbs.merge.plan import MergePlan, RecipeLike, plan
from transship.verbs.merge.protocol import Floats
from transship.verbs.merge.recipe.adapters import AdapterMerge
from transship.verbs.merge.recipe.check import check_kinship
from transship.verbs.merge.saving import Progress, Work, save_adapter, save_model, save_tasks

ROOM = 256_000_000  # bytes of finished tensors that wait for the writer where --memory does not say


@dataclass(frozen=True)
class Merge:
    """A recipe that is ready to be carried out.

    Attributes:
        plan: what will be done.
    """

    plan: MergePlan | AdapterMerge

    @property
    def tensors(self) -> int:
        """Return the number of tensors that are made."""
        return len(self.plan.weights if isinstance(self.plan, AdapterMerge) else self.plan.steps)

    def tensor(self, name: str) -> Floats:
        """Return one merged tensor as it would be stored, widened to float32."""
        found = self.plan
        if isinstance(found, AdapterMerge):
            return found.update().dense(name)
        step = next((step for step in found.steps if step.name == name), None)
        if step is None:
            raise OptionError(
                f"the output has no tensor '{name}'", where=found.recipe.path, fix="see merge plan"
            )
        read = [np.array(_values(part, step.dtype)) for part in found.execution.produce(step)]
        return np.concatenate(read or [np.empty(0, np.float32)]).reshape(step.shape)

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        force: bool = False,
        progress: Progress | None = None,
        learning: Progress | None = None,
        opening: Mapping[str, Any] | None = None,
        jobs: int = 1,
        memory: int | None = None,
    ) -> Path:
        """Carry the recipe out and write its result to `folder`, which appears when it is complete.

        Args:
            force: replace an existing folder.
            progress: called with (steps done, steps in all, tensor) before each tensor.
            learning: called likewise while models run on data, before the first tensor.
            opening: how these are opened: device, device_map and dtype of `load_model`.
            jobs: threads that make tensors; the result is the same, bit by bit, for any number.
            memory: the most bytes that the work may take; fewer threads are used where they would not fit.
        """
        check_target(folder, force=force)
        if isinstance(self.plan, AdapterMerge):
            if memory is not None:
                self.check_memory(memory)
            self.plan.check_bases()
            return save_adapter(self.plan, folder, force) if parallel.is_main() else Path(folder)
        jobs, room = self.threads(jobs, memory)
        check_kinship(self.plan)
        if learning is not None:
            self.plan.execution.watch = learning
        self.plan.execution.opening = dict(opening or {})
        self.plan.execution.prepare()
        if not parallel.is_main():  # of several processes that learn, one writes
            return Path(folder)
        work = Work(force, progress, jobs, room)
        return (save_tasks if self.plan.outcome.heads else save_model)(self.plan, folder, work)

    def threads(self, jobs: int, memory: int | None) -> tuple[int, int]:
        """Return how many threads fit `memory`, and the bytes that finished tensors may take beside them.

        A merge that does not even fit with one thread is refused.
        """
        if jobs < 1:
            raise OptionError(f"{jobs} threads do no work", where="--jobs", fix="give 1 or more")
        if isinstance(self.plan, AdapterMerge) or memory is None:
            return jobs, ROOM
        self.check_memory(memory)
        while jobs > 1:
            room = memory - self.plan.memory_of(jobs) - self.plan.largest_output
            if room >= 0:
                return jobs, min(room, ROOM)
            jobs -= 1
        return 1, 0

    def learnt(self) -> dict[str, Any]:
        """Return what the recipe left to be found out on data: the weights of `weights: auto`, heads."""
        return {} if isinstance(self.plan, AdapterMerge) else self.plan.execution.prepare()

    def learnt_lines(self) -> list[str]:
        """Return the same as people read it."""
        found, lines = self.learnt(), []
        if "weights" in found:
            weights = ", ".join(f"{name} {weight:g}" for name, weight in found["weights"].items())
            search = found["search"]
            lines.append(f"weights   {weights}")
            lines.append(f"search    {search['start']:.4g} → {search['end']:.4g}, {search['trials']} trials")
        for name, shares in found.get("agreement", {}).items():
            parts = [f"{100 * share:.1f} % with the {kind} head" for kind, share in shares.items()]
            lines.append(f"answers   {name}: as its own model {', '.join(parts)}")
        return lines

    def check_memory(self, limit: int) -> None:
        """Refuse a merge that may take more than `limit` bytes of memory."""
        MemoryBudget(limit).require(self.plan.peak_memory, "the merge")

    def report(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write a page that says what became of every tensor."""
        from transship import report

        found = self.plan.as_dict()
        tensors = [
            [one["name"], one.get("action", "factors"), str(one.get("shape", one.get("rank")))]
            for one in found["tensors"]
        ]
        figures = [
            report.KeyFigure("tensors", len(tensors)),
            report.KeyFigure("models", len(found["models"])),
        ]
        if isinstance(self.plan, MergePlan):
            figures.append(report.KeyFigure("written", format_bytes(self.plan.bytes_written)))
            figures.append(report.KeyFigure("memory, at most", format_bytes(self.plan.peak_memory)))
        notes = [*found.get("copied", ()), *(f"left out: {name}" for name in found.get("dropped", ()))]
        sections = [
            report.Section("Figures", [report.KeyFigures(figures)]),
            report.Section("Tensors", [report.Table(["tensor", "action", "shape or rank"], tensors)]),
        ]
        if notes:
            rows = [[note] for note in notes]
            sections.append(report.Section("Not merged", [report.Table(["tensor"], rows)]))
        page = report.Page(
            title=f"Merge by {found['method']}",
            summary=f"Made from {', '.join(found['models'])}.",
            sections=sections,
            provenance=report.Provenance(parameters={"recipe": self.plan.recipe.text}),
        )
        return report.html.write(page, path, force=force)


def merge(recipe: RecipeLike, *, seed: int | None = None, allow_pickle: bool = False) -> Merge:
    """Read a recipe, open its models, check them, and return the merge ready to `save`.

    Args:
        recipe: a path, a mapping, or the text of a recipe.
        seed: takes the place of the recipe's.
        allow_pickle: also open `.bin` files, weights only.
    """
    found = plan(recipe, allow_pickle=allow_pickle)
    if seed is not None and isinstance(found, MergePlan):
        object.__setattr__(found.recipe, "seed", seed)  # the plan does not depend on it
    return Merge(found)


def _values(part: Floats | memoryview, dtype: str) -> Floats:
    from transship.checkpoints import narrow, widen

    return widen(narrow(part, dtype) if isinstance(part, np.ndarray) else part, dtype)
