"""What has to be known before a tensor can be made: surveys, learnt updates, weights, fitted heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transship.progress import Progress, quiet
from transship.verbs.merge.plan import MergePlan
from transship.verbs.merge.protocol import LearnedMethod
from transship.verbs.merge.recipe.run.kinship import check_kinship
from transship.verbs.merge.recipe.run.prepared import Prepared
from transship.verbs.merge.recipe.run.tensors import Tensors


def prepare(
    plan: MergePlan,
    *,
    opening: Mapping[str, Any] | None = None,
    progress: Progress = quiet,
    check: bool = True,
) -> Prepared:
    """Find out now what every tensor waits for, so that mistakes show before anything is written.

    Args:
        plan: the recipe's.
        opening: how models that run are opened: device, device_map and dtype of `load_model`.
        progress: is told how far models have learnt from data.
        check: refuse models that are not related.
    """
    inner = {model.label: prepare(model.plan, opening=opening, check=check) for model in plan.inner}
    prepared = Prepared(inner=inner)
    if check:
        check_kinship(Tensors(plan, prepared))
    wanting = [step for step in plan.steps if step.method is not None and step.method.wants_survey]
    method = wanting[0].method if wanting else None
    if method is not None and not isinstance(method, LearnedMethod):
        tensors = Tensors(plan, prepared)
        survey = method.survey(lambda: (tensors.operands(step) for step in wanting))
        prepared = replace(prepared, survey=survey)
    runs = isinstance(method, LearnedMethod) or plan.recipe.weights is not None or plan.recipe.fits_heads
    if not runs:
        return prepared
    # start-up: recipes without data run without torch
    from transship.verbs.merge.recipe.run.learning import learn, search_weights
    from transship.verbs.merge.recipe.run.task_heads import fit_heads

    opening = dict(opening or {})
    if isinstance(method, LearnedMethod):
        prepared = replace(prepared, survey=learn(Tensors(plan, prepared), opening, progress))
    if plan.recipe.weights is not None:
        prepared = replace(prepared, weights=search_weights(Tensors(plan, prepared), opening, progress))
    if plan.recipe.fits_heads:
        prepared = replace(prepared, heads=fit_heads(Tensors(plan, prepared), opening, progress))
    return prepared
