"""From a recipe to a list of steps: for each tensor of the output, which tensors it is made of, and how."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from transship.checkpoints import TensorInfo
from transship.errors import CheckpointError, OptionError
from transship.registry import method_class
from transship.verbs.merge.protocol import RecipeMethod, parameters_of
from transship.verbs.merge.recipe.plan.layout import Layout, is_head
from transship.verbs.merge.recipe.plan.models import Models
from transship.verbs.merge.recipe.plan.slices import Span
from transship.verbs.merge.recipe.plan.vocabulary import Vocabulary
from transship.verbs.merge.recipe.read.parameters import Setting, layer_position, resolve
from transship.verbs.merge.recipe.read.reference import ModelReference
from transship.verbs.merge.recipe.read.schema import Recipe
from transship.verbs.merge.recipe.read.values import coerce

Action = Literal["merge", "copy"]


@dataclass(frozen=True, slots=True)
class Origin:
    """One input of a step: a model, and the tensor's name in the donor's spelling."""

    reference: ModelReference
    tensor: str


@dataclass(frozen=True, slots=True)
class Step:
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
    inputs: tuple[Origin, ...]
    base: Origin | None = None
    method: RecipeMethod | None = None
    values: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    agree: tuple[Origin, ...] = ()
    note: str = ""

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Return everything that is read."""
        return (*self.inputs, *((self.base,) if self.base else ()), *self.agree)


@dataclass
class Outcome:
    """The steps, and what the user has to know of tensors that are not merged.

    Attributes:
        heads: model → the steps that keep its own head.
        copied: tensors that are taken from one model because others have them not.
        dropped: tensors that are left out, because the recipe says so.
    """

    steps: list[Step] = dataclasses.field(default_factory=list)
    heads: dict[ModelReference, list[Step]] = dataclasses.field(default_factory=dict)
    copied: list[str] = dataclasses.field(default_factory=list)
    dropped: list[str] = dataclasses.field(default_factory=list)


class StepBuilder:
    """Builds the steps of one recipe from opened models."""

    def __init__(
        self,
        recipe: Recipe,
        models: Models,
        layout: Layout,
        spans: Sequence[Span],
        vocabulary: Vocabulary | None,
        per_task: bool,
    ) -> None:
        self.recipe, self.models, self.layout, self.spans = recipe, models, layout, spans
        self.vocabulary, self.per_task = vocabulary, per_task
        kind = method_class("merge", recipe.method.replace("_", "-"))
        if not issubclass(kind, RecipeMethod):
            raise TypeError(recipe.method)
        self.kind = kind
        self.outcome = Outcome()

    def build(self) -> Outcome:
        """Return the steps in the order of the output: before the layers, the layers, after them."""
        around = self._around()
        for name, span in around:
            if self.layout.place(name).before:
                self._step(name, span, None)
        for span in self.spans:
            if span.prefix is not None:
                for layer in range(span.layers):
                    for rest in self._layer_names(span, layer):
                        self._step(f"{span.prefix}.{span.offset + layer}.{rest}", span, layer, rest)
        for name, span in around:
            if not self.layout.place(name).before:
                self._step(name, span, None)
        return self.outcome

    def _around(self) -> list[tuple[str, Span]]:
        """Return the tensors outside the layers, each with the span whose models and parameters it takes."""
        found: dict[str, Span] = {}
        prefixes = {span.prefix for span in self.spans if span.prefix is not None}
        for span in (*self.spans, *reversed(self.spans)):
            for reference in self._references(span):
                for name in self.models[reference].names:
                    place = self.layout.place(name)
                    if place.layer is None and not _in_layers(name, prefixes):
                        found.setdefault(name, self._span_for(place.module, place.before))
        return sorted(found.items())

    def _span_for(self, module: str, before: bool) -> Span:
        mine = [span for span in self.spans if span.module in (module, None)] or list(self.spans)
        return mine[0] if before else mine[-1]

    def _layer_names(self, span: Span, layer: int) -> list[str]:
        names: dict[str, None] = {}
        for reference, first in zip(span.references, span.firsts, strict=True):
            start = f"{span.prefix}.{first + layer}."
            found = self._by_layer(reference).get(start, ())
            names.update(dict.fromkeys(name.removeprefix(start) for name in found))
        return sorted(names)

    @functools.cache  # noqa: B019 (the builder lives as long as the plan is made)
    def _by_layer(self, reference: ModelReference) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for name in self.models[reference].names:
            place = self.layout.place(name)
            if place.layer is not None:
                groups.setdefault(name[: len(name) - len(place.rest)], []).append(name)
        return groups

    def _references(self, span: Span) -> list[ModelReference]:
        return [*span.references, *([span.base] if span.base else [])]

    def _step(self, name: str, span: Span, layer: int | None, rest: str = "") -> None:
        """Add the step for one output tensor, or note why there is none."""
        inputs = [
            Origin(reference, name if layer is None else f"{span.prefix}.{first + layer}.{rest}")
            for reference, first in zip(span.references, span.firsts, strict=True)
        ]
        base = None
        if span.base is not None:
            base = Origin(
                span.base, name if layer is None else f"{span.prefix}.{span.base_first + layer}.{rest}"
            )
        everything = [*inputs, *([base] if base else [])]
        if not any(self.models[one.reference].stored(one.tensor) for one in everything):
            return  # an alias in every model that has it: the tensor it shares data with is merged
        if self.per_task and layer is None and is_head(name):
            self._keep_heads(name, inputs)
            return
        there = [one for one in everything if self._info(one) is not None]
        if len(there) < len(everything):
            self._partly_there(name, there, everything)
            return
        infos = [info for one in everything if (info := self._info(one)) is not None]
        if not all(info.floating for info in infos):
            self._add(
                Step(name, infos[0].shape, infos[0].dtype, "copy", (inputs[0],), agree=tuple(everything[1:]))
            )
            return
        shape = self._shape(name, everything, infos)
        self._add(self._merge(name, shape, infos, inputs, base, span, layer))

    def _add(self, step: Step) -> None:
        self.outcome.steps.append(step)

    def _info(self, origin: Origin) -> TensorInfo | None:
        return self.models[origin.reference].info(origin.tensor)

    def _shape(self, name: str, origins: Sequence[Origin], infos: Sequence[TensorInfo]) -> tuple[int, ...]:
        """Return the output's shape; other shapes than rows of words in the inputs are an error."""
        if self.vocabulary is not None and self.vocabulary.covers(name):
            return (self.vocabulary.rows, *infos[0].shape[1:])
        if len({info.shape for info in infos}) > 1:
            shapes = ", ".join(
                f"{one.reference} {list(info.shape)}" for one, info in zip(origins, infos, strict=True)
            )
            raise CheckpointError(
                f"the models have other shapes: {shapes}",
                where=f"tensor '{name}'",
                fix="merge models of one architecture"
                + ("; set heads: per_task to keep a head for each" if is_head(name) else "")
                + (
                    "; set tokenizer_source: union for other vocabularies" if len(infos[0].shape) == 2 else ""
                ),
            )
        return infos[0].shape

    def _keep_heads(self, name: str, inputs: Sequence[Origin]) -> None:
        for one in inputs:
            info = self._info(one)
            if info is not None:
                dtype = self._dtype([info]) if info.floating else info.dtype
                step = Step(name, info.shape, dtype, "copy", (one,), note=f"the head of {one.reference}")
                self.outcome.heads.setdefault(one.reference, []).append(step)

    def _partly_there(self, name: str, there: list[Origin], everything: list[Origin]) -> None:
        """Follow `extra_tensors` for a tensor that some models have not."""
        rule = self.recipe.extra_tensors
        absent = dict.fromkeys(str(one.reference) for one in everything if one not in there)
        missing = ", ".join(absent)
        donor = next((one for one in there if one.reference == self.recipe.donor), None)
        if rule == "drop" and donor is None:
            self.outcome.dropped.append(f"{name} (not in {missing})")
            return
        if rule == "error" or (rule == "base" and donor is None):
            raise CheckpointError(
                f"only {', '.join(str(one.reference) for one in there)} has it, and {missing} has not",
                where=f"tensor '{name}'",
                fix="set extra_tensors: keep to copy such tensors, or drop to leave them out",
            )
        chosen = donor or there[0]
        info = self._info(chosen)
        assert info is not None
        dtype = self._dtype([info]) if info.floating else info.dtype
        note = f"copied from {chosen.reference}: {missing} {'have' if len(absent) > 1 else 'has'} it not"
        self._add(Step(name, self._shape(name, [chosen], [info]), dtype, "copy", (chosen,), note=note))
        self.outcome.copied.append(f"{name} ({note})")

    def _dtype(self, infos: Sequence[TensorInfo]) -> str:
        return self.recipe.out_dtype or self.recipe.dtype or promoted([info.dtype for info in infos])

    def _merge(
        self,
        name: str,
        shape: tuple[int, ...],
        infos: Sequence[TensorInfo],
        inputs: Sequence[Origin],
        base: Origin | None,
        span: Span,
        layer: int | None,
    ) -> Step:
        position = 0.0 if layer is None else layer_position(layer, span.layers)
        outer = (span.parameters, span.module_parameters, self.recipe.parameters)
        shared, values = {}, {}
        for field, default in parameters_of(self.kind, "recipe").items():
            spelt = self.kind.spelling.get(field, field)
            if field not in self.kind.per_model:
                value = resolve(outer, spelt, name, position)
                if value is not None:
                    shared[field] = coerce(self.kind, field, value, f"{self.recipe.path}, {spelt}")
                elif field in self.kind.required:
                    raise self._missing(spelt, name, None)
                continue
            found = []
            for one, own in zip(inputs, span.own_parameters, strict=True):
                tensor = self.models[one.reference].names[one.tensor]
                value = resolve((own, *outer), spelt, tensor, position)
                if value is None and field == "weight" and self.recipe.weights is not None:
                    value = 1.0 / len(inputs)  # where the search starts
                if value is None and field in self.kind.required:
                    raise self._missing(spelt, name, one.reference)
                where = f"{self.recipe.path}, {spelt} of {one.reference}"
                found.append(default if value is None else coerce(self.kind, field, value, where))
            values[field] = tuple(found)
        method = made(self.kind, tuple(sorted(shared.items())))  # type: ignore[arg-type]
        if values.get("scale") == (None,):  # passthrough: the bytes as they are
            return Step(name, shape, self._dtype(infos), "copy", tuple(inputs))
        return Step(name, shape, self._dtype(infos), "merge", tuple(inputs), base, method, values)

    def _missing(self, parameter: str, name: str, model: ModelReference | None) -> OptionError:
        whose = f" for {model}" if model else ""
        appended = model is not None and model == self.recipe.base_model and self.kind.base == "input"
        fix = f"add parameters: {{{parameter}: …}}" + (", or remove base_model" if appended else "")
        return OptionError(
            f"{self.recipe.method} needs {parameter}{whose}, and no rule gives it for tensor '{name}'",
            where=self.recipe.path,
            fix=fix,
        )


def check_scopes(recipe: Recipe, kind: type[RecipeMethod]) -> None:
    """Refuse parameters of single models that are the same for all: mergekit would ignore them."""
    per_model = {kind.spelling.get(name, name) for name in kind.per_model}
    for module in recipe.modules:
        for part in module.slices:
            for source in part.sources:
                _refuse_shared(source.parameters, per_model, recipe.method)


def _refuse_shared(settings: Mapping[str, Setting], per_model: set[str], method: str) -> None:
    for name, setting in settings.items():
        if name not in per_model:
            raise OptionError(
                f"{method} has one {name} for all models",
                where=setting.where,
                fix="move it to the parameters of the slice or of the recipe",
            )


@functools.lru_cache(maxsize=1024)
def made(kind: type[RecipeMethod], values: tuple[tuple[str, Any], ...]) -> RecipeMethod:
    """Return the method with these parameters; tensors with equal ones share it."""
    return kind(**dict(values))


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


def scaled(step: Step, factors: Sequence[float]) -> Step:
    """Return the step with each model's weight times its factor."""
    weights = tuple(
        float(weight) * factor for weight, factor in zip(step.values["weight"], factors, strict=True)
    )
    return dataclasses.replace(step, values={**step.values, "weight": weights})
