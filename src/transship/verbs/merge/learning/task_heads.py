"""Heads of a recipe's tasks, fitted to the merged model before anything is written.

`carried` is the ridge from merged features onto the task model's own outputs, on unlabelled inputs;
`carried_polished` goes on by cross-entropy against its probabilities; `tuned` is OTMF's, on labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from transship.checkpoints import narrow, widen
from transship.errors import DataError, OptionError
from transship.verbs.merge.fusion.evaluate import accuracy
from transship.verbs.merge.fusion.heads import HeadSettings, LinearHead, carry, polish, tune
from transship.verbs.merge.fusion.tasks import TaskModel
from transship.verbs.merge.learning.opened import RecipeModel, merged_steps, recipe_models
from transship.verbs.merge.maths.states import Vector
from transship.verbs.merge.plan import MergePlan
from transship.verbs.merge.protocol import Floats, Watch, nobody
from transship.verbs.merge.recipe.reference import ModelReference
from transship.verbs.merge.recipe.running import HEAD_BATCH


@dataclass(frozen=True, eq=False)
class FittedHead:
    """A task's last Linear, fitted to the merged features.

    Attributes:
        tensors: output tensor → its values.
        before: share of the inputs that the merged model with the task's own head answers as the task's own
            model does; NaN for heads that give values, not classes.
        after: the same with the fitted head, on the inputs that it was fitted on.
    """

    tensors: dict[str, Floats]
    before: float
    after: float


def fit_heads(plan: MergePlan, watch: Watch = nobody) -> dict[ModelReference, FittedHead]:
    """Return the fitted heads of all models that have data; they are opened one after another."""
    settings, kind = HeadSettings(), plan.recipe.heads
    models = [
        model
        for model in recipe_models(plan, labelled=kind == "tuned", label_share=settings.label_share)
        if plan.recipe.data_of(model.reference) is not None
    ]
    merged = _merged(plan, models)
    found = {}
    for place, model in enumerate(models):
        watch(place, len(models), f"head of {model.name}")
        found[model.reference] = _fit(model, merged, kind, settings)
        model.close()
    return found


def _merged(plan: MergePlan, models: Sequence[RecipeModel]) -> Vector:
    """Return the merged tensors that some model runs with, rounded as they will be stored."""
    wanted = {name for model in models for name in model.names}
    found = {}
    for step in merged_steps(plan):
        if step.name in wanted:
            parts = [
                np.array(
                    widen(narrow(part, step.dtype) if isinstance(part, np.ndarray) else part, step.dtype)
                )
                for part in plan.execution.produce(step)
            ]
            found[step.name] = torch.from_numpy(np.concatenate(parts)).reshape(step.shape)
    return found


def _fit(model: RecipeModel, merged: Vector, kind: str, settings: HeadSettings) -> FittedHead:
    task = model.seen()
    own, names = _last_linear(model, task)
    outputs = own(task.features(model.weights(), HEAD_BATCH))
    features = task.features({name: merged[name] for name in model.names}, HEAD_BATCH)
    if kind == "tuned":
        labels = model.labels()
        if labels is None:
            raise DataError("tuned heads need labels", where=model.name, fix="name the label column in data:")
        head = tune(own, features[: len(labels)], labels, settings)
    else:
        head = carry(features, outputs, own, settings)
        if kind == "carried_polished" and outputs.shape[1] > 1:
            head = polish(head, features, outputs, settings)
    tensors = {names[0]: head.weight.numpy().reshape(-1)}
    if head.bias is not None and names[1] is not None:
        tensors[names[1]] = head.bias.numpy().reshape(-1)
    return FittedHead(tensors, *(_agreement(one(features), outputs) for one in (own, head)))


def _agreement(found: Float[Tensor, "inputs classes"], wanted: Float[Tensor, "inputs classes"]) -> float:
    return accuracy(found, wanted.argmax(1)) if wanted.shape[1] > 1 else float("nan")


def _last_linear(model: RecipeModel, task: TaskModel) -> tuple[LinearHead, tuple[str, str | None]]:
    """Return the model's last Linear, and what the output calls its weight and bias."""
    head = task.model.readout.head if task.model.per_input else None
    linear = None if head is None else task.module.get_submodule(head.path)
    names = model.head_names()
    if head is None or not isinstance(linear, nn.Linear) or head.weight not in names:
        raise OptionError(
            "it has no last linear layer of its own that a head could be fitted for",
            where=model.name,
            fix="give fine-tunes with classification heads, or remove heads: from the recipe",
        )
    bias = None if linear.bias is None else linear.bias.detach().float()
    return (
        LinearHead(linear.weight.detach().float(), bias),
        (names[head.weight], names.get(head.bias) if head.bias is not None else None),
    )
