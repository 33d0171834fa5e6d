"""Recipes with data: what a method learns before it merges, and the weights that `weights: auto` finds."""

from collections.abc import Mapping
from typing import Any

from transship.errors import OptionError
from transship.progress import Progress, quiet
from transship.verbs.merge.maths.states import Vector
from transship.verbs.merge.protocol import Joint, LearnedMethod
from transship.verbs.merge.recipe.plan.steps import scaled
from transship.verbs.merge.recipe.run.opened import (
    base_weights,
    merged_steps,
    recipe_models,
    shared_names,
    whole_tensor,
)
from transship.verbs.merge.recipe.run.prepared import WeightsFound
from transship.verbs.merge.recipe.run.search import Search
from transship.verbs.merge.recipe.run.tensors import Tensors


def learn(tensors: Tensors, opening: Mapping[str, Any] | None = None, progress: Progress = quiet) -> Vector:
    """Return the joint update that the recipe's method learns."""
    plan = tensors.plan
    steps = merged_steps(plan)
    method = steps[0].method
    if not isinstance(method, LearnedMethod):
        raise TypeError(f"{plan.recipe.method} does not learn")
    for step in steps:
        if step.method != method or step.values != steps[0].values:
            raise OptionError(
                f"the parameters of {plan.recipe.method} differ between tensors, as in '{step.name}'",
                where=plan.recipe.path,
                fix="give one value for all tensors: what is learnt is learnt for the whole model",
            )
    models = recipe_models(tensors, opening, labelled=method.needs_labels)
    names = shared_names(models)
    values = {key: [float(value) for value in given] for key, given in steps[0].values.items()}
    return method.learn(Joint(base_weights(tensors, names), models, values, plan.recipe.seed, progress))


def search_weights(
    tensors: Tensors, opening: Mapping[str, Any] | None = None, progress: Progress = quiet
) -> WeightsFound:
    """Return the factors of the models' weights that bring the merged model nearest to their own answers."""
    rule = tensors.plan.recipe.weights
    if rule is None:
        raise ValueError("the recipe gives its weights")
    models = recipe_models(tensors, opening)
    names = shared_names(models)

    def trial(factors: tuple[float, ...]) -> Vector:
        """Return the merged tensors that the models run with."""
        steps = [step for step in merged_steps(tensors.plan) if step.name in names]
        return {step.name: whole_tensor(tensors.values(scaled(step, factors)), step) for step in steps}

    return Search(models, trial, rule.search, rule.rounds, progress).run()
