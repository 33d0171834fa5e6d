"""What can be known to be wrong before a merge: other architectures, vocabularies or bases."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from transship.checkpoints import Adapter
from transship.errors import CheckpointError, OptionError, TransshipWarning
from transship.verbs.merge.protocol import LearnedMethod, RecipeMethod
from transship.verbs.merge.recipe.layout import is_head
from transship.verbs.merge.recipe.lineage import KINSHIP, SAMPLED, check_adapter, middle
from transship.verbs.merge.recipe.models import Aligned, StoredModel
from transship.verbs.merge.recipe.reference import ModelReference
from transship.verbs.merge.recipe.schema import Recipe
from transship.verbs.merge.recipe.slices import Span
from transship.verbs.merge.recipe.vocabulary import word_tensors
from transship.verbs.merge.recipe.words import Words

if TYPE_CHECKING:
    from transship.verbs.merge.plan import MergePlan
    from transship.verbs.merge.recipe.steps import Step


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


def check_data(recipe: Recipe, kind: type[RecipeMethod]) -> None:
    """Refuse a method that runs models without data for each, and data that nobody would read."""
    sources = [source for module in recipe.modules for part in module.slices for source in part.sources]
    learns, searches = issubclass(kind, LearnedMethod), recipe.weights is not None
    if recipe.weights is not None and (learns or "weight" not in kind.per_model):
        raise OptionError(
            f"{recipe.method} has no weights to search for",
            where=recipe.weights.where,
            fix="remove weights: auto",
        )
    given = [source for source in sources if source.data is not None]
    if not learns and not searches and not recipe.fits_heads:
        if given or recipe.data is not None:
            rule = given[0].data if given else recipe.data
            assert rule is not None
            raise OptionError(
                f"{recipe.method} reads no data",
                where=rule.where,
                fix="remove data:, or set weights: auto or heads: carried",
            )
        return
    what = "weights: auto" if searches else recipe.method if learns else f"heads: {recipe.heads}"
    if any(not module.whole for module in recipe.modules):
        raise OptionError(
            f"{what} runs whole models, and the recipe has slices",
            where=recipe.path,
            fix="list them under models:",
        )
    if recipe.tokenizer is not None:
        raise OptionError(
            f"{what} runs the models as they are, and the recipe changes their words",
            where=recipe.path,
            fix="remove the tokenizer rule",
        )
    for source in sources:
        apart = kind.base != "input" or not (learns or searches)
        if source.data is None and not (apart and source.model == recipe.base_model):
            raise OptionError(
                f"{what} runs {source.model} on inputs of its task, and it has no data",
                where=source.where,
                fix="add data: with a file, a name or a hub id beside its model:",
            )


def check_runs(recipe: Recipe, kind: type[RecipeMethod], models: Mapping[ModelReference, Aligned]) -> None:
    """Refuse models that a method with data cannot run: what another recipe makes, and lone weight files."""
    if recipe.weights is None and not issubclass(kind, LearnedMethod) and not recipe.fits_heads:
        return
    for reference, model in models.items():
        if reference == recipe.base_model and kind.base != "input":
            continue
        if not isinstance(model.model, StoredModel) or model.model.folder is None:
            raise OptionError(
                f"{reference} cannot be run, as it is no folder of a model",
                where=recipe.path,
                fix="save it first, with its config and tokenizer",
            )


def complain(recipe: Recipe, what: str, where: str, fix: str) -> None:
    """Raise or warn, as the recipe's `compatibility` says."""
    if recipe.compatibility == "error":
        raise CheckpointError(what, where=where, fix=f"{fix}, or set compatibility: warn")
    if recipe.compatibility == "warn":
        warnings.warn(f"{where}: {what}", TransshipWarning, stacklevel=2)


def _check_words(recipe: Recipe, models: Mapping[ModelReference, Aligned]) -> None:
    """Refuse any difference between the vocabularies of models that have word embeddings.

    The others are held against the base's, or, where it has no tokenizer, against the first model's that has.
    """
    if not word_tensors(models[recipe.donor]):
        return
    known = {one: Words(models[one].model.folder) for one in dict.fromkeys((recipe.donor, *models))}
    first = next((one for one, words in known.items() if words.file is not None), None)
    if first is None:
        return
    for reference, words in known.items():
        found = known[first].difference(words)
        if found is not None:
            complain(
                recipe,
                f"its vocabulary differs from that of {first}, as in {found.word!r}, and there is no rule",
                str(reference),
                "add tokenizer_source: union (or base)",
            )


def wants_task_heads(recipe: Recipe, models: Mapping[ModelReference, Aligned], spans: Sequence[Span]) -> bool:
    """Say whether each model keeps its own head: when label sets differ, or the base has no such head."""
    if recipe.heads != "auto":
        return recipe.heads != "merge"
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
    """Refuse a model whose large matrices have nothing in common with the base's, or the first model's."""
    for inner in plan.inner:
        check_kinship(inner)
    if plan.recipe.compatibility == "off":
        return
    for reference, model in plan.models.items():
        if isinstance(model.model, StoredModel) and isinstance(model.model.adapter, Adapter):
            check_adapter(
                model.model.adapter,
                model.model.checkpoint,
                where=str(reference),
                complain=partial(complain, plan.recipe),
            )
    steps = [step for step in plan.steps if step.method is not None and len(step.shape) == 2]
    steps = sorted(steps, key=lambda step: -step.shape[0] * step.shape[1])
    for apart in (True, False):
        some = [step for step in steps if (step.base is not None) == apart and len(step.origins) > 1]
        for (first, reference), cosine in _cosines(plan, some[:SAMPLED]).items():
            if cosine < KINSHIP:
                relation = f"no fine-tune of {first}" if apart else f"of another base than {first}"
                complain(
                    plan.recipe,
                    f"it is {relation} (cosine of matrices {cosine:.2f})",
                    str(reference),
                    "give the base that it was trained from" if apart else "merge fine-tunes of one base",
                )


def _cosines(plan: MergePlan, steps: Sequence[Step]) -> dict[tuple[ModelReference, ModelReference], float]:
    """Return the cosine of each model's matrices and those of the base, or of the first model without one.

    Layers that a slice puts side by side may have nothing in common: only those of one name are compared.
    """
    sums: dict[tuple[ModelReference, ModelReference], list[float]] = {}
    for step in steps:
        first = step.base or step.inputs[0]
        part = middle(step.shape[0] * step.shape[1])
        base = plan.execution.reader(first)(*part).astype(np.float64)
        for one in step.inputs:
            if one == first or one.tensor != first.tensor:
                continue
            values = plan.execution.reader(one)(*part).astype(np.float64)
            found = sums.setdefault((first.reference, one.reference), [0.0, 0.0, 0.0])
            for place, (a, b) in enumerate(((base, values), (base, base), (values, values))):
                found[place] += float(a @ b)
    return {
        pair: cross / np.sqrt(square * other) if square > 0 and other > 0 else 1.0
        for pair, (cross, square, other) in sums.items()
    }
