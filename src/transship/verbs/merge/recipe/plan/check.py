"""What can be known to be wrong before a merge: other architectures, vocabularies or bases."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from transship.errors import CheckpointError, OptionError, TransshipWarning
from transship.verbs.merge.protocol import LearnedMethod, RecipeMethod
from transship.verbs.merge.recipe.plan.layout import is_head
from transship.verbs.merge.recipe.plan.models import Models, StoredModel
from transship.verbs.merge.recipe.plan.slices import Span
from transship.verbs.merge.recipe.plan.vocabulary import word_tensors
from transship.verbs.merge.recipe.plan.words import Words
from transship.verbs.merge.recipe.read.schema import Recipe


def check_models(recipe: Recipe, models: Models) -> None:
    """Refuse models of other architectures, and other vocabularies without a rule for them."""
    donor = models[recipe.donor].model
    for reference, model in models.items():
        mine, theirs = donor.config.get("model_type"), model.model.config.get("model_type")
        if mine != theirs and mine is not None and theirs is not None:
            complain(
                recipe,
                f"its model type is {theirs}, and that of {recipe.donor} is {mine}",
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


def check_runs(recipe: Recipe, kind: type[RecipeMethod], models: Models) -> None:
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


def _check_words(recipe: Recipe, models: Models) -> None:
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


def wants_task_heads(recipe: Recipe, models: Models, spans: Sequence[Span]) -> bool:
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
