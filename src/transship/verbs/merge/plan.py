"""`plan(recipe)`: from a recipe to what will be done. What is wrong is refused here; no weight is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

from transship.checkpoints import Adapter
from transship.errors import OptionError
from transship.verbs.merge.protocol import LearnedMethod
from transship.verbs.merge.recipe.plan.adapters import AdapterMerge, merge_adapters
from transship.verbs.merge.recipe.plan.layout import Span, find_layout, find_spans, is_head
from transship.verbs.merge.recipe.plan.merge import MergePlan, RecipeOutput, output_config
from transship.verbs.merge.recipe.plan.models import Model, Models, StoredModel, align, open_model
from transship.verbs.merge.recipe.plan.steps import build_steps
from transship.verbs.merge.recipe.plan.vocabulary import build_vocabulary
from transship.verbs.merge.recipe.plan.words import check_words
from transship.verbs.merge.recipe.read.schema import Recipe, parse_recipes, read_recipes
from transship.verbs.merge.recipe.read.sources import ModelReference

RecipeLike = str | Path | Mapping[str, Any]
AnyPlan = MergePlan | AdapterMerge


def plan(
    recipe: RecipeLike,
    *,
    seed: int | None = None,
    allow_pickle: bool = False,
    compatibility: str | None = None,
) -> AnyPlan:
    """Return what a recipe will do; headers, configs and tokenizers are read, weights are not.

    Args:
        recipe: a path, a mapping, or the text of a recipe.
        seed: takes the place of the recipe's.
        allow_pickle: also open `.bin` files, weights only.
        compatibility: error, warn or off; takes the place of the recipe's.
    """
    recipes = load(recipe)
    if seed is not None:
        recipes = [*recipes[:-1], dataclasses.replace(recipes[-1], seed=seed)]
    if compatibility is not None:
        recipes = [dataclasses.replace(each, compatibility=compatibility) for each in recipes]
    return _plan_file(recipes, (), allow_pickle)


def load(recipe: RecipeLike) -> list[Recipe]:
    """Return the recipes of a file, a text or a mapping."""
    if isinstance(recipe, Mapping):
        return parse_recipes(yaml.safe_dump(dict(recipe), sort_keys=False))
    if isinstance(recipe, str) and "\n" in recipe:
        return parse_recipes(recipe)
    return read_recipes(recipe)


def read_by(plan: AnyPlan) -> dict[str, Any]:
    """Return what a merge reads, by what to call it: recipe, models, their data, inner recipes."""
    recipe = plan.recipe
    reads: dict[str, Any] = {"the recipe": recipe.path}
    for reference in recipe.references():
        rule = recipe.data_of(reference)
        reads[f"the data of {reference}"] = None if rule is None else rule.path
    if isinstance(plan, AdapterMerge):
        return reads | {str(reference): adapter.folder for reference, adapter in plan.adapters.items()}
    for reference, aligned in plan.models.items():
        model = aligned.model
        if isinstance(model, RecipeOutput):
            reads |= read_by(model.plan)
        elif isinstance(model, StoredModel):
            reads[f"the model {reference}"] = model.folder
            reads[f"the adapter {reference}"] = None if model.adapter is None else model.adapter.folder
    return reads


@dataclass(frozen=True)
class _Nearby:
    """What a recipe may name beside models: other recipes.

    Attributes:
        above: its file, and the files of the recipes that use it.
        names: of the recipes in its file.
        earlier: the plans of those that stand before it.
        allow_pickle: also open `.bin` files.
    """

    above: tuple[Path, ...]
    names: frozenset[str]
    allow_pickle: bool
    earlier: Mapping[str, AnyPlan] = field(default_factory=dict)

    def open(self, recipe: Recipe, reference: ModelReference) -> Model | Adapter:
        """Return a model, an adapter, or what another recipe makes."""
        name = str(reference)
        if name in self.earlier:
            return _output(recipe, reference, self.earlier[name])
        if name in self.names:
            raise recipe.error(
                f"it uses '{name}', which is itself or comes later",
                "put the recipes in the order in which they are needed, without a loop",
            )
        if not reference.is_recipe:
            return open_model(reference, allow_pickle=self.allow_pickle)
        path = Path(recipe.path).parent / reference.model.path
        path = path if path.is_file() else Path(reference.model.path)
        if path.resolve() in self.above:
            chain = " → ".join(each.name for each in (*self.above, path))
            raise recipe.error(f"the recipes use one another in a loop ({chain})", "break it")
        return _output(recipe, reference, _plan_file(read_recipes(path), self.above, self.allow_pickle))


def _plan_file(recipes: Sequence[Recipe], above: tuple[Path, ...], allow_pickle: bool) -> AnyPlan:
    """Plan the last recipe of a file; the others before it by the names they have."""
    names = frozenset(recipe.name for recipe in recipes if recipe.name is not None)
    nearby = _Nearby((*above, Path(recipes[-1].path).resolve()), names, allow_pickle)
    for recipe in recipes[:-1]:
        earlier = {**nearby.earlier, str(recipe.name): _plan_recipe(recipe, nearby)}
        nearby = dataclasses.replace(nearby, earlier=earlier)
    return _plan_recipe(recipes[-1], nearby)


def _plan_recipe(recipe: Recipe, nearby: _Nearby) -> AnyPlan:
    opened = {reference: nearby.open(recipe, reference) for reference in recipe.references()}
    listed = [entry.model for entry in recipe.entries]
    if all(isinstance(opened[reference], Adapter) for reference in listed):
        if recipe.weights is not None or any(recipe.data_of(reference) for reference in listed):
            raise recipe.error(
                "adapters alone cannot be run on data", "write base+adapter for each, with base_model:"
            )
        adapters = {reference: cast(Adapter, opened[reference]) for reference in listed}
        return merge_adapters(recipe, adapters, nearby.allow_pickle)
    for reference, model in opened.items():
        if isinstance(model, Adapter):
            raise recipe.error(
                f"{reference} is an adapter, and others are whole models", "write base+adapter"
            )
    for key, given in (
        ("lora_rank", recipe.lora_rank is not None),
        ("lora_space", recipe.lora_space != "full"),
    ):
        if given:
            raise recipe.error(f"{key} is for recipes of adapters alone", f"remove {key}")
    return _plan_models(recipe, cast(dict[ModelReference, Model], opened))


def _output(recipe: Recipe, reference: ModelReference, inner: AnyPlan) -> RecipeOutput:
    if isinstance(inner, AdapterMerge) or inner.outcome.heads:
        kind = "an adapter" if isinstance(inner, AdapterMerge) else "one model for each task"
        raise recipe.error(f"{reference} makes {kind}, which another recipe cannot use", "save it first")
    return RecipeOutput(str(reference), inner)


def _plan_models(recipe: Recipe, opened: Mapping[ModelReference, Model]) -> MergePlan:
    _check_scopes(recipe)
    _check_data(recipe)
    donor = opened[recipe.donor]
    models = {reference: align(model, donor) for reference, model in opened.items()}
    layouts = {
        reference: find_layout(list(model.names), model.model.config, str(reference))
        for reference, model in models.items()
    }
    layout = layouts[recipe.donor]
    depths = {ref: {stack.module: stack.layers for stack in own.stacks} for ref, own in layouts.items()}
    _check_models(recipe, models)
    spans = find_spans(recipe, layout, depths)
    vocabulary = None if recipe.tokenizer is None else build_vocabulary(recipe, recipe.tokenizer, models)
    per_task = _wants_task_heads(recipe, models, spans)
    outcome = build_steps(recipe, models, layout, spans, vocabulary, per_task=per_task)
    if not outcome.steps:
        raise recipe.error("the models have no tensor in common", "check the models")
    config = output_config(recipe, models, layout, spans, outcome.steps, vocabulary)
    return MergePlan(recipe, models, layout, outcome, config, vocabulary, tuple(spans))


def _check_scopes(recipe: Recipe) -> None:
    """Refuse parameters of single models that are the same for all: mergekit would ignore them."""
    per_model = {recipe.kind.spelling.get(name, name) for name in recipe.kind.per_model}
    for entry in recipe.entries:
        for name, setting in entry.parameters.items():
            if name not in per_model:
                raise OptionError(
                    f"{recipe.method} has one {name} for all models",
                    where=setting.where,
                    fix="move it to the parameters of the slice or of the recipe",
                )


def _check_data(recipe: Recipe) -> None:
    """Refuse a method that runs models without data for each, and data that nobody would read."""
    kind, search = recipe.kind, recipe.weights
    learns = issubclass(kind, LearnedMethod)
    if search is not None and (learns or "weight" not in kind.per_model):
        raise OptionError(
            f"{recipe.method} has no weights to search for", where=search.where, fix="remove weights: auto"
        )
    if not recipe.runs_models:
        rule = next((entry.data for entry in recipe.entries if entry.data is not None), recipe.data)
        if rule is not None:
            raise OptionError(
                f"{recipe.method} reads no data",
                where=rule.where,
                fix="remove data:, or set weights: auto or heads: carried",
            )
        return
    what = "weights: auto" if search is not None else recipe.method if learns else f"heads: {recipe.heads}"
    if any(not module.whole for module in recipe.modules):
        raise recipe.error(f"{what} runs whole models, and the recipe has slices", "list them under models:")
    if recipe.tokenizer is not None:
        raise recipe.error(
            f"{what} runs the models as they are, and the recipe changes their words",
            "remove the tokenizer rule",
        )
    for entry in recipe.entries:
        apart = kind.base != "input" or not (learns or search is not None)
        if entry.data is None and not (apart and entry.model == recipe.base_model):
            raise OptionError(
                f"{what} runs {entry.model} on inputs of its task, and it has no data",
                where=entry.where,
                fix="add data: with a file, a name or a hub id beside its model:",
            )


def _check_models(recipe: Recipe, models: Models) -> None:
    """Refuse models of other architectures or words, and models that a method with data cannot run."""
    donor = models[recipe.donor].model
    for reference, model in models.items():
        mine, theirs = donor.config.get("model_type"), model.model.config.get("model_type")
        if mine != theirs and mine is not None and theirs is not None:
            recipe.complain(
                f"its model type is {theirs}, and that of {recipe.donor} is {mine}",
                str(reference),
                "merge models of one architecture",
            )
    if recipe.tokenizer is None:
        check_words(recipe, models)
    for reference, model in models.items() if recipe.runs_models else ():
        if reference == recipe.base_model and recipe.kind.base != "input":
            continue
        if not isinstance(model.model, StoredModel) or model.model.folder is None:
            raise recipe.error(
                f"{reference} cannot be run, as it is no folder of a model",
                "save it first, with its config and tokenizer",
            )


def _wants_task_heads(recipe: Recipe, models: Models, spans: Sequence[Span]) -> bool:
    """Say whether each model keeps its own head: when label sets differ, or the base has no such head."""
    if recipe.heads != "auto":
        return recipe.heads != "merge"
    references = {model.reference for span in spans for model in span.models}
    bases = {span.base.reference for span in spans if span.base is not None}
    heads = {name for reference in references for name in models[reference].names if is_head(name)}
    for name in heads:
        shapes = {info.shape if (info := models[ref].info(name)) else None for ref in references}
        if len(shapes) > 1 or any(models[base].info(name) is None for base in bases):
            return True
    labels = {str(models[reference].model.config.get("id2label")) for reference in references}
    return bool(heads) and len(labels) > 1
