"""Writes what a plan makes: a model, one backbone with a head for each task, or an adapter."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from transship.atomic import atomic_folder
from transship.checkpoints import Checkpoint, WeightFile, check_finite
from transship.checkpoints.adapters import write_adapter
from transship.checkpoints.card import Input, ModelCard, license_of
from transship.checkpoints.write import TensorPlan, carried_files, with_dtype, write_checkpoint
from transship.errors import NumericalError
from transship.numerics import parse_bytes
from transship.progress import Progress, quiet
from transship.verbs.merge.recipe.plan.adapters import AdapterMerge
from transship.verbs.merge.recipe.plan.merge import MergePlan, RecipeOutput
from transship.verbs.merge.recipe.plan.models import SAMPLED, StoredModel, sampled_fingerprint
from transship.verbs.merge.recipe.plan.steps import TensorStep
from transship.verbs.merge.recipe.plan.words import read_chat_template, without_template
from transship.verbs.merge.recipe.read.sources import CHAT_TEMPLATES, ModelReference
from transship.verbs.merge.recipe.run.ahead import Ahead
from transship.verbs.merge.recipe.run.tensors import Tensors
from transship.verbs.merge.settings import PARAMETERS
from transship.verbs.merge.tasks.folder import link, write_task


@dataclass(frozen=True)
class Writing:
    """How the tensors are made.

    Attributes:
        force: replace an existing folder.
        progress: is told how many tensors are written.
        jobs: threads that make tensors ahead of the writer; 1 makes each when it is written.
        room: bytes of finished tensors that may wait for the writer.
        shard: the most bytes of a weight file.
        tokenizer: whether the tokenizer's files go along.
        card: whether README.md and transship.json are written.
    """

    force: bool = False
    progress: Progress = quiet
    jobs: int = 1
    room: int = 0
    shard: int = 5_000_000_000
    tokenizer: bool = True
    card: bool = True


def shard_bytes(text: str, nbytes: int, parameters: int) -> int:
    """Return the most bytes of a file from `5GB`, or from mergekit's `5B`, `500M` or `10K` parameters."""
    counted = PARAMETERS.fullmatch(text.strip().upper())
    if counted is None:
        return max(1, parse_bytes(text, "--out-shard-size"))
    number = float(counted[1]) * {"K": 1e3, "M": 1e6, "B": 1e9}[counted[2]]
    return max(1, round(number * nbytes / max(1, parameters)))


class _Blame:
    """Remembers the tensor in work, so that a NaN is blamed on the input that holds it."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        self.step: TensorStep | None = None

    def __enter__(self) -> _Blame:
        # freed at once: it makes the C library keep up to twice as much for reuse, where it would otherwise
        # give back and fetch the pages of every part (9 of 10 page faults of a linear merge)
        np.empty(1 << 21, np.float32)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, NumericalError) and self.step is not None:
            culprit = self.tensors.culprit(self.step)
            if culprit is not None:
                raise culprit from None


def _tensor_plans(
    blame: _Blame, steps: Sequence[TensorStep], progress: Progress = quiet, ahead: Ahead | None = None
) -> Sequence[TensorPlan]:
    by_name = {step.name: (place, step) for place, step in enumerate(steps)}

    def starting(tensor: TensorPlan) -> None:
        place, blame.step = by_name[tensor.name]
        progress("merging tensors", place, len(steps))

    def produce(step: TensorStep) -> Callable[[], Any]:
        return lambda: blame.tensors.produce(step)

    def announced(tensor: TensorPlan) -> TensorPlan:
        def producer() -> Any:
            starting(tensor)
            return tensor.producer()

        return tensor._replace(producer=producer)

    plans = [TensorPlan(step.name, step.shape, step.dtype, produce(step)) for step in steps]
    return [announced(plan) for plan in plans] if ahead is None else ahead.plans(plans, starting)


def save_model(tensors: Tensors, folder: str | os.PathLike[str], how: Writing) -> Path:
    """Write a folder that `from_pretrained` reads."""
    plan = tensors.plan
    with contextlib.ExitStack() as stack:
        ahead = stack.enter_context(Ahead(how.jobs, how.room)) if how.jobs > 1 else None
        blame = stack.enter_context(_Blame(tensors))
        written = write_checkpoint(
            folder,
            _tensor_plans(blame, plan.steps, how.progress, ahead),
            like=_like(plan) if how.tokenizer else None,
            config=plan.config,
            max_shard_size=how.shard,
            card=_card(tensors) if how.card else None,
            files=_files(plan, tokenizer=how.tokenizer),
            force=how.force,
        )
    how.progress("merging tensors", len(plan.steps), len(plan.steps))
    return written


def save_tasks(tensors: Tensors, folder: str | os.PathLike[str], how: Writing) -> Path:
    """Write `backbone/` once, and for each task a folder whose weight files are the backbone's and its head.

    The backbone's files are hard links in every task's folder: a task costs the bytes of its head.
    """
    plan = tensors.plan
    names = _task_names(plan.outcome.heads)
    with atomic_folder(folder, force=how.force, needs=plan.bytes_written) as place:
        backbone = save_model(tensors, place / "backbone", replace(how, force=False))
        shards = sorted(backbone.glob("*.safetensors"))
        count = len(shards) + 1
        shared = {
            f"model-{number:05d}-of-{count:05d}.safetensors": (shard, _names_in(shard))
            for number, shard in enumerate(shards, 1)
        }
        own = {*shards, backbone / "config.json", backbone / "model.safetensors.index.json"}
        # a sentence encoder has folders of its own
        others = [path for path in sorted(backbone.rglob("*")) if path.is_file() and path not in own]
        for reference, steps in plan.outcome.heads.items():
            task = place / names[reference]
            task.mkdir()
            config = {**plan.models[reference].model.config, **_shared_settings(plan)}
            with _Blame(tensors) as blame:
                write_task(
                    task,
                    shared,
                    (f"model-{count:05d}-of-{count:05d}.safetensors", _tensor_plans(blame, steps)),
                    config=with_dtype(config, steps[0].dtype),
                    total_size=plan.bytes_written,
                )
            for path in others:
                link(path, task / path.relative_to(backbone))
    return Path(folder)


def _shared_settings(plan: MergePlan) -> dict[str, Any]:
    """Return what the merge changed in the config: the number of words and of layers."""
    donor = plan.models[plan.recipe.donor].model.config
    return {key: value for key, value in plan.config.items() if donor.get(key) != value}


def _names_in(shard: Path) -> list[str]:
    file = WeightFile(shard)
    names = list(file.tensors)
    file.close()
    return names


def _task_names(references: Iterable[ModelReference]) -> dict[ModelReference, str]:
    """Return a folder name for each task: the last part of its model's path, numbered where two are alike."""
    names: dict[ModelReference, str] = {}
    for reference in references:
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


def _files(plan: MergePlan, *, tokenizer: bool = True) -> dict[str, str | bytes]:
    """Return the files that the recipe changes, and those of two models where `_like` is None."""
    files: dict[str, str | bytes] = {}
    donor = carried_files(_checkpoint(plan, plan.recipe.donor))
    places = {name: path for name, path in donor.items() if not _of_tokenizer(name)}
    if not tokenizer:
        return {name: path.read_bytes() for name, path in places.items()}
    if _like(plan) is None:
        carried = carried_files(_checkpoint(plan, plan.carrier))
        places |= {name: path for name, path in carried.items() if _of_tokenizer(name)}
        files |= {name: path.read_bytes() for name, path in places.items()}
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


def _checkpoint(plan: MergePlan, reference: ModelReference) -> Checkpoint:
    model = plan.models[reference].model
    while isinstance(model, RecipeOutput):
        model = model.plan.models[model.plan.carrier].model
    if not isinstance(model, StoredModel):
        raise TypeError(f"{reference} has no files")
    return model.checkpoint


def _chat_template(plan: MergePlan) -> str | None:
    """Return the chat template that the recipe asks for: the most frequent, a built-in one, or Jinja text."""
    wanted = plan.recipe.chat_template
    if wanted is None:
        return None
    if wanted == "auto":
        templates = [read_chat_template(model.model.folder) for model in plan.models.values()]
        there = [template for template in templates if template is not None]
        return max(there, key=there.count) if there else None
    return CHAT_TEMPLATES.get(wanted, wanted)


def _card(tensors: Tensors) -> ModelCard:
    plan = tensors.plan
    recipe = plan.recipe
    inputs = [
        Input(
            "base" if reference == recipe.base_model else "model",
            str(reference),
            model.model.fingerprint(),
            license_of(model.model.folder),
        )
        for reference, model in plan.models.items()
    ]
    return ModelCard(
        title="Merged model",
        verb="merge",
        method=recipe.method.replace("_", "-"),
        summary=f"Made from several models by the recipe in recipe.yaml. {SAMPLED}",
        recipe=recipe.text,
        parameters={
            "arithmetic": recipe.arithmetic,
            **tensors.prepared.facts(plan),
        },
        inputs=inputs,
        seed=recipe.seed,
    )


def save_adapter(merge: AdapterMerge, folder: str | os.PathLike[str], force: bool) -> Path:
    """Write a merged adapter from its factors; where adapters bring heads, a folder of one for each task."""
    for adapter in merge.adapters.values():
        check_finite(adapter)
    if not merge.heads:
        return _write_adapter(merge, None, folder, force)
    with atomic_folder(folder, force=force) as place:
        for reference, name in _task_names(merge.adapters).items():
            _write_adapter(merge, reference, place / name, False)
    return Path(folder)


def _write_adapter(
    merge: AdapterMerge, head: ModelReference | None, folder: str | os.PathLike[str], force: bool
) -> Path:
    recipe = merge.recipe
    inputs = [Input("adapter", str(ref), sampled_fingerprint(each)) for ref, each in merge.adapters.items()]
    whose = f" The head is that of {head}." if head in merge.heads else ""
    card = ModelCard(
        title="Merged adapter",
        verb="merge",
        method=recipe.method.replace("_", "-"),
        summary=f"A weighted sum of LoRA adapters, made of their factors.{whose} {SAMPLED}",
        parameters={"recipe": json.dumps(recipe.text)},
        inputs=inputs,
        library="peft",
    )
    given = merge.adapters[head] if head is not None else next(iter(merge.adapters.values()))
    task = given.config.get("task_type")
    return write_adapter(
        folder,
        merge.spoken(head),
        dtype=recipe.out_dtype or recipe.dtype or "float32",
        dense="save",
        task_type=task if isinstance(task, str) else None,
        card=card,
        force=force,
    )
