"""From a recipe to a list of steps: for each tensor of the output, which tensors it is made of, and how."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from transship.checkpoints import TensorInfo
from transship.errors import CheckpointError
from transship.verbs.merge.protocol import RecipeMethod, parameters_of
from transship.verbs.merge.recipe.plan.layout import Layout, Span, SpanModel, is_head
from transship.verbs.merge.recipe.plan.models import Models
from transship.verbs.merge.recipe.plan.vocabulary import Vocabulary
from transship.verbs.merge.recipe.read.parameters import layer_position
from transship.verbs.merge.recipe.read.schema import Recipe
from transship.verbs.merge.recipe.read.sources import ModelReference

Action = Literal["merge", "copy"]


@dataclass(frozen=True, slots=True)
class StepInput:
    """One input of a step: a model, and the tensor's name in the donor's spelling."""

    reference: ModelReference
    tensor: str


@dataclass(frozen=True, slots=True)
class TensorStep:
    """How one tensor of the output is made.

    Attributes:
        name: the output tensor.
        dtype: what it is stored in.
        inputs: the models that are merged, in the recipe's order; for a copy, the one that is copied.
        base: the model that updates are taken against, where the method reads it apart.
        method: with the tensor's own shared parameters; None for a copy.
        values: parameter → value for each of `inputs`.
        agree: inputs that must hold the same integers as the one that is copied.
        note: why, where that is not plain.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    action: Action
    inputs: tuple[StepInput, ...]
    base: StepInput | None = None
    method: RecipeMethod | None = None
    values: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    agree: tuple[StepInput, ...] = ()
    note: str = ""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def sources(self) -> tuple[StepInput, ...]:
        return (*self.inputs, *((self.base,) if self.base else ()), *self.agree)

    def scaled(self, factors: Sequence[float]) -> TensorStep:
        """Return the step with each model's weight times its factor."""
        weights = tuple(
            float(weight) * factor for weight, factor in zip(self.values["weight"], factors, strict=True)
        )
        return dataclasses.replace(self, values={**self.values, "weight": weights})

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "name": self.name,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "action": self.action,
            "inputs": [f"{each.reference}: {each.tensor}" for each in self.inputs],
        }
        if self.base is not None:
            facts["base"] = f"{self.base.reference}: {self.base.tensor}"
        if self.method is not None:
            fields = {name: getattr(self.method, name) for name in parameters_of(type(self.method), "recipe")}
            facts["parameters"] = {name: value for name, value in fields.items() if name not in self.values}
            facts["per_model"] = {name: list(values) for name, values in self.values.items()}
        if self.note:
            facts["note"] = self.note
        return facts


@dataclass(frozen=True)
class Outcome:
    """The steps, and what the user has to know of tensors that are not merged.

    Attributes:
        steps: in the order in which they are written.
        heads: model → the steps that keep its own head.
        dropped: tensor → the models that lack it, for tensors that are left out, because the recipe says so.
    """

    steps: tuple[TensorStep, ...]
    heads: Mapping[ModelReference, tuple[TensorStep, ...]]
    dropped: Mapping[str, str]

    @property
    def copied(self) -> list[TensorStep]:
        """Return the steps of tensors that are taken from one model because others lack them."""
        return [step for step in self.steps if step.note]


@dataclass(frozen=True)
class _Target:
    """A tensor of the output: its name, the span that it takes models and settings from, its layer there."""

    name: str
    span: Span
    layer: int | None = None
    rest: str = ""

    @property
    def position(self) -> float:
        """Return where it stands in the depth of its span, from 0 to 1; 0 around the layers."""
        return 0.0 if self.layer is None else layer_position(self.layer, self.span.layers)

    def input(self, model: SpanModel) -> StepInput:
        """Return what a model gives for it."""
        if self.layer is None:
            return StepInput(model.reference, self.name)
        return StepInput(model.reference, f"{self.span.prefix}.{model.first + self.layer}.{self.rest}")


def build_steps(
    recipe: Recipe,
    models: Models,
    layout: Layout,
    spans: Sequence[Span],
    vocabulary: Vocabulary | None,
    *,
    per_task: bool,
) -> Outcome:
    """Return the steps of a recipe's models; `per_task` keeps a head for each model."""
    rules = _Rules(recipe, models, vocabulary)
    steps: list[TensorStep] = []
    heads: dict[ModelReference, list[TensorStep]] = {}
    dropped: dict[str, str] = {}
    for target in _targets(models, layout, spans):
        inputs = tuple(target.input(model) for model in target.span.models)
        base = target.input(target.span.base) if target.span.base is not None else None
        sources = (*inputs, *((base,) if base else ()))
        if not any(models[each.reference].stored(each.tensor) for each in sources):
            continue  # an alias in every model that has it: the tensor it shares data with is merged
        if per_task and target.layer is None and is_head(target.name):
            for step in rules.heads(target.name, inputs):
                heads.setdefault(step.inputs[0].reference, []).append(step)
            continue
        present = [each for each in sources if rules.info(each) is not None]
        if len(present) == len(sources):
            steps.append(rules.step(target, inputs, base))
            continue
        absent = list(dict.fromkeys(str(each.reference) for each in sources if each not in present))
        chosen = rules.only(target.name, present, absent)
        if chosen is None:
            dropped[target.name] = ", ".join(absent)
        else:
            steps.append(chosen)
    return Outcome(tuple(steps), {reference: tuple(own) for reference, own in heads.items()}, dropped)


def _targets(models: Models, layout: Layout, spans: Sequence[Span]) -> Iterator[_Target]:
    """Yield the tensors in the order of the output: before the layers, the layers, after them."""
    around = _around(models, layout, spans)
    yield from (_Target(name, span) for name, span in around if layout.position(name).before)
    groups = {
        reference: _by_layer(models, layout, reference) for span in spans for reference in span.references
    }
    for span in spans:
        for layer in range(span.layers if span.prefix is not None else 0):
            rests = set()
            for model in span.models:
                start = f"{span.prefix}.{model.first + layer}."
                rests |= groups[model.reference].get(start, set())
            for rest in sorted(rests):
                yield _Target(f"{span.prefix}.{span.offset + layer}.{rest}", span, layer, rest)
    yield from (_Target(name, span) for name, span in around if not layout.position(name).before)


def _around(models: Models, layout: Layout, spans: Sequence[Span]) -> list[tuple[str, Span]]:
    """Return the tensors outside the layers, each with the span whose models and parameters it takes."""
    chosen: dict[str, Span] = {}
    prefixes = {span.prefix for span in spans if span.prefix is not None}
    for span in (*spans, *reversed(spans)):
        for reference in span.references:
            for name in models[reference].names:
                position = layout.position(name)
                if position.layer is None and not _in_layers(name, prefixes) and name not in chosen:
                    mine = [other for other in spans if other.module in (position.module, None)] or spans
                    chosen[name] = mine[0] if position.before else mine[-1]
    return sorted(chosen.items(), key=lambda entry: entry[0])


def _by_layer(models: Models, layout: Layout, reference: ModelReference) -> dict[str, set[str]]:
    """Return what stands before a layer's tensors, its number included → the rest of their names."""
    groups: dict[str, set[str]] = {}
    for name in models[reference].names:
        position = layout.position(name)
        if position.layer is not None:
            groups.setdefault(name.removesuffix(position.rest), set()).add(position.rest)
    return groups


@dataclass(frozen=True)
class _Rules:
    """How one tensor is made, by the recipe."""

    recipe: Recipe
    models: Models
    vocabulary: Vocabulary | None

    def info(self, source: StepInput) -> TensorInfo | None:
        """Return shape and dtype of an input, None where its model lacks it."""
        return self.models[source.reference].info(source.tensor)

    def step(self, target: _Target, inputs: tuple[StepInput, ...], base: StepInput | None) -> TensorStep:
        """Return the step of a tensor that all models have."""
        sources = (*inputs, *((base,) if base else ()))
        infos = [info for each in sources if (info := self.info(each)) is not None]
        name = target.name
        if not all(info.floating for info in infos):
            return TensorStep(name, infos[0].shape, infos[0].dtype, "copy", inputs[:1], agree=sources[1:])
        shape, dtype = self._shape(name, sources, infos), self._dtype(infos)
        values = self._per_model(target, inputs)
        if values.get("scale") == (None,):  # passthrough: the bytes as they are
            return TensorStep(name, shape, dtype, "copy", inputs)
        method = self.recipe.kind(**self._shared(target))
        return TensorStep(name, shape, dtype, "merge", inputs, base, method, values)

    def heads(self, name: str, inputs: Sequence[StepInput]) -> Iterator[TensorStep]:
        """Yield the steps that keep each model's own tensor of a head."""
        for each in inputs:
            if (info := self.info(each)) is not None:
                yield self._copy(name, info.shape, each, f"the head of {each.reference}")

    def only(self, name: str, present: Sequence[StepInput], absent: Sequence[str]) -> TensorStep | None:
        """Follow `extra_tensors` for a tensor that some models lack; None where it is left out."""
        rule, missing = self.recipe.extra_tensors, ", ".join(absent)
        donor = next((each for each in present if each.reference == self.recipe.donor), None)
        if rule == "drop" and donor is None:
            return None
        if rule == "error" or (rule == "base" and donor is None):
            raise CheckpointError(
                f"only {', '.join(str(each.reference) for each in present)} has it, and {missing} has not",
                where=f"tensor '{name}'",
                fix="set extra_tensors: keep to copy such tensors, or drop to leave them out",
            )
        chosen = donor or present[0]
        info = self.info(chosen)
        assert info is not None
        note = f"copied from {chosen.reference}: not present in {missing}"
        return self._copy(name, self._shape(name, [chosen], [info]), chosen, note)

    def _copy(self, name: str, shape: tuple[int, ...], source: StepInput, note: str) -> TensorStep:
        info = self.info(source)
        assert info is not None
        dtype = self._dtype([info]) if info.floating else info.dtype
        return TensorStep(name, shape, dtype, "copy", (source,), note=note)

    def _dtype(self, infos: Sequence[TensorInfo]) -> str:
        return self.recipe.out_dtype or self.recipe.dtype or promoted([info.dtype for info in infos])

    def _shape(self, name: str, sources: Sequence[StepInput], infos: Sequence[TensorInfo]) -> tuple[int, ...]:
        """Return the output's shape; other shapes than rows of words in the inputs are an error."""
        shape = infos[0].shape
        if self.vocabulary is not None and self.vocabulary.covers(name):
            return (self.vocabulary.rows, *shape[1:])
        if any(info.shape != shape for info in infos):
            shapes = [
                f"{each.reference} {list(info.shape)}" for each, info in zip(sources, infos, strict=True)
            ]
            fixes = ["merge models of one architecture"]
            fixes += ["set heads: per_task to keep a head for each"] if is_head(name) else []
            fixes += ["set tokenizer_source: union for other vocabularies"] if len(shape) == 2 else []
            raise CheckpointError(
                f"the models have other shapes: {', '.join(shapes)}",
                where=f"tensor '{name}'",
                fix="; ".join(fixes),
            )
        return shape

    def _shared(self, target: _Target) -> dict[str, Any]:
        """Return the method's parameters that hold for all models, where the recipe gives them."""
        kind = self.recipe.kind
        values = {
            field: self.recipe.value(field, target.span.scopes, target.name, target.position)
            for field in parameters_of(kind, "recipe")
            if field not in kind.per_model
        }
        return {field: value for field, value in values.items() if value is not None}

    def _per_model(self, target: _Target, inputs: Sequence[StepInput]) -> dict[str, tuple[Any, ...]]:
        """Return the parameters with a value for each model; filters see the model's own tensor names."""
        recipe, values = self.recipe, {}
        for field, default in parameters_of(recipe.kind, "recipe").items():
            if field not in recipe.kind.per_model:
                continue
            if field == "weight" and recipe.weights is not None:
                default = 1.0 / len(inputs)  # where the search starts
            per_model = []
            for each, model in zip(inputs, target.span.models, strict=True):
                scopes = (model.parameters, *target.span.scopes)
                tensor = self.models[each.reference].names[each.tensor]
                value = recipe.value(field, scopes, tensor, target.position, each.reference)
                per_model.append(default if value is None else value)
            values[field] = tuple(per_model)
        return values


def promoted(dtypes: Sequence[str]) -> str:
    """Return the smallest float dtype that holds all of these."""
    kinds = set(dtypes)
    if len(kinds) == 1:
        return kinds.pop()
    wide = [kind for kind in ("float64", "float32") if kind in kinds]
    if wide:
        return wide[0]
    halves = kinds & {"bfloat16", "float16"}
    return halves.pop() if len(halves) == 1 else "float32"


def _in_layers(name: str, prefixes: set[str]) -> bool:
    return any(
        name.startswith(prefix + ".") and name[len(prefix) + 1 :].split(".")[0].isdigit()
        for prefix in prefixes
    )
