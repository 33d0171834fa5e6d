"""What a recipe with data finds out before it merges: what its method learns, weights, and fitted heads.

Of the heads, `carried` is the ridge from merged features onto the task model's own outputs, on unlabelled
inputs; `carried_polished` goes on by cross-entropy against its probabilities; `tuned` is OTMF's, on labels.
"""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from transship.errors import DataError, OptionError
from transship.progress import Progress, quiet
from transship.verbs.merge.maths.states import Vector
from transship.verbs.merge.protocol import Joint, LearnedMethod
from transship.verbs.merge.recipe.plan.footprint import HEAD_BATCH
from transship.verbs.merge.recipe.read.sources import ModelReference
from transship.verbs.merge.recipe.run.opened import (
    RecipeModel,
    base_weights,
    recipe_models,
    shared_names,
    whole_tensor,
)
from transship.verbs.merge.recipe.run.search import Search
from transship.verbs.merge.recipe.run.tensors import FittedHead, FoundWeights, Tensors
from transship.verbs.merge.tasks.heads import HeadSettings, LinearHead, accuracy, carry, polish, tune
from transship.verbs.merge.tasks.model import TaskModel


def learn(tensors: Tensors, opening: Mapping[str, Any] | None = None, progress: Progress = quiet) -> Vector:
    """Return the joint update that the recipe's method learns."""
    plan = tensors.plan
    steps = plan.merged
    method = steps[0].method
    if not isinstance(method, LearnedMethod):
        raise TypeError(f"{plan.recipe.method} does not learn")
    for step in steps:
        if step.method != method or step.values != steps[0].values:
            raise plan.recipe.error(
                f"the parameters of {plan.recipe.method} differ between tensors, as in '{step.name}'",
                "give one value for all tensors: what is learnt is learnt for the whole model",
            )
    models = recipe_models(tensors, opening, labelled=method.needs_labels)
    names = shared_names(models)
    values = {key: [float(value) for value in given] for key, given in steps[0].values.items()}
    return method.learn(Joint(base_weights(tensors, names), models, values, plan.recipe.seed, progress))


def search_weights(
    tensors: Tensors, opening: Mapping[str, Any] | None = None, progress: Progress = quiet
) -> FoundWeights:
    """Return the factors of the models' weights that bring the merged model nearest to their own answers."""
    rule = tensors.plan.recipe.weights
    if rule is None:
        raise ValueError("the recipe gives its weights")
    models = recipe_models(tensors, opening)
    names = shared_names(models)

    def trial(factors: tuple[float, ...]) -> Vector:
        """Return the merged tensors that the models run with."""
        steps = [step for step in tensors.plan.merged if step.name in names]
        return {step.name: whole_tensor(tensors.values(step.scaled(factors)), step) for step in steps}

    return Search(models, trial, rule.search, rule.rounds, progress).run()


def fit_heads(
    tensors: Tensors, opening: Mapping[str, Any] | None = None, progress: Progress = quiet
) -> dict[ModelReference, FittedHead]:
    """Return the fitted heads of all models that have data; they are opened one after another."""
    settings, recipe = HeadSettings(), tensors.plan.recipe
    labelled = recipe.heads == "tuned"
    models = [
        model
        for model in recipe_models(tensors, opening, labelled=labelled, label_share=settings.label_share)
        if recipe.data_of(model.reference) is not None
    ]
    # the merged tensors that some model runs with, rounded as they will be stored
    wanted = {name for model in models for name in model.names}
    steps = [step for step in tensors.plan.merged if step.name in wanted]
    merged = {step.name: whole_tensor(tensors.stored(step), step) for step in steps}
    heads = {}
    for place, model in enumerate(models):
        progress("fitting heads", place, len(models))
        heads[model.reference] = _fit(model, merged, recipe.heads, settings)
        model.close()
    progress("fitting heads", len(models), len(models))
    return heads


def _fit(model: RecipeModel, merged: Vector, kind: str, settings: HeadSettings) -> FittedHead:
    task = model.view()
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
    return FittedHead(tensors, *(_agreement(each(features), outputs) for each in (own, head)))


def _agreement(outputs: Float[Tensor, "inputs classes"], wanted: Float[Tensor, "inputs classes"]) -> float:
    return accuracy(outputs, wanted.argmax(1)) if wanted.shape[1] > 1 else float("nan")


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
