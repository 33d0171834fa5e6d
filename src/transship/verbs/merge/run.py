"""Carries out a recipe: tensor by tensor, read when it is needed, rounded once, written in order."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transship.checkpoints.adapters import write_adapter
from transship.checkpoints.atomic import atomic_folder, check_target
from transship.checkpoints.card import Input, ModelCard, as_json
from transship.checkpoints.carry import carried_files, with_dtype
from transship.checkpoints.checkpoint import Checkpoint
from transship.checkpoints.write import TensorPlan, write_checkpoint, write_file
from transship.errors import NumericalError, OptionError
from transship.numerics import format_bytes
from transship.verbs.merge.methods._protocol import Floats
from transship.verbs.merge.plan import MergePlan, RecipeLike, plan
from transship.verbs.merge.recipe.adapters import AdapterMerge
from transship.verbs.merge.recipe.check import check_kinship
from transship.verbs.merge.recipe.models import StoredModel, sampled_fingerprint
from transship.verbs.merge.recipe.steps import Step
from transship.verbs.merge.recipe.tokenizers import (
    CHAT_TEMPLATES,
    read_chat_template,
    without_template,
)

Progress = Callable[[int, int, str], None]


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
        self, folder: str | os.PathLike[str], *, force: bool = False, progress: Progress | None = None
    ) -> Path:
        """Carry the recipe out and write its result to `folder`, which appears when it is complete.

        Args:
            force: replace an existing folder.
            progress: called with (steps done, steps in all, tensor) before each tensor.
        """
        check_target(folder, force=force)
        if isinstance(self.plan, AdapterMerge):
            return _save_adapter(self.plan, folder, force)
        check_kinship(self.plan)
        if self.plan.outcome.heads:
            return _save_tasks(self.plan, folder, force, progress)
        return _save_model(self.plan, folder, force, progress)

    def check_memory(self, limit: int) -> None:
        """Refuse a merge that may take more than `limit` bytes of memory."""
        if isinstance(self.plan, MergePlan) and self.plan.peak_memory > limit:
            need = format_bytes(self.plan.peak_memory)
            raise OptionError(
                f"the merge takes up to {need} and may take {format_bytes(limit)}",
                where="--memory",
                fix=f"allow {need}",
            )

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
        return page.write(Path(path), force=force)


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


class _Watch:
    """Remembers the tensor in work, so that a NaN is blamed on the input that holds it."""

    def __init__(self, plan: MergePlan) -> None:
        self.plan = plan
        self.step: Step | None = None

    def __enter__(self) -> _Watch:
        # freed at once: it makes the C library keep up to twice as much for reuse, where it would otherwise
        # give back and fetch the pages of every part (9 of 10 page faults of a linear merge)
        np.empty(1 << 21, np.float32)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, NumericalError) and self.step is not None:
            found = self.plan.execution.culprit(self.step)
            if found is not None:
                raise found from None


def _tensor_plans(
    plan: MergePlan, watch: _Watch, steps: Sequence[Step], progress: Progress | None, done: int = 0
) -> Iterator[TensorPlan]:
    total = len(plan.steps)

    def producer(step: Step, place: int) -> Callable[[], Any]:
        def produce() -> Iterator[Floats | memoryview]:
            watch.step = step
            if progress is not None:
                progress(done + place, total, step.name)
            return plan.execution.produce(step)

        return produce

    for place, step in enumerate(steps):
        yield TensorPlan(step.name, step.shape, step.dtype, producer(step, place))


def _save_model(
    plan: MergePlan, folder: str | os.PathLike[str], force: bool, progress: Progress | None
) -> Path:
    with _Watch(plan) as watch:
        return write_checkpoint(
            folder,
            _tensor_plans(plan, watch, plan.steps, progress),
            like=_like(plan),
            config=plan.config,
            card=_card(plan),
            files=_files(plan),
            force=force,
        )


def _save_tasks(
    plan: MergePlan, folder: str | os.PathLike[str], force: bool, progress: Progress | None
) -> Path:
    """Write `backbone/` once, and for each task a folder whose weight files are the backbone's and its head.

    The backbone's files are hard links in every task's folder: a task costs the bytes of its head.
    """
    names = _task_names(plan)
    with atomic_folder(folder, force=force, needs=plan.bytes_written) as place:
        backbone = _save_model(plan, place / "backbone", False, progress)
        shards = sorted(backbone.glob("*.safetensors"))
        count = len(shards) + 1
        for reference, steps in plan.outcome.heads.items():
            task = place / names[reference]
            task.mkdir()
            weights: dict[str, str] = {}
            for number, shard in enumerate(shards, 1):
                name = f"model-{number:05d}-of-{count:05d}.safetensors"
                _link(shard, task / name)
                weights |= dict.fromkeys(_names_in(backbone, shard), name)
            head = f"model-{count:05d}-of-{count:05d}.safetensors"
            with _Watch(plan) as watch:
                write_file(task / head, list(_tensor_plans(plan, watch, steps, None)))
            weights |= {step.name: head for step in steps}
            index = {
                "metadata": {"total_size": plan.bytes_written},
                "weight_map": dict(sorted(weights.items())),
            }
            (task / "model.safetensors.index.json").write_text(as_json(index), "utf-8")
            config = {**plan.models[reference].model.config, **_shared_settings(plan)}
            (task / "config.json").write_text(as_json(with_dtype(config, steps[0].dtype)), "utf-8")
            for path in backbone.iterdir():
                if path.suffix != ".safetensors" and path.name not in (
                    "config.json",
                    "model.safetensors.index.json",
                ):
                    _link(path, task / path.name)
    return Path(folder)


def _shared_settings(plan: MergePlan) -> dict[str, Any]:
    """Return what the merge changed in the config: the number of words and of layers."""
    donor = plan.models[plan.recipe.donor].model.config
    return {key: value for key, value in plan.config.items() if donor.get(key) != value}


def _names_in(folder: Path, shard: Path) -> list[str]:
    from transship.checkpoints import WeightFile

    file = WeightFile(folder / shard.name)
    names = list(file.tensors)
    file.close()
    return names


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        import shutil

        shutil.copyfile(source, target)


def _task_names(plan: MergePlan) -> dict[Any, str]:
    """Return a folder name for each task: the last part of its model's path, numbered where two are alike."""
    names: dict[Any, str] = {}
    for reference in plan.outcome.heads:
        plain = Path(reference.lora.path if reference.lora else reference.model.path).name or "task"
        name, number = plain, 2
        while name in (*names.values(), "backbone"):
            name, number = f"{plain}-{number}", number + 1
        names[reference] = name
    return names


_TOKENIZER_FILES = ("tokenizer", "vocab", "merges.txt", "special_tokens_map", "added_tokens", "chat_template")


def _like(plan: MergePlan) -> Checkpoint | None:
    """Return the checkpoint whose other files go along as they are, where one model gives all of them."""
    donor = _checkpoint(plan, plan.recipe.donor)
    written = {step.name for step in plan.steps}
    return None if plan.carrier != plan.recipe.donor or written & donor.tied.keys() else donor


def _files(plan: MergePlan) -> dict[str, str | bytes]:
    """Return the files that the recipe changes, and those of two models where `_like` is None."""
    files: dict[str, str | bytes] = {}
    if _like(plan) is None:
        donor = carried_files(_checkpoint(plan, plan.recipe.donor))
        found = {name: path for name, path in donor.items() if not _of_tokenizer(name)}
        carried = carried_files(_checkpoint(plan, plan.carrier))
        found |= {name: path for name, path in carried.items() if _of_tokenizer(name)}
        files |= {name: path.read_bytes() for name, path in found.items() if "/" not in name}
    if plan.vocabulary is not None:
        files |= plan.vocabulary.files
    template = _chat_template(plan)
    if template is not None:
        files["chat_template.jinja"] = template
        plain = without_template(plan.models[plan.carrier].model.folder)
        if plain is not None:
            files["tokenizer_config.json"] = plain
    files["recipe.yaml"] = plan.recipe.text
    return files


def _of_tokenizer(name: str) -> bool:
    return name.startswith(_TOKENIZER_FILES) or name.endswith(".model")


def _checkpoint(plan: MergePlan, reference: Any) -> Checkpoint:
    model: Any = plan.models[reference].model
    while not isinstance(model, StoredModel):
        model = model.plan.models[model.plan.carrier].model
    return model.checkpoint


def _chat_template(plan: MergePlan) -> str | None:
    """Return the chat template that the recipe asks for: the most frequent, a built-in one, or Jinja text."""
    wanted = plan.recipe.chat_template
    if wanted is None:
        return None
    if wanted == "auto":
        found = [read_chat_template(model.model.folder) for model in plan.models.values()]
        there = [template for template in found if template is not None]
        return max(there, key=there.count) if there else None
    if wanted in CHAT_TEMPLATES:
        return CHAT_TEMPLATES[wanted]
    if "{" not in wanted:
        raise OptionError(
            f"there is no chat template '{wanted}'",
            where=plan.recipe.path,
            fix=f"choose auto, {', '.join(CHAT_TEMPLATES)}, or give Jinja text",
        )
    return wanted


def _card(plan: MergePlan) -> ModelCard:
    recipe = plan.recipe
    inputs = [
        Input(
            "base" if reference == recipe.base_model else "model", str(reference), model.model.fingerprint()
        )
        for reference, model in plan.models.items()
    ]
    return ModelCard(
        title="Merged model",
        verb="merge",
        method=recipe.method.replace("_", "-"),
        summary="Made from several models by the recipe in recipe.yaml. The fingerprints of the inputs are "
        "SHA-256 over names, shapes, dtypes and the first 4096 bytes of every tensor.",
        parameters={"recipe": json.dumps(recipe.text), "arithmetic": recipe.arithmetic},
        inputs=inputs,
        seed=recipe.seed,
    )


def _save_adapter(merge: AdapterMerge, folder: str | os.PathLike[str], force: bool) -> Path:
    recipe = merge.recipe
    inputs = [Input("adapter", str(ref), sampled_fingerprint(one)) for ref, one in merge.adapters.items()]
    card = ModelCard(
        title="Merged adapter",
        verb="merge",
        method=recipe.method.replace("_", "-"),
        summary="A weighted sum of LoRA adapters, made of their factors.",
        parameters={"recipe": json.dumps(recipe.text)},
        inputs=inputs,
        library="peft",
    )
    return write_adapter(
        folder, merge.update(), dtype=recipe.out_dtype or recipe.dtype or "float32", card=card, force=force
    )
