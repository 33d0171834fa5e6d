"""Carries out single steps: gives a method its readers, and yields one output tensor in parts."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from transship.checkpoints import TensorInfo, find_dtype, narrow, widen
from transship.errors import CheckpointError, NumericalError, OptionError
from transship.numerics import chunks
from transship.verbs.merge.protocol import CHUNK, Floats, LearnedMethod, Operands, Reader, Watch, nobody
from transship.verbs.merge.recipe.planar import interleaved, planar_operands
from transship.verbs.merge.recipe.reference import ModelReference
from transship.verbs.merge.recipe.steps import Origin, Step, promoted, scaled

if TYPE_CHECKING:
    from transship.verbs.merge.learning.search import Found
    from transship.verbs.merge.learning.task_heads import FittedHead
    from transship.verbs.merge.plan import MergePlan


class Execution:
    """Makes the tensors of a plan, any of them in any order.

    Attributes:
        opening: how models that run are opened: device, device_map, dtype.
        watch: called with (steps done, steps in all, what) while models learn from data.
    """

    def __init__(self, plan: MergePlan) -> None:
        self.plan = plan
        self._survey: Any = None
        self._surveyed = False
        self._lock = threading.Lock()
        self.watch: Watch = nobody
        self.opening: dict[str, Any] = {}

    def produce(self, step: Step) -> Iterator[Floats | memoryview]:
        """Yield one output tensor in flat parts: float32 values, or its bytes where they are copied."""
        method = step.method
        if method is None:
            head = self.fitted.get(step.inputs[0].reference)
            return (
                self._copy(step) if head is None or step.name not in head.tensors else self._head(head, step)
            )
        if method.finite and (error := self.culprit(step)) is not None:
            raise error
        step = self._weighted(step)
        operands = self.operands(step, self.survey())
        pairs = planar_operands(self.plan, step, operands)
        return method.merge(operands) if pairs is None else interleaved(method.merge(pairs))

    def values(self, step: Step) -> Iterator[Floats]:
        """Yield one merged tensor in flat float32 parts, with the weights that the step has."""
        if step.method is None:
            raise ValueError(f"{step.name} is copied")
        return step.method.merge(self.operands(step, self.survey()))

    @functools.cached_property
    def searched(self) -> Found | None:
        """What `weights: auto` found; None where the recipe gives the weights."""
        if self.plan.recipe.weights is None:
            return None
        from transship.verbs.merge.learning.carry_out import search_weights

        return search_weights(self.plan, self.watch)

    @functools.cached_property
    def fitted(self) -> Mapping[ModelReference, FittedHead]:
        """The heads that the recipe wants fitted to the merged model, by model."""
        if not self.plan.recipe.fits_heads:
            return {}
        from transship.verbs.merge.learning.task_heads import fit_heads

        return fit_heads(self.plan, self.watch)

    @staticmethod
    def _head(head: FittedHead, step: Step) -> Iterator[Floats]:
        yield head.tensors[step.name]

    def _weighted(self, step: Step) -> Step:
        return step if self.searched is None else scaled(step, self.searched.factors)

    def prepare(self) -> dict[str, Any]:
        """Find out now what every tensor waits for, so that mistakes show before anything is written.

        Returns the weights that were searched for and how far they brought the loss down, and how often the
        merged model answers as each task's own one, with that one's head and with the fitted one.
        """
        self.survey()
        heads = {
            str(reference): {"own": round(head.before, 4), self.plan.recipe.heads: round(head.after, 4)}
            for reference, head in self.fitted.items()
        }
        agreement = {"agreement": heads} if heads else {}
        if self.searched is None:
            return agreement
        step = self._weighted(next(step for step in self.plan.steps if step.method is not None))
        found = {
            str(one.reference): round(float(weight), 6)
            for one, weight in zip(step.inputs, step.values["weight"], strict=True)
        }
        losses = {"start": self.searched.start, "end": self.searched.loss, "trials": self.searched.trials}
        return {"weights": found, "search": losses, **agreement}

    def survey(self) -> Any:
        """Return what the method has to know of the whole model, found out once."""
        with self._lock:  # threads that need it wait for the one that finds it out
            if not self._surveyed:
                self._survey = self._surveying()
                self._surveyed = True
        return self._survey

    def _surveying(self) -> Any:
        wanting = [step for step in self.plan.steps if step.method is not None and step.method.wants_survey]
        method = wanting[0].method if wanting else None
        if method is None:
            return None
        if isinstance(method, LearnedMethod):
            return self._learnt()
        return method.survey(lambda: (self.operands(step) for step in wanting))

    def _learnt(self) -> Any:
        from transship.verbs.merge.learning.carry_out import learn

        return learn(self.plan, self.watch)

    def operands(self, step: Step, survey: Any = None) -> Operands:
        """Return what the method of a step sees."""
        recipe = self.plan.recipe
        labels: list[str] = []
        for one in step.inputs:
            label = str(one.reference)
            seen = sum(other.split("#")[0] == label for other in labels)
            labels.append(f"{label}#{seen + 1}" if seen else label)
        rounding = self._rounding(step)
        return Operands(
            name=step.name,
            shape=step.shape,
            models=[self.reader(one, rounding) for one in step.inputs],
            base=self.reader(step.base, rounding) if step.base is not None else None,
            values=step.values,
            labels=labels,
            seed=recipe.seed,
            rounded=rounding,
            survey=survey,
        )

    def reader(self, origin: Origin, rounding: Callable[[Floats], Floats] | None = None) -> Reader:
        """Return the reader of one input, with its rows in the output's order where they are words."""
        plan = self.plan
        model = plan.models[origin.reference]
        if plan.vocabulary is not None and plan.vocabulary.covers(origin.tensor):
            read = plan.vocabulary.reader(origin.reference, origin.tensor, plan.models)
        else:
            read = model.reader(origin.tensor)
        if rounding is None:
            return read
        return lambda start, stop: rounding(np.array(read(start, stop)))

    def _rounding(self, step: Step) -> Callable[[Floats], Floats] | None:
        """Return what rounds to the dtype that mergekit computes in, None for float32."""
        recipe = self.plan.recipe
        if recipe.arithmetic != "mergekit":
            return None
        infos = [self.plan.models[one.reference].info(one.tensor) for one in step.origins]
        dtype = recipe.dtype or promoted([info.dtype for info in infos if info is not None])
        if dtype in ("float32", "float64"):
            return None
        if step.method is not None and not step.method.parity:
            raise OptionError(
                f"arithmetic: mergekit in {dtype} is not there for {recipe.method}",
                where=recipe.path,
                fix="set dtype: float32, or remove arithmetic",
            )

        def rounded(values: Floats) -> Floats:
            values[:] = widen(narrow(values, dtype), dtype)
            return values

        return rounded

    def _copy(self, step: Step) -> Iterator[Floats | memoryview]:
        """Yield the bytes of a tensor, or its values where the dtype or the rows change."""
        origin = step.inputs[0]
        model = self.plan.models[origin.reference]
        self._check_agreement(step)
        info = model.info(origin.tensor)
        covered = self.plan.vocabulary is not None and self.plan.vocabulary.covers(origin.tensor)
        raw = (
            model.raw(origin.tensor)
            if info is not None and info.dtype == step.dtype and not covered
            else None
        )
        if raw is None and not find_dtype(step.dtype).floating:
            raw = model.raw(origin.tensor)
        if raw is not None and not find_dtype(step.dtype).floating:
            yield raw
            return
        read = self.reader(origin)
        size = int(np.prod(step.shape, dtype=np.int64))
        width = find_dtype(step.dtype).itemsize
        for part in chunks(size, CHUNK):
            values = read(part.start, part.stop)
            if not np.isfinite(values).all() and (error := self.culprit(step)) is not None:
                raise error
            yield values if raw is None else raw[part.start * width : part.stop * width]

    def _check_agreement(self, step: Step) -> None:
        first = self.plan.models[step.inputs[0].reference].raw(step.inputs[0].tensor)
        for other in step.agree:
            if self.plan.models[other.reference].raw(other.tensor) != first:
                raise CheckpointError(
                    f"{step.inputs[0].reference} and {other.reference} hold different integers",
                    where=f"tensor '{step.name}'",
                    fix="make them equal: integers are copied, not merged",
                )

    def culprit(self, step: Step) -> NumericalError | None:
        """Return the error about the input of a step that holds a NaN or an infinity, None when none does."""
        for one in step.origins:
            read, info = self.reader(one), self.plan.models[one.reference].info(one.tensor)
            for part in chunks(0 if info is None else info.size, CHUNK):
                finite = np.isfinite(read(part.start, part.stop))
                if not finite.all():
                    place = part.start + int(finite.argmin())
                    return NumericalError(
                        f"tensor '{one.tensor}' holds a NaN or an infinity at element {place}",
                        where=str(one.reference),
                        fix="use weights from before training diverged",
                    )
        return None


@dataclass(frozen=True)
class MadeModel:
    """What another recipe makes, as a model: a tensor is computed when it is read, and the last is kept.

    Attributes:
        label: what the outer recipe calls it.
        plan: the inner recipe's.
    """

    label: str
    plan: MergePlan
    _kept: dict[str, Floats] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.Lock)

    @property
    def config(self) -> dict[str, Any]:
        """Return the config of the inner output."""
        return self.plan.config

    @property
    def folder(self) -> Path | None:
        """Return where the tokenizer files of the inner output come from."""
        return self.plan.models[self.plan.carrier].model.folder

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Return the inner output's tensors."""
        found = {}
        for step in self.plan.steps:
            size = int(np.prod(step.shape, dtype=np.int64)) * find_dtype(step.dtype).itemsize
            found[step.name] = TensorInfo(step.name, step.shape, step.dtype, size)
        return found

    @property
    def tied(self) -> Mapping[str, str]:
        """Return the aliases of the inner output."""
        return self.plan.tied

    def reader(self, name: str) -> Reader:
        """Return the reader of a tensor, rounded as the inner recipe would store it."""
        name = self.tied.get(name, name)
        values: Floats | None = None  # a reader keeps its own: threads read several tensors at a time

        def read(start: int, stop: int) -> Floats:
            nonlocal values
            if values is None:
                with self._lock:
                    if name not in self._kept:
                        self._kept.clear()
                        self._kept[name] = self._compute(name)
                    values = self._kept[name]
            return values[start:stop]

        return read

    def _compute(self, name: str) -> Floats:
        step = next(step for step in self.plan.steps if step.name == name)
        found = np.empty(int(np.prod(step.shape, dtype=np.int64)), np.float32)
        place = 0
        for part in self.plan.execution.produce(step):
            stored = narrow(part, step.dtype) if isinstance(part, np.ndarray) else part
            values = widen(stored, step.dtype)
            found[place : place + values.size] = values
            place += values.size
        return found

    def raw(self, name: str) -> memoryview | None:
        """Return the bytes of integers, which are copied; floats are made when they are read."""
        step = next(step for step in self.plan.steps if step.name == self.tied.get(name, name))
        if find_dtype(step.dtype).floating:
            return None
        return self.plan.models[step.inputs[0].reference].raw(step.inputs[0].tensor)

    def fingerprint(self) -> str:
        """Return the fingerprints of what it is made of."""
        return "(" + " ".join(model.model.fingerprint() for model in self.plan.models.values()) + ")"
