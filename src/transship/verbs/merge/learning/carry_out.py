"""Recipes with data: what a method learns before it merges, and the weights that `weights: auto` finds."""

import numpy as np
import torch

from transship.errors import OptionError
from transship.verbs.merge.learning.opened import (
    RecipeModel,
    base_weights,
    merged_steps,
    recipe_models,
    shared_names,
)
from transship.verbs.merge.learning.search import Found, Search
from transship.verbs.merge.maths.states import Vector
from transship.verbs.merge.plan import MergePlan
from transship.verbs.merge.protocol import Joint, LearnedMethod, Watch, nobody
from transship.verbs.merge.recipe.steps import scaled


def learn(plan: MergePlan, watch: Watch = nobody) -> Vector:
    """Return the joint update that the recipe's method learns."""
    steps = merged_steps(plan)
    method = steps[0].method
    assert isinstance(method, LearnedMethod)
    for step in steps:
        if step.method != method or step.values != steps[0].values:
            raise OptionError(
                f"the parameters of {plan.recipe.method} differ between tensors, as in '{step.name}'",
                where=plan.recipe.path,
                fix="give one value for all tensors: what is learnt is learnt for the whole model",
            )
    models = recipe_models(plan, labelled=method.needs_labels)
    names = shared_names(models)
    values = {key: [float(value) for value in found] for key, found in steps[0].values.items()}
    return method.learn(Joint(base_weights(plan, names), models, values, plan.recipe.seed, watch))


def search_weights(plan: MergePlan, watch: Watch = nobody) -> Found:
    """Return the factors of the models' weights that bring the merged model nearest to their own answers."""
    rule = plan.recipe.weights
    assert rule is not None
    models = recipe_models(plan)
    shared_names(models)
    return Search(models, Trial(plan, models), rule.search, rule.rounds, watch).run()


class Trial:
    """Makes the merged weights for given factors, in memory.

    Attributes:
        plan: the recipe's.
        models: its models.
    """

    def __init__(self, plan: MergePlan, models: list[RecipeModel]) -> None:
        self.plan, self.models = plan, models

    def __call__(self, factors: tuple[float, ...]) -> Vector:
        """Return the merged tensors that the models run with."""
        found = {}
        for step in merged_steps(self.plan):
            if step.name not in self.models[0].names:
                continue
            parts = self.plan.execution.values(scaled(step, factors))
            whole = np.concatenate([np.array(part) for part in parts])
            found[step.name] = torch.from_numpy(whole).reshape(step.shape)
        return found
