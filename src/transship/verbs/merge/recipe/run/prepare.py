"""What has to be known before a tensor is made: kinship, surveys, learnt updates, weights, fitted heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from transship.checkpoints import Adapter
from transship.progress import Progress, quiet
from transship.verbs.merge.protocol import LearnedMethod
from transship.verbs.merge.recipe.plan.adapters import AdapterMerge
from transship.verbs.merge.recipe.plan.lineage import KINSHIP, SAMPLED, check_adapter
from transship.verbs.merge.recipe.plan.merge import MergePlan
from transship.verbs.merge.recipe.plan.models import StoredModel, middle_part
from transship.verbs.merge.recipe.plan.steps import TensorStep
from transship.verbs.merge.recipe.read.sources import ModelReference
from transship.verbs.merge.recipe.run.tensors import PreparedMerge, Tensors


def prepare(
    plan: MergePlan | AdapterMerge,
    *,
    opening: Mapping[str, Any] | None = None,
    progress: Progress = quiet,
    check: bool = True,
) -> PreparedMerge:
    """Find out now what every tensor waits for, so that mistakes show before anything is written.

    Args:
        plan: the recipe's.
        opening: how models that run are opened: device, device_map and dtype of `load_model`.
        progress: is told how far models have learnt from data.
        check: refuse models that are not related.
    """
    if isinstance(plan, AdapterMerge):
        plan.check_bases()
        return PreparedMerge()
    inner = {model.label: prepare(model.plan, opening=opening, check=check) for model in plan.inner}
    prepared = PreparedMerge(inner=inner)
    if check:
        check_kinship(Tensors(plan, prepared))
    wanting = [step for step in plan.merged if step.method is not None and step.method.wants_survey]
    method = wanting[0].method if wanting else None
    if method is not None and not isinstance(method, LearnedMethod):
        tensors = Tensors(plan, prepared)
        survey = method.survey(lambda: (tensors.operands(step) for step in wanting))
        prepared = replace(prepared, survey=survey)
    if not plan.recipe.runs_models:
        return prepared
    # start-up: recipes without data run without torch
    from transship.verbs.merge.recipe.run.learning import fit_heads, learn, search_weights

    opening = dict(opening or {})
    if isinstance(method, LearnedMethod):
        prepared = replace(prepared, survey=learn(Tensors(plan, prepared), opening, progress))
    if plan.recipe.weights is not None:
        prepared = replace(prepared, weights=search_weights(Tensors(plan, prepared), opening, progress))
    if plan.recipe.fits_heads:
        prepared = replace(prepared, heads=fit_heads(Tensors(plan, prepared), opening, progress))
    return prepared


def check_kinship(tensors: Tensors) -> None:
    """Refuse a model whose large matrices have nothing in common with the base's, or the first model's."""
    plan = tensors.plan
    if plan.recipe.compatibility == "off":
        return
    complain = plan.recipe.complain
    for reference, aligned in plan.models.items():
        model = aligned.model
        if isinstance(model, StoredModel) and isinstance(model.adapter, Adapter):
            check_adapter(model.adapter, model.checkpoint, where=str(reference), complain=complain)
    steps = sorted((step for step in plan.merged if len(step.shape) == 2), key=lambda step: -step.size)
    for apart in (True, False):
        some = [step for step in steps if (step.base is not None) == apart and len(step.sources) > 1]
        for (first, reference), cosine in _cosines(tensors, some[:SAMPLED]).items():
            if cosine < KINSHIP:
                relation = f"no fine-tune of {first}" if apart else f"of another base than {first}"
                fix = "give the base that it was trained from" if apart else "merge fine-tunes of one base"
                complain(f"it is {relation} (cosine of matrices {cosine:.2f})", str(reference), fix)


def _cosines(
    tensors: Tensors, steps: Sequence[TensorStep]
) -> dict[tuple[ModelReference, ModelReference], float]:
    """Return the cosine of each model's matrices and those of the base, or of the first model without one.

    Layers that a slice puts side by side may have nothing in common: only those of one name are compared.
    """
    sums: dict[tuple[ModelReference, ModelReference], list[float]] = {}
    for step in steps:
        first = step.base or step.inputs[0]
        part = middle_part(step.size)
        base = tensors.reader(first)(*part).astype(np.float64)
        for source in step.inputs:
            if source == first or source.tensor != first.tensor:
                continue
            values = tensors.reader(source)(*part).astype(np.float64)
            products = sums.setdefault((first.reference, source.reference), [0.0, 0.0, 0.0])
            for place, (a, b) in enumerate(((base, values), (base, base), (values, values))):
                products[place] += float(a @ b)
    return {
        pair: cross / np.sqrt(square * other) if square > 0 and other > 0 else 1.0
        for pair, (cross, square, other) in sums.items()
    }
