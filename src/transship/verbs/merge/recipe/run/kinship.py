"""Whether the models of a recipe are related: what only weights can show."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from transship.checkpoints import Adapter
from transship.verbs.merge.recipe.plan.check import complain
from transship.verbs.merge.recipe.plan.lineage import KINSHIP, SAMPLED, check_adapter, middle
from transship.verbs.merge.recipe.plan.models import StoredModel
from transship.verbs.merge.recipe.plan.steps import Step
from transship.verbs.merge.recipe.read.reference import ModelReference
from transship.verbs.merge.recipe.run.tensors import Tensors


def check_kinship(tensors: Tensors) -> None:
    """Refuse a model whose large matrices have nothing in common with the base's, or the first model's."""
    plan = tensors.plan
    if plan.recipe.compatibility == "off":
        return
    complaint = partial(complain, plan.recipe)
    for reference, model in plan.models.items():
        if isinstance(model.model, StoredModel) and isinstance(model.model.adapter, Adapter):
            check_adapter(
                model.model.adapter, model.model.checkpoint, where=str(reference), complain=complaint
            )
    steps = [step for step in plan.steps if step.method is not None and len(step.shape) == 2]
    steps = sorted(steps, key=lambda step: -step.size)
    for apart in (True, False):
        some = [step for step in steps if (step.base is not None) == apart and len(step.origins) > 1]
        for (first, reference), cosine in _cosines(tensors, some[:SAMPLED]).items():
            if cosine < KINSHIP:
                relation = f"no fine-tune of {first}" if apart else f"of another base than {first}"
                fix = "give the base that it was trained from" if apart else "merge fine-tunes of one base"
                complaint(f"it is {relation} (cosine of matrices {cosine:.2f})", str(reference), fix)


def _cosines(tensors: Tensors, steps: Sequence[Step]) -> dict[tuple[ModelReference, ModelReference], float]:
    """Return the cosine of each model's matrices and those of the base, or of the first model without one.

    Layers that a slice puts side by side may have nothing in common: only those of one name are compared.
    """
    sums: dict[tuple[ModelReference, ModelReference], list[float]] = {}
    for step in steps:
        first = step.base or step.inputs[0]
        part = middle(step.size)
        base = tensors.reader(first)(*part).astype(np.float64)
        for operand in step.inputs:
            if operand == first or operand.tensor != first.tensor:
                continue
            values = tensors.reader(operand)(*part).astype(np.float64)
            products = sums.setdefault((first.reference, operand.reference), [0.0, 0.0, 0.0])
            for place, (a, b) in enumerate(((base, values), (base, base), (values, values))):
                products[place] += float(a @ b)
    return {
        pair: cross / np.sqrt(square * other) if square > 0 and other > 0 else 1.0
        for pair, (cross, square, other) in sums.items()
    }
