"""Writes what a plan makes: a model, one backbone with a head for each task, or an adapter."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from transship.atomic import atomic_folder
from transship.checkpoints import check_finite
from transship.checkpoints.adapters import write_adapter
from transship.checkpoints.card import Input, ModelCard, as_json
from transship.checkpoints.carry import carried_files, with_dtype
from transship.checkpoints.checkpoint import Checkpoint
from transship.checkpoints.write import TensorPlan, write_checkpoint, write_file
from transship.errors import NumericalError
from transship.verbs.merge.plan import MergePlan
from transship.verbs.merge.recipe.adapters import AdapterMerge
from transship.verbs.merge.recipe.models import SAMPLED, StoredModel, sampled_fingerprint
from transship.verbs.merge.recipe.reference import ModelReference
from transship.verbs.merge.recipe.steps import Step
from transship.verbs.merge.recipe.tokenizers import CHAT_TEMPLATES, read_chat_template, without_template

if TYPE_CHECKING:
    from transship.verbs.merge.ahead import Ahead

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Work:
    """How the tensors are made.

    Attributes:
        force: replace an existing folder.
        progress: called with (steps done, steps in all, tensor) before each tensor.
        jobs: threads that make tensors ahead of the writer; 1 makes each when it is written.
        room: bytes of finished tensors that may wait for the writer.
    """

    force: bool = False
    progress: Progress | None = None
    jobs: int = 1
    room: int = 0


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
    plan: MergePlan, watch: _Watch, steps: Sequence[Step], work: Work, ahead: Ahead | None = None
) -> Sequence[TensorPlan]:
    by_name = {step.name: (place, step) for place, step in enumerate(steps)}

    def starting(tensor: TensorPlan) -> None:
        place, watch.step = by_name[tensor.name]
        if work.progress is not None:
            work.progress(place, len(plan.steps), tensor.name)

    def produce(step: Step) -> Callable[[], Any]:
        return lambda: plan.execution.produce(step)

    def announced(tensor: TensorPlan) -> TensorPlan:
        def producer() -> Any:
            starting(tensor)
            return tensor.producer()

        return tensor._replace(producer=producer)

    plans = [TensorPlan(step.name, step.shape, step.dtype, produce(step)) for step in steps]
    return [announced(one) for one in plans] if ahead is None else ahead.plans(plans, starting)


def save_model(plan: MergePlan, folder: str | os.PathLike[str], work: Work) -> Path:
    """Write a folder that `from_pretrained` reads."""
    with contextlib.ExitStack() as stack:
        ahead = None
        if work.jobs > 1:
            from transship.verbs.merge.ahead import Ahead  # threads are not imported where none are used

            ahead = stack.enter_context(Ahead(work.jobs, work.room))
        watch = stack.enter_context(_Watch(plan))
        return write_checkpoint(
            folder,
            _tensor_plans(plan, watch, plan.steps, work, ahead),
            like=_like(plan),
            config=plan.config,
            card=_card(plan),
            files=_files(plan),
            force=work.force,
        )


def save_tasks(plan: MergePlan, folder: str | os.PathLike[str], work: Work) -> Path:
    """Write `backbone/` once, and for each task a folder whose weight files are the backbone's and its head.

    The backbone's files are hard links in every task's folder: a task costs the bytes of its head.
    """
    names = _task_names(plan.outcome.heads)
    with atomic_folder(folder, force=work.force, needs=plan.bytes_written) as place:
        backbone = save_model(plan, place / "backbone", replace(work, force=False))
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
                write_file(task / head, _tensor_plans(plan, watch, steps, Work()))
            weights |= {step.name: head for step in steps}
            index = {
                "metadata": {"total_size": plan.bytes_written},
                "weight_map": dict(sorted(weights.items())),
            }
            (task / "model.safetensors.index.json").write_text(as_json(index), "utf-8")
            config = {**plan.models[reference].model.config, **_shared_settings(plan)}
            (task / "config.json").write_text(as_json(with_dtype(config, steps[0].dtype)), "utf-8")
            own = {*shards, backbone / "config.json", backbone / "model.safetensors.index.json"}
            for path in sorted(backbone.rglob("*")):  # a sentence encoder has folders of its own
                if path.is_file() and path not in own:
                    _link(path, task / path.relative_to(backbone))
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
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        import shutil

        shutil.copyfile(source, target)


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
    return CHAT_TEMPLATES.get(wanted, wanted)


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
        summary=f"Made from several models by the recipe in recipe.yaml. {SAMPLED}",
        parameters={
            "recipe": json.dumps(recipe.text),
            "arithmetic": recipe.arithmetic,
            **plan.execution.prepare(),
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
    inputs = [Input("adapter", str(ref), sampled_fingerprint(one)) for ref, one in merge.adapters.items()]
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
