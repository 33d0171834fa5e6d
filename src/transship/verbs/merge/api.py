"""`merge(recipe)`: plan, prepare, apply. Tensors are read when they are needed, and written in order."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transship import parallel
from transship.atomic import check_target
from transship.errors import OptionError
from transship.numerics import MemoryBudget
from transship.progress import Progress, quiet
from transship.verbs.merge.maths.operands import Floats
from transship.verbs.merge.plan import MergePlan, RecipeLike, plan
from transship.verbs.merge.recipe.plan.adapters import AdapterMerge
from transship.verbs.merge.recipe.run.prepare import prepare
from transship.verbs.merge.recipe.run.prepared import Prepared
from transship.verbs.merge.recipe.run.tensors import Tensors
from transship.verbs.merge.result import Merged
from transship.verbs.merge.write import Work, save_adapter, save_model, save_tasks

ROOM = 256_000_000  # bytes of finished tensors that wait for the writer where --memory does not say


@dataclass(frozen=True)
class Merge:
    """A recipe that is ready to be carried out.

    Attributes:
        plan: what will be done.
    """

    plan: MergePlan | AdapterMerge

    def tensor(self, name: str) -> Floats:
        """Return one merged tensor as it would be stored, widened to float32."""
        if isinstance(self.plan, AdapterMerge):
            return self.plan.update().dense(name)
        step = next((step for step in self.plan.steps if step.name == name), None)
        if step is None:
            raise OptionError(
                f"the output has no tensor '{name}'", where=self.plan.recipe.path, fix="see merge plan"
            )
        parts = [np.array(part) for part in Tensors(self.plan, self._prepared).stored(step)]
        return np.concatenate(parts or [np.empty(0, np.float32)]).reshape(step.shape)

    def save(self, folder: str | os.PathLike[str], **how: Any) -> Path:
        """Carry the recipe out as `run` does, and return the folder."""
        return self.run(folder, **how).folder

    def run(
        self,
        folder: str | os.PathLike[str],
        *,
        force: bool = False,
        progress: Progress = quiet,
        opening: Mapping[str, Any] | None = None,
        jobs: int = 1,
        memory: int | None = None,
    ) -> Merged:
        """Carry the recipe out and write its result to `folder`, which appears when it is complete.

        Args:
            folder: to write to.
            force: replace an existing folder.
            progress: is told how far models have learnt from data, and how many tensors are written.
            opening: how models that run are opened: device, device_map and dtype of `load_model`.
            jobs: threads that make tensors; the result is the same, bit by bit, for any number.
            memory: the most bytes that the work may take; fewer threads are used where they would not fit.
        """
        check_target(folder, force=force)
        if isinstance(self.plan, AdapterMerge):
            if memory is not None:
                self.check_memory(memory)
            self.plan.check_bases()
            if parallel.is_main():
                save_adapter(self.plan, folder, force)
            return Merged(self.plan, Path(folder))
        jobs, room = self.threads(jobs, memory)
        prepared = prepare(self.plan, opening=opening, progress=progress)
        if parallel.is_main():  # of several processes that learn, one writes
            write = save_tasks if self.plan.outcome.heads else save_model
            write(Tensors(self.plan, prepared), folder, Work(force, progress, jobs, room))
        return Merged(self.plan, Path(folder), prepared.as_dict(self.plan))

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
        """Return what the recipe leaves to be found out on data: the weights of `weights: auto`, heads."""
        return {} if isinstance(self.plan, AdapterMerge) else self._prepared.as_dict(self.plan)

    def check_memory(self, limit: int) -> None:
        """Refuse a merge that may take more than `limit` bytes of memory."""
        MemoryBudget(limit).require(self.plan.peak_memory, "the merge")

    def report(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write a page that says what becomes of every tensor."""
        return Merged(self.plan, Path()).report(path, force=force)

    @functools.cached_property
    def _prepared(self) -> Prepared:
        if isinstance(self.plan, AdapterMerge):
            raise TypeError("adapters need no preparation")
        return prepare(self.plan, check=False)


def merge(recipe: RecipeLike, *, seed: int | None = None, allow_pickle: bool = False) -> Merge:
    """Read a recipe, open its models, check them, and return the merge ready to `save`.

    Args:
        recipe: a path, a mapping, or the text of a recipe.
        seed: takes the place of the recipe's.
        allow_pickle: also open `.bin` files, weights only.
    """
    return Merge(plan(recipe, seed=seed, allow_pickle=allow_pickle))
