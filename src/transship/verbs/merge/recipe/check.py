"""What can be known to be wrong before a merge: other architectures, vocabularies or bases."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from transship.errors import CheckpointError, TransshipWarning
from transship.verbs.merge.recipe.layout import is_head
from transship.verbs.merge.recipe.models import Aligned
from transship.verbs.merge.recipe.reference import ModelReference
from transship.verbs.merge.recipe.schema import Recipe
from transship.verbs.merge.recipe.slices import Span
from transship.verbs.merge.recipe.tokenizers import file_hash, read_vocabulary, vocabulary_file
from transship.verbs.merge.recipe.vocabulary import word_tensors

if TYPE_CHECKING:
    from transship.verbs.merge.plan import MergePlan

KINSHIP = (
    0.3  # cosine between the matrices of a fine-tune and its base; two trainings from scratch have about 0
)
_SAMPLED, _ELEMENTS = 8, 4096


def check_models(recipe: Recipe, models: Mapping[ModelReference, Aligned]) -> None:
    """Refuse models of other architectures, and other vocabularies without a rule for them."""
    donor = models[recipe.donor].model
    for reference, model in models.items():
        mine, theirs = donor.config.get("model_type"), model.model.config.get("model_type")
        if mine != theirs and mine is not None and theirs is not None:
            complain(
                recipe,
                f"it is a {theirs} model, and {recipe.donor} a {mine} model",
                str(reference),
                "merge models of one architecture",
            )
    if recipe.tokenizer is None:
        _check_words(recipe, models)


def complain(recipe: Recipe, what: str, where: str, fix: str) -> None:
    """Raise or warn, as the recipe's `compatibility` says."""
    if recipe.compatibility == "error":
        raise CheckpointError(what, where=where, fix=f"{fix}, or set compatibility: warn")
    if recipe.compatibility == "warn":
        warnings.warn(f"{where}: {what}", TransshipWarning, stacklevel=2)


def _check_words(recipe: Recipe, models: Mapping[ModelReference, Aligned]) -> None:
    """Compare the vocabularies of models that have word embeddings; equal files are not parsed."""
    donor = models[recipe.donor]
    path = vocabulary_file(donor.model.folder)
    rows = max(word_tensors(donor).values(), default=0)
    if path is None or not rows:
        return
    mine: dict[str, int] | None = None
    for reference, model in models.items():
        other = vocabulary_file(model.model.folder)
        if other is None or other == path:
            continue
        if other.name == path.name and file_hash(other) == file_hash(path):
            continue
        mine = mine if mine is not None else read_vocabulary(donor.model.folder)
        theirs = read_vocabulary(model.model.folder)
        if mine is None or theirs is None or mine == theirs:
            continue
        token = next(token for token in (*mine, *theirs) if mine.get(token) != theirs.get(token))
        complain(
            recipe,
            f"its vocabulary differs from that of {recipe.donor}, as in {token!r}, and there is no rule",
            str(reference),
            "add tokenizer_source: union (or base)",
        )


def wants_task_heads(recipe: Recipe, models: Mapping[ModelReference, Aligned], spans: Sequence[Span]) -> bool:
    """Say whether each model keeps its own head: when label sets differ, or the base has no such head."""
    if recipe.heads != "auto":
        return recipe.heads == "per_task"
    references = {reference for span in spans for reference in span.references}
    bases = {span.base for span in spans if span.base is not None}
    heads = {name for reference in references for name in models[reference].names if is_head(name)}
    if not heads:
        return False
    for name in heads:
        shapes = {info.shape if (info := models[ref].info(name)) else None for ref in references}
        if len(shapes) > 1 or any(models[base].info(name) is None for base in bases):
            return True
    labels = {str(models[reference].model.config.get("id2label")) for reference in references}
    return len(labels) > 1


def check_kinship(plan: MergePlan) -> None:
    """Refuse a model whose large matrices have nothing in common with those of the base."""
    if plan.recipe.compatibility == "off":
        return
    steps = [step for step in plan.steps if step.base is not None and len(step.shape) == 2]
    steps = sorted(steps, key=lambda step: -step.shape[0] * step.shape[1])[:_SAMPLED]
    sums: dict[ModelReference, list[float]] = {}
    for step in steps:
        assert step.base is not None
        half = step.shape[0] * step.shape[1] // 2
        part = (max(0, half - _ELEMENTS), half)
        base = plan.execution.reader(step.base)(*part).astype(np.float64)
        for one in step.inputs:
            values = plan.execution.reader(one)(*part).astype(np.float64)
            found = sums.setdefault(one.reference, [0.0, 0.0, 0.0])
            for place, (a, b) in enumerate(((base, values), (base, base), (values, values))):
                found[place] += float(a @ b)
    for reference, (cross, square, other) in sums.items():
        cosine = cross / np.sqrt(square * other) if square > 0 and other > 0 else 1.0
        if cosine < KINSHIP:
            complain(
                plan.recipe,
                f"it is no fine-tune of {plan.recipe.base_model} (cosine of matrices {cosine:.2f})",
                str(reference),
                "give the base that it was trained from",
            )
