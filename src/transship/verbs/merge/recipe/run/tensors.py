"""The tensors of a plan: what was found out for them, a method's readers, and one output tensor in parts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transship.checkpoints import TensorInfo, find_dtype, narrow, widen
from transship.errors import CheckpointError, NumericalError
from transship.numerics import chunks
from transship.verbs.merge.maths.operands import CHUNK, Floats, Operands, Reader
from transship.verbs.merge.recipe.plan.merge import MergePlan, RecipeOutput
from transship.verbs.merge.recipe.plan.models import Aligned, Model, Readable, StoredModel
from transship.verbs.merge.recipe.plan.steps import StepInput, TensorStep, promoted
from transship.verbs.merge.recipe.read.sources import ModelReference
from transship.verbs.merge.recipe.run.planar import interleaved, planar_operands


@dataclass(frozen=True)
class FoundWeights:
    """The result of `weights: auto`.

    Attributes:
        factors: of each model's weight.
        loss: at these factors.
        start: the loss of the recipe as it was.
        trials: merges that were tried.
    """

    factors: tuple[float, ...]
    loss: float
    start: float
    trials: int


@dataclass(frozen=True, eq=False)
class FittedHead:
    """A task's last Linear, fitted to the merged features.

    Attributes:
        tensors: output tensor → its values.
        before: share of the inputs that the merged model with the task's own head answers as the task's own
            model does; NaN for heads that give values, not classes.
        after: the same with the fitted head, on the inputs that it was fitted on.
    """

    tensors: dict[str, Floats]
    before: float
    after: float


@dataclass(frozen=True, eq=False)
class PreparedMerge:
    """Everything that is found out for a plan from weights and data.

    Attributes:
        survey: what the method knows of the whole model, or has learnt.
        weights: what `weights: auto` found; None where the recipe gives the weights.
        heads: those that are fitted to the merged model, by model.
        inner: the same for the recipes whose outputs are models of this one, by their names in it.
    """

    survey: Any = None
    weights: FoundWeights | None = None
    heads: Mapping[ModelReference, FittedHead] = field(default_factory=dict)
    inner: Mapping[str, PreparedMerge] = field(default_factory=dict)

    def weighted(self, step: TensorStep) -> TensorStep:
        """Return a step with the weights that were found, or with its own."""
        return step if self.weights is None else step.scaled(self.weights.factors)

    def facts(self, plan: MergePlan) -> dict[str, Any]:
        """Return what the recipe left open: the weights that were searched for, and how far they brought the
        loss down; how often the merged model answers as each task's own one, with that one's head and with
        the fitted one.
        """
        heads = {
            str(reference): {"own": round(head.before, 4), plan.recipe.heads: round(head.after, 4)}
            for reference, head in self.heads.items()
        }
        agreement = {"agreement": heads} if heads else {}
        if self.weights is None:
            return agreement
        step = self.weighted(plan.merged[0])
        weights = {
            str(source.reference): round(float(weight), 6)
            for source, weight in zip(step.inputs, step.values["weight"], strict=True)
        }
        losses = {"start": self.weights.start, "end": self.weights.loss, "trials": self.weights.trials}
        return {"weights": weights, "search": losses, **agreement}


class Tensors:
    """The tensors of a plan, any of them in any order, by any number of threads.

    Attributes:
        plan: the recipe's.
        prepared: what was found out for it.
        models: its models, those that other recipes make computed when they are read.
    """

    def __init__(self, plan: MergePlan, prepared: PreparedMerge | None = None) -> None:
        self.plan, self.prepared = plan, prepared or PreparedMerge()
        self.models: Mapping[ModelReference, Aligned[Readable]] = {
            reference: Aligned(self._readable(aligned.model), aligned.names)
            for reference, aligned in plan.models.items()
        }

    def produce(self, step: TensorStep) -> Iterator[Floats | memoryview]:
        """Yield one output tensor in flat parts: float32 values, or its bytes where they are copied."""
        method = step.method
        if method is None:
            head = self.prepared.heads.get(step.inputs[0].reference)
            fitted = None if head is None else head.tensors.get(step.name)
            return self._copy(step) if fitted is None else iter((fitted,))
        if method.finite and (error := self.culprit(step)) is not None:
            raise error
        step = self.prepared.weighted(step)
        operands = self.operands(step)
        paired = method.elementwise and step.dtype == "bfloat16" and operands.rounded is None
        paired = paired and not self._has_words(step.name)
        pairs = planar_operands(self.models, step, operands) if paired else None
        return method.merge(operands) if pairs is None else interleaved(method.merge(pairs))

    def stored(self, step: TensorStep) -> Iterator[Floats]:
        """Yield one output tensor in flat parts, rounded as it is stored and widened again."""
        for part in self.produce(step):
            yield widen(narrow(part, step.dtype) if isinstance(part, np.ndarray) else part, step.dtype)

    def values(self, step: TensorStep) -> Iterator[Floats]:
        """Yield one merged tensor in flat float32 parts, with the weights that the step has."""
        if step.method is None:
            raise ValueError(f"{step.name} is copied")
        return step.method.merge(self.operands(step))

    def operands(self, step: TensorStep) -> Operands:
        labels: list[str] = []
        for source in step.inputs:
            label = str(source.reference)
            same = sum(other.split("#")[0] == label for other in labels)
            labels.append(f"{label}#{same + 1}" if same else label)
        rounding = self._rounding(step)
        return Operands(
            name=step.name,
            shape=step.shape,
            models=[self.reader(source, rounding) for source in step.inputs],
            base=self.reader(step.base, rounding) if step.base is not None else None,
            values=step.values,
            labels=labels,
            seed=self.plan.recipe.seed,
            rounded=rounding,
            survey=self.prepared.survey,
        )

    def reader(self, source: StepInput, rounding: Callable[[Floats], Floats] | None = None) -> Reader:
        """Return the reader of one input, with its rows in the output's order where they are words."""
        vocabulary = self.plan.vocabulary
        if vocabulary is not None and self._has_words(source.tensor):
            read = vocabulary.reader(source.reference, source.tensor, self.models)
        else:
            read = self.models[source.reference].reader(source.tensor)
        if rounding is None:
            return read
        return lambda start, stop: rounding(np.array(read(start, stop)))

    def culprit(self, step: TensorStep) -> NumericalError | None:
        """Return the error about the input of a step that holds a NaN or an infinity, None when none does."""
        for source in step.sources:
            read, info = self.reader(source), self.models[source.reference].info(source.tensor)
            for part in chunks(0 if info is None else info.size, CHUNK):
                finite = np.isfinite(read(part.start, part.stop))
                if not finite.all():
                    place = part.start + int(finite.argmin())
                    return NumericalError(
                        f"tensor '{source.tensor}' holds a NaN or an infinity at element {place}",
                        where=str(source.reference),
                        fix="use weights from before training diverged",
                    )
        return None

    def _readable(self, model: Model) -> Readable:
        if isinstance(model, RecipeOutput):
            return ComputedModel(model, Tensors(model.plan, self.prepared.inner.get(model.label)))
        if isinstance(model, StoredModel):
            return model
        raise TypeError(f"{model.label} cannot be read")

    def _has_words(self, name: str) -> bool:
        """Say whether a tensor's rows are put in the order of the output's words."""
        return self.plan.vocabulary is not None and self.plan.vocabulary.covers(name)

    def _rounding(self, step: TensorStep) -> Callable[[Floats], Floats] | None:
        """Return what rounds to the dtype that mergekit computes in, None for float32."""
        recipe = self.plan.recipe
        if recipe.arithmetic != "mergekit":
            return None
        infos = [self.models[source.reference].info(source.tensor) for source in step.sources]
        dtype = recipe.dtype or promoted([info.dtype for info in infos if info is not None])
        if dtype in ("float32", "float64"):
            return None
        if step.method is not None and not step.method.parity:
            raise recipe.error(
                f"arithmetic: mergekit in {dtype} is not there for {recipe.method}",
                "set dtype: float32, or remove arithmetic",
            )

        def rounded(values: Floats) -> Floats:
            values[:] = widen(narrow(values, dtype), dtype)
            return values

        return rounded

    def _copy(self, step: TensorStep) -> Iterator[Floats | memoryview]:
        """Yield the bytes of a tensor, or its values where the dtype or the rows change."""
        source = step.inputs[0]
        model = self.models[source.reference]
        self._check_agreement(step)
        info = model.info(source.tensor)
        same = info is not None and info.dtype == step.dtype and not self._has_words(source.tensor)
        raw = model.raw(source.tensor) if same else None
        if raw is None and not find_dtype(step.dtype).floating:
            raw = model.raw(source.tensor)
        if raw is not None and not find_dtype(step.dtype).floating:
            yield raw
            return
        read = self.reader(source)
        width = find_dtype(step.dtype).itemsize
        for part in chunks(step.size, CHUNK):
            values = read(part.start, part.stop)
            if not np.isfinite(values).all() and (error := self.culprit(step)) is not None:
                raise error
            yield values if raw is None else raw[part.start * width : part.stop * width]

    def _check_agreement(self, step: TensorStep) -> None:
        first = self.models[step.inputs[0].reference].raw(step.inputs[0].tensor)
        for other in step.agree:
            if self.models[other.reference].raw(other.tensor) != first:
                raise CheckpointError(
                    f"{step.inputs[0].reference} and {other.reference} hold different integers",
                    where=f"tensor '{step.name}'",
                    fix="make them equal: integers are copied, not merged",
                )


class ComputedModel:
    """What another recipe makes, as a model: a tensor is computed when it is read, and the last is kept."""

    def __init__(self, model: RecipeOutput, inner: Tensors) -> None:
        self.model, self._inner = model, inner
        self.label, self.config, self.folder = model.label, model.config, model.folder
        self._steps = {step.name: step for step in model.plan.steps}
        self._last: tuple[str, Floats] | None = None
        self._lock = threading.Lock()

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self.model.tensors

    @property
    def tied(self) -> Mapping[str, str]:
        return self.model.tied

    def fingerprint(self) -> str:
        return self.model.fingerprint()

    def reader(self, name: str) -> Reader:
        """Return the reader of a tensor, rounded as the inner recipe would store it."""
        step = self._steps[self.tied.get(name, name)]
        values: Floats | None = None  # a reader keeps its own: threads read several tensors at a time

        def read(start: int, stop: int) -> Floats:
            nonlocal values
            if values is None:
                values = self._computed(step)
            return values[start:stop]

        return read

    def raw(self, name: str) -> memoryview | None:
        """Return the bytes of integers, which are copied; floats are made when they are read."""
        step = self._steps[self.tied.get(name, name)]
        if find_dtype(step.dtype).floating:
            return None
        source = step.inputs[0]
        return self._inner.models[source.reference].raw(source.tensor)

    def _computed(self, step: TensorStep) -> Floats:
        with self._lock:
            if self._last is None or self._last[0] != step.name:
                self._last = None
                values, place = np.empty(step.size, np.float32), 0
                for part in self._inner.stored(step):
                    values[place : place + part.size] = part
                    place += part.size
                self._last = step.name, values
            return self._last[1]
