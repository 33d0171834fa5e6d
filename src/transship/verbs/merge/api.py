"""`merge(recipe)`: plan, prepare, apply. Tensors are read when they are needed, and written in order."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from transship import parallel, report
from transship.atomic import check_target
from transship.errors import OptionError
from transship.numerics import MemoryBudget, parse_bytes
from transship.progress import Progress, quiet
from transship.verbs.merge.maths.operands import Floats
from transship.verbs.merge.plan import AnyPlan, RecipeLike, plan, read_by
from transship.verbs.merge.recipe.plan.adapters import AdapterMerge
from transship.verbs.merge.recipe.plan.merge import MergePlan
from transship.verbs.merge.recipe.run.prepare import prepare
from transship.verbs.merge.recipe.run.tensors import PreparedMerge, Tensors
from transship.verbs.merge.settings import RunSettings
from transship.verbs.merge.write import Writing, save_adapter, save_model, save_tasks, shard_bytes

ROOM = 256_000_000  # bytes of finished tensors that wait for the writer where --memory does not say


@dataclass(frozen=True, repr=False)
class Merged:
    """A recipe that was carried out.

    Attributes:
        plan: what was done.
        folder: where the result is.
        learnt: what was found out on data: the weights of `weights: auto`, how heads agree.
    """

    plan: AnyPlan
    folder: Path
    learnt: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return what was merged by what, and where it is."""
        return f"Merged({_named(self.plan)}, folder='{self.folder}')"

    def page(self) -> report.Page:
        """Return what became of every tensor, and what was found out on data."""
        facts = self.plan.facts
        about = report.Facts({**self.learnt, "folder": str(self.folder)}, shown=False)
        return report.Page(
            title=f"Merge by {facts['method']}",
            summary=f"Made from {', '.join(facts['models'])}.",
            sections=[*self.sections(), report.Section("Result", [about]), *self.plan.sections()],
            provenance=report.Provenance(parameters={"recipe": self.plan.recipe.text}),
        )

    def sections(self) -> list[report.Section]:
        """Return what was found out on data, nothing where no data was read."""
        blocks: list[report.Block] = []
        if "weights" in self.learnt:
            search = self.learnt["search"]
            losses = f"loss {search['start']:.4g} → {search['end']:.4g} in {search['trials']} trials"
            blocks.append(report.Table(["model", "weight"], list(self.learnt["weights"].items()), losses))
        shares = self.learnt.get("agreement", {})
        rows = [
            [name, kind.replace("_", " "), f"{share:.1%}"]
            for name, heads in shares.items()
            for kind, share in heads.items()
        ]
        if rows:
            columns = ["model", "head", "answers as its own model does"]
            blocks.append(report.Table(columns, rows, "Share of the inputs that heads were fitted on."))
        return [report.Section("Found on data", blocks)] if blocks else []

    def report(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        return report.html.write(self.page(), path, force=force)


@dataclass(frozen=True, repr=False)
class Merge:
    """A recipe that is ready to be carried out.

    Attributes:
        plan: what will be done.
    """

    plan: AnyPlan

    def __repr__(self) -> str:
        """Return what is merged by what; `plan.page()` has every tensor."""
        return f"Merge({_named(self.plan)})"

    def tensor(self, name: str) -> Floats:
        """Return one merged tensor as it would be stored, widened to float32."""
        if isinstance(self.plan, AdapterMerge):
            return self.plan.update().dense(name)
        step = next((step for step in self.plan.steps if step.name == name), None)
        if step is None:
            raise self.plan.recipe.error(f"the output has no tensor '{name}'", "see merge plan")
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
        **settings: Any,
    ) -> Merged:
        """Carry the recipe out and write its result to `folder`, which appears when it is complete.

        Args:
            folder: to write to.
            force: replace an existing folder.
            progress: is told how far models have learnt from data, and how many tensors are written.
            settings: the fields of `RunSettings`: jobs, memory, device, device_map and dtype.
        """
        how = RunSettings(**settings)
        check_target(folder, force=force, kind="folder", reads=read_by(self.plan))
        threads(self.plan, how)
        names = ("device", "device_map", "dtype", "trust_remote_code")
        opening = {name: getattr(how, name) for name in names}
        prepared = prepare(self.plan, opening=opening, progress=progress)
        return apply(self.plan, prepared, folder, how, force=force, progress=progress)

    def learnt(self) -> dict[str, Any]:
        """Return what the recipe leaves to be found out on data: the weights of `weights: auto`, heads."""
        return {} if isinstance(self.plan, AdapterMerge) else self._prepared.facts(self.plan)

    def check(self, **settings: Any) -> None:
        """Refuse what `run` with these settings would refuse, such as too little memory."""
        threads(self.plan, RunSettings(**settings))

    def report(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write a page that says what becomes of every tensor."""
        return report.html.write(self.plan.page(), path, force=force)

    @functools.cached_property
    def _prepared(self) -> PreparedMerge:
        return prepare(self.plan, check=False)


def _named(plan: AnyPlan) -> str:
    facts = plan.facts
    return f"method='{facts['method']}', models={list(facts['models'])}"


def merge(
    recipe: RecipeLike,
    *,
    seed: int | None = None,
    allow_pickle: bool = False,
    compatibility: str | None = None,
) -> Merge:
    """Read a recipe, open its models, check them, and return the merge ready to `save`.

    Args:
        recipe: a path, a mapping, or the text of a recipe.
        seed: takes the place of the recipe's.
        allow_pickle: also open `.bin` files, weights only.
        compatibility: error, warn or off; takes the place of the recipe's.
    """
    return Merge(plan(recipe, seed=seed, allow_pickle=allow_pickle, compatibility=compatibility))


def apply(
    plan: AnyPlan,
    prepared: PreparedMerge,
    folder: str | os.PathLike[str],
    settings: RunSettings,
    *,
    force: bool = False,
    progress: Progress = quiet,
) -> Merged:
    """Write what a plan makes to `folder`, which appears when it is complete."""
    jobs, room = threads(plan, settings)
    if isinstance(plan, AdapterMerge):
        if parallel.is_main():
            save_adapter(plan, folder, force)
        return Merged(plan, Path(folder))
    shard = shard_bytes(settings.out_shard_size, plan.bytes_written, plan.facts["parameters"])
    parts = {"tokenizer": settings.copy_tokenizer, "card": settings.write_model_card}
    how = Writing(force, progress, jobs, room, shard, **parts)
    if parallel.is_main():  # of several processes that learn, one writes
        write = save_tasks if plan.outcome.heads else save_model
        write(Tensors(plan, prepared), folder, how)
    return Merged(plan, Path(folder), prepared.facts(plan))


def threads(plan: AnyPlan, settings: RunSettings) -> tuple[int, int]:
    """Return how many threads fit the memory limit, and the bytes that finished tensors may take as well.

    A merge that does not even fit with one thread is refused.
    """
    jobs, limit = settings.jobs, settings.memory
    limit = parse_bytes(limit) if isinstance(limit, str) else limit
    if jobs < 1:
        raise OptionError(f"{jobs} threads do no work", where="--jobs", fix="give 1 or more")
    if limit is None:
        return jobs, ROOM
    MemoryBudget(limit).require(plan.peak_memory, "the merge")
    if not isinstance(plan, MergePlan):
        return jobs, ROOM
    while jobs > 1:
        room = limit - plan.memory_of(jobs) - plan.largest_output
        if room >= 0:
            return jobs, min(room, ROOM)
        jobs -= 1
    return 1, 0
