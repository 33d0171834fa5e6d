"""What a recipe will do, known before any weight is read: tensors, tokens, bytes, memory, mistakes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from transship.checkpoints import Adapter, TensorInfo, find_dtype
from transship.errors import OptionError
from transship.numerics import INTERPRETER, format_bytes
from transship.registry import method_class
from transship.verbs.merge.maths.operands import CHUNK
from transship.verbs.merge.protocol import RecipeMethod, parameters_of
from transship.verbs.merge.recipe.plan.adapters import AdapterMerge, merge_adapters
from transship.verbs.merge.recipe.plan.check import check_data, check_models, check_runs, wants_task_heads
from transship.verbs.merge.recipe.plan.configs import output_config
from transship.verbs.merge.recipe.plan.footprint import learning_bytes
from transship.verbs.merge.recipe.plan.layout import Layout, find_layout
from transship.verbs.merge.recipe.plan.models import Aligned, Model, align, open_model
from transship.verbs.merge.recipe.plan.slices import find_spans
from transship.verbs.merge.recipe.plan.steps import Outcome, Step, StepBuilder, check_scopes
from transship.verbs.merge.recipe.plan.vocabulary import Vocabulary, build_vocabulary
from transship.verbs.merge.recipe.read.reference import ModelReference
from transship.verbs.merge.recipe.read.schema import Recipe, parse_recipes, read_recipes

RecipeLike = str | Path | Mapping[str, Any]


@dataclass(frozen=True)
class RecipeOutput:
    """What another recipe makes, as a model of this one.

    Attributes:
        label: what the outer recipe calls it.
        plan: the inner recipe's.
    """

    label: str
    plan: MergePlan

    @property
    def config(self) -> dict[str, Any]:
        """Return the config of the inner output."""
        return self.plan.config

    @property
    def folder(self) -> Path | None:
        """Return where the tokenizer files of the inner output come from."""
        return self.plan.models[self.plan.carrier].model.folder

    @functools.cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Return the inner output's tensors."""
        return {
            step.name: TensorInfo(
                step.name, step.shape, step.dtype, step.size * find_dtype(step.dtype).itemsize
            )
            for step in self.plan.steps
        }

    @property
    def tied(self) -> Mapping[str, str]:
        """Return the aliases of the inner output."""
        return self.plan.tied

    def fingerprint(self) -> str:
        """Return the fingerprints of what it is made of."""
        return "(" + " ".join(model.model.fingerprint() for model in self.plan.models.values()) + ")"


@dataclass(frozen=True)
class MergePlan:
    """Everything that is known of a merge beforehand.

    Attributes:
        models: the opened models, by reference, in the recipe's order; base last unless it is listed.
        outcome: the steps, the heads that are kept apart, and tensors that are copied or left out.
        config: the output's `config.json`.
        vocabulary: the output's words, where the recipe has a rule for them.
    """

    recipe: Recipe
    models: Mapping[ModelReference, Aligned[Model]]
    layout: Layout
    outcome: Outcome
    config: dict[str, Any]
    vocabulary: Vocabulary | None = None

    @property
    def inner(self) -> tuple[RecipeOutput, ...]:
        """Return the models that other recipes make."""
        return tuple(model.model for model in self.models.values() if isinstance(model.model, RecipeOutput))

    @property
    def steps(self) -> list[Step]:
        """Return the steps in the order in which they are written."""
        return self.outcome.steps

    @property
    def carrier(self) -> ModelReference:
        """Return the model whose tokenizer files go along."""
        return self.vocabulary.carrier if self.vocabulary is not None else self.recipe.donor

    @property
    def tied(self) -> dict[str, str]:
        """Return the output's aliases: the donor's, but for tensors that are written."""
        written = {step.name for step in self.steps}
        donor = self.models[self.recipe.donor].model
        return {alias: kept for alias, kept in donor.tied.items() if alias not in written and kept in written}

    @property
    def bytes_read(self) -> int:
        """Return the bytes of all inputs of all steps, each counted once for each step."""
        total = 0
        for step in self._every_step():
            for operand in step.origins:
                info = self.models[operand.reference].info(operand.tensor)
                total += info.nbytes if info is not None else 0
        return total

    @property
    def bytes_written(self) -> int:
        """Return the bytes of the output's tensors."""
        return sum(step.size * find_dtype(step.dtype).itemsize for step in self._every_step())

    @property
    def peak_memory(self) -> int:
        """Return the most anonymous memory that the work takes with one thread, estimated from above."""
        return self.memory_of(1)

    def memory_of(self, jobs: int) -> int:
        """Return the most anonymous memory that `jobs` threads take, finished tensors not counted."""
        whole = max((4 * step.size * step.method.whole for step in self.steps if step.method), default=0)
        kept = sum(max((4 * step.size for step in model.plan.steps), default=0) for model in self.inner)
        widest = max((len(step.origins) for step in self.steps), default=1)
        inner = sum(model.plan.peak_memory - INTERPRETER for model in self.inner)
        return INTERPRETER + self._learning + jobs * (whole + kept + widest * 4 * 4 * CHUNK + inner)

    @functools.cached_property
    def _learning(self) -> int:
        method = next((step.method for step in self.steps if step.method is not None), None)
        elements, merged = sum(step.size for step in self.steps), max(len(step.inputs) for step in self.steps)
        return learning_bytes(self.recipe, method, self.models, elements, merged)

    @property
    def largest_output(self) -> int:
        """Return the bytes of the output's largest tensor."""
        return max((step.size * find_dtype(step.dtype).itemsize for step in self.steps), default=0)

    def _every_step(self) -> list[Step]:
        return [*self.steps, *(step for steps in self.outcome.heads.values() for step in steps)]

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "method": self.recipe.method,
            "models": [str(reference) for reference in self.models],
            "config_from": str(self.recipe.donor),
            "tokenizer_from": str(self.carrier),
            "tensors": [_describe(step) for step in self.steps],
            "heads": {
                str(ref): [_describe(step) for step in steps] for ref, steps in self.outcome.heads.items()
            },
            "data": {str(ref): rule.path for ref in self.models if (rule := self.recipe.data_of(ref))},
            "copied": self.outcome.copied,
            "dropped": self.outcome.dropped,
            "vocabulary": _words(self.vocabulary),
            "parameters": sum(step.size for step in self.steps),
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "peak_memory": self.peak_memory,
        }

    def text(self) -> str:
        """Return the plan as people read it; `as_dict` has every tensor."""
        merged = sum(step.action == "merge" for step in self.steps)
        lines = [
            f"{self.recipe.method} of {', '.join(map(str, self.models))}",
            f"tensors   {len(self.steps)}: {merged} merged, {len(self.steps) - merged} copied",
            f"config    from {self.recipe.donor}; tokenizer from {self.carrier}",
            f"reads     {format_bytes(self.bytes_read)}",
            f"writes    {format_bytes(self.bytes_written)}",
            f"memory    at most {format_bytes(self.peak_memory)}",
        ]
        for reference in self.models:
            if (rule := self.recipe.data_of(reference)) is not None:
                lines.append(f"data      {reference}: {rule.path}")
        for reference, steps in self.outcome.heads.items():
            how = f" ({self.recipe.heads})" if self.recipe.fits_heads else ""
            lines.append(f"head      {reference}: {', '.join(step.name for step in steps)}{how}")
        lines += [f"copied    {note}" for note in _some(self.outcome.copied)]
        lines += [f"dropped   {note}" for note in _some(self.outcome.dropped)]
        if self.vocabulary is not None:
            lines.append(f"words     {self.vocabulary.size} tokens in {self.vocabulary.rows} rows")
            lines += [f"token     {note}" for note in _some(list(self.vocabulary.notes))]
        return "\n".join(lines)


def plan(
    recipe: RecipeLike, *, seed: int | None = None, allow_pickle: bool = False
) -> MergePlan | AdapterMerge:
    """Return what a recipe will do; headers, configs and tokenizers are read, weights are not.

    Args:
        recipe: a path, a mapping, or the text of a recipe (told by its line breaks).
        seed: takes the place of the recipe's.
        allow_pickle: also open `.bin` files, weights only.
    """
    recipes = load(recipe)
    if seed is not None:
        recipes = [*recipes[:-1], dataclasses.replace(recipes[-1], seed=seed)]
    return Planner(allow_pickle).plan_file(recipes, ())


def load(recipe: RecipeLike) -> list[Recipe]:
    """Return the recipes of a file, a text or a mapping."""
    if isinstance(recipe, Mapping):
        import yaml

        return parse_recipes(yaml.safe_dump(dict(recipe), sort_keys=False))
    if isinstance(recipe, str) and "\n" in recipe:
        return parse_recipes(recipe)
    return read_recipes(recipe)


class Planner:
    """Plans recipes, and the recipes that they use."""

    def __init__(self, allow_pickle: bool = False) -> None:
        self._allow_pickle = allow_pickle

    def plan_file(self, recipes: Sequence[Recipe], above: tuple[Path, ...]) -> MergePlan | AdapterMerge:
        """Plan the last recipe of a file; the others before it by the names they have."""
        path = Path(recipes[-1].path)
        above = (*above, path.resolve())
        earlier: dict[str, MergePlan | AdapterMerge] = {}
        later = {recipe.name for recipe in recipes if recipe.name is not None}
        for recipe in recipes:
            planned = self._plan(recipe, above, earlier, later)
            if recipe.name is not None:
                earlier[recipe.name] = planned
        return planned

    def _plan(
        self,
        recipe: Recipe,
        above: tuple[Path, ...],
        earlier: Mapping[str, MergePlan | AdapterMerge],
        names: set[str],
    ) -> MergePlan | AdapterMerge:
        references = recipe.references()
        opened: dict[ModelReference, Model | Adapter] = {}
        for reference in references:
            opened[reference] = self._open(recipe, reference, above, earlier, names)
        listed = [
            source.model for module in recipe.modules for part in module.slices for source in part.sources
        ]
        if all(isinstance(opened[reference], Adapter) for reference in listed):
            if recipe.weights is not None or any(recipe.data_of(reference) for reference in listed):
                raise OptionError(
                    "adapters alone cannot be run on data",
                    where=recipe.path,
                    fix="write base+adapter for each, with base_model:",
                )
            adapters = {ref: cast(Adapter, opened[ref]) for ref in listed}
            return merge_adapters(recipe, adapters, self._allow_pickle)
        for reference, model in opened.items():
            if isinstance(model, Adapter):
                raise OptionError(
                    f"{reference} is an adapter, and others are whole models",
                    where=recipe.path,
                    fix="write base+adapter",
                )
        if recipe.lora_rank is not None:
            raise OptionError(
                "lora_rank is for recipes of adapters alone", where=recipe.path, fix="remove lora_rank"
            )
        return _plan_models(recipe, cast(dict[ModelReference, Model], opened))

    def _open(
        self,
        recipe: Recipe,
        reference: ModelReference,
        above: tuple[Path, ...],
        earlier: Mapping[str, MergePlan | AdapterMerge],
        names: set[str],
    ) -> Model | Adapter:
        text = str(reference)
        if text in earlier:
            return _output(recipe, reference, earlier[text])
        if text in names:
            raise OptionError(
                f"it uses '{text}', which is itself or comes later",
                where=recipe.path,
                fix="put the recipes in the order in which they are needed, without a loop",
            )
        if not reference.is_recipe:
            return open_model(reference, allow_pickle=self._allow_pickle)
        path = Path(recipe.path).parent / reference.model.path
        path = path if path.is_file() else Path(reference.model.path)
        if path.resolve() in above:
            chain = " → ".join(place.name for place in (*above, path))
            raise OptionError(
                f"the recipes use one another in a loop ({chain})", where=recipe.path, fix="break it"
            )
        return _output(recipe, reference, self.plan_file(read_recipes(path), above))


def _output(recipe: Recipe, reference: ModelReference, inner: MergePlan | AdapterMerge) -> RecipeOutput:
    if isinstance(inner, AdapterMerge) or inner.outcome.heads:
        kind = "an adapter" if isinstance(inner, AdapterMerge) else "one model for each task"
        raise OptionError(
            f"{reference} makes {kind}, which another recipe cannot use",
            where=recipe.path,
            fix="save it first",
        )
    return RecipeOutput(str(reference), inner)


def _plan_models(recipe: Recipe, opened: Mapping[ModelReference, Model]) -> MergePlan:
    kind = cast(type[RecipeMethod], method_class("merge", recipe.method.replace("_", "-")))
    check_scopes(recipe, kind)
    check_data(recipe, kind)
    donor = opened[recipe.donor]
    models = {reference: align(model, donor) for reference, model in opened.items()}
    layouts = {
        reference: find_layout(list(model.names), model.model.config, str(reference))
        for reference, model in models.items()
    }
    layout = layouts[recipe.donor]
    depths = {ref: {stack.module: stack.layers for stack in own.stacks} for ref, own in layouts.items()}
    check_models(recipe, models)
    check_runs(recipe, kind, models)
    spans = find_spans(recipe, kind, layout, depths)
    vocabulary = build_vocabulary(recipe, models)
    per_task = wants_task_heads(recipe, models, spans)
    outcome = StepBuilder(recipe, models, layout, spans, vocabulary, per_task).build()
    if not outcome.steps:
        raise OptionError("the models have no tensor in common", where=recipe.path, fix="check the models")
    config = output_config(recipe, models, layout, spans, outcome.steps, vocabulary)
    return MergePlan(recipe, models, layout, outcome, config, vocabulary)


def _describe(step: Step) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": step.name,
        "shape": list(step.shape),
        "dtype": step.dtype,
        "action": step.action,
        "inputs": [f"{operand.reference}: {operand.tensor}" for operand in step.inputs],
    }
    if step.base is not None:
        facts["base"] = f"{step.base.reference}: {step.base.tensor}"
    if step.method is not None:
        fields = {name: getattr(step.method, name) for name in parameters_of(type(step.method), "recipe")}
        facts["parameters"] = {name: value for name, value in fields.items() if name not in step.values}
        facts["per_model"] = {name: list(values) for name, values in step.values.items()}
    if step.note:
        facts["note"] = step.note
    return facts


def _words(vocabulary: Vocabulary | None) -> dict[str, Any] | None:
    if vocabulary is None:
        return None
    return {"tokens": vocabulary.size, "rows": vocabulary.rows, "notes": list(vocabulary.notes)}


def _some(notes: list[str], most: int = 8) -> list[str]:
    return notes if len(notes) <= most else [*notes[:most], f"… and {len(notes) - most} more"]
