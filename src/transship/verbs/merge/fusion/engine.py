"""`Fusion`: one model that fine-tunes join one after another."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from transship.activations.functional import Features
from transship.errors import DataError, OptionError
from transship.registry import unknown
from transship.verbs.merge.fusion.choices import choose
from transship.verbs.merge.fusion.evaluate import StepReport, summary
from transship.verbs.merge.fusion.joining import check_inputs, new_task
from transship.verbs.merge.fusion.measure import PeakMemory
from transship.verbs.merge.fusion.origin import FineTune, ModuleOrigin, Origin
from transship.verbs.merge.fusion.refresh import Fitting, find_strength, refresh, scaled
from transship.verbs.merge.fusion.task import Task
from transship.verbs.merge.maths.states import State, Vector, norm
from transship.verbs.merge.protocol import Arrival, ContinualMethod
from transship.verbs.merge.tasks.heads import LABELLED, HeadKind, HeadSettings, LinearHead, carry
from transship.verbs.merge.tasks.model import Rows, TaskModel
from transship.verbs.merge.tasks.rows import TaskRows, task_rows


class Fusion:
    """Fine-tunes of one base, merged one after another.

    `Fusion(base).add(tuned_1, data=d1).add(tuned_2, data=d2).save(out)`. What it remembers of the models does
    not grow with their number: the method's state. Of each task its head stays, and, where allowed, inputs.

    Args:
        base: a folder or hub id; or, in memory, an nn.Module whose output is features [inputs, width].
        method: a name (`transship methods merge` lists them), or a method; `auto` is what is recommended.
        options: the method's parameters.
        heads: `auto`, a kind or several: own, tuned, tuned-fresh, carried-once, carried, carried-polished.
            Predictions and saved models use the first; all are measured.
        head_options: fields of HeadSettings.
        keep_inputs: how many inputs of each task may be kept; None for all that were read.
        strength: the factor of the merged vector: a number, `norm`, `validation`, or `auto` (`norm` for
            the method `auto` with kept inputs, else 1).
        evaluate: measure after every step: accuracies, where test rows are given, and on kept inputs how far
            features moved.
        seed: fixes every random choice.
        batch_size: inputs per forward pass.
        features: for a module in memory: (module, batch) → [inputs, width].
        head: for a module in memory: what the names of a fine-tune's head start with.
        preprocess: for a module in memory: raw inputs → what it takes.
        device: where models run.
        device_map: how models on disk are spread over devices instead; see `load_model`.
        trust_remote_code: allow code from a model's repository to run.
        allow_pickle: read .bin and .pt files too.
    """

    def __init__(
        self,
        base: Any,
        method: str | ContinualMethod = "auto",
        *,
        options: Mapping[str, Any] | None = None,
        heads: str | Sequence[str] = "auto",
        head_options: Mapping[str, Any] | HeadSettings | None = None,
        keep_inputs: int | None = 0,
        strength: float | str = "auto",
        evaluate: bool = True,
        seed: int = 0,
        batch_size: int = 64,
        features: Features | None = None,
        head: str = "head",
        preprocess: Callable[[Any], Any] | None = None,
        device: str = "cpu",
        device_map: Any = None,
        trust_remote_code: bool = False,
        allow_pickle: bool = False,
    ) -> None:
        self.choices = choose(
            method,
            options=options,
            heads=heads,
            head_options=head_options,
            keep_inputs=keep_inputs,
            strength=strength,
            evaluate=evaluate,
            seed=seed,
            batch_size=batch_size,
        )
        self.origin: Origin
        if isinstance(base, Origin):
            self.origin = base
        elif isinstance(base, nn.Module):
            self.origin = ModuleOrigin(
                base, features=features, head=head, preprocess=preprocess, device=device
            )
        else:
            from transship.verbs.merge.fusion.disk import CheckpointOrigin

            self.origin = CheckpointOrigin(
                base,
                device=device,
                device_map=device_map,
                trust_remote_code=trust_remote_code,
                allow_pickle=allow_pickle,
            )
        self.state: State = {}
        self.strength = 1.0
        self.history: list[StepReport] = []
        self._tasks: list[Task] = []

    @property
    def method(self) -> ContinualMethod:
        """The method, with its parameters."""
        return self.choices.method

    @property
    def fitting(self) -> Fitting:
        """How heads are fitted."""
        return self.choices.fitting

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks, in the order in which they came."""
        return tuple(self._tasks)

    @property
    def heads(self) -> tuple[HeadKind, ...]:
        """The kinds of head; the first one is used for predictions."""
        return self.fitting.kinds

    @property
    def vector(self) -> Vector:
        """τ_m, without the strength; empty before the first model."""
        return self.method.merged(self.state, self.origin.backbone) if self.state else {}

    @property
    def parameters(self) -> Vector:
        """θ_0 + strength · τ_m: the merged backbone."""
        vector = self.vector
        return scaled(self.origin.backbone, vector, self.strength) if vector else self.origin.backbone

    def add(
        self,
        tuned: Any,
        data: Any = None,
        *,
        labels: Any = None,
        test: Any = None,
        name: str | None = None,
        inputs: int | None = None,
        test_rows: int | None = None,
        reopen: Mapping[str, Any] | None = None,
    ) -> "Fusion":
        """Let a fine-tune join; nothing changes when it cannot.

        Args:
            tuned: a folder, a hub id or an adapter; or, in memory, a state dict or a module.
            data: a Dataset or plain inputs of the task: the rows it was tuned on will do. Test rows of a
                Dataset are only measured on.
            labels: of plain inputs; read by tuned heads only.
            test: labelled rows to measure on: (inputs, labels) or a Dataset.
            name: of the task; by default that of the folder.
            inputs: at most so many inputs are read.
            test_rows: at most so many test rows of a Dataset are measured on.
            reopen: how test rows are found again in another process: `test` → arguments of data.load.
        """
        clock = time.perf_counter(), time.process_time()
        with PeakMemory() as memory:
            name = self._free_name(tuned, name)
            arrival = self.origin.admit(tuned, name)
            self._check_new(arrival)
            rows = task_rows(
                data,
                labels if LABELLED & set(self.heads) or labels is None else None,
                test,
                label_names=arrival.label_names,
                label_share=self.fitting.settings.label_share,
                most=inputs,
                seed=self.choices.seed,
                where=name,
                most_test=test_rows,
            )
            step = self._step(arrival, rows, joins=True)
            state = self.method.add(self.state, step) if self.state else self.method.first(step)
            task, outputs = new_task(name, arrival, rows, step, self.choices, reopen or {})
            report = StepReport(step.number, name)
            self._settle(
                state, [*self._tasks, task], report, (task, arrival.model.over(rows.inputs), outputs)
            )
        _stop_clock(report, clock, memory)
        return self

    def remove(self, tuned: Any, data: Any = None, *, inputs: int | None = None) -> "Fusion":
        """Take a model out again, as if it had never come; only for methods whose state is additive.

        Args:
            tuned: the fine-tune that was added, which has to be read again.
            data: the same data as when it was added, for methods that read inputs.
            inputs: the same as when it was added.
        """
        if not self.method.additive:
            raise OptionError(
                f"{self.choices.method_name} cannot take a model out: its state is no sum over models",
                where="merge remove",
                fix="start again without that model, or with average, task-arithmetic, regmean or fisher",
            )
        clock = time.perf_counter(), time.process_time()
        with PeakMemory() as memory:
            arrival = self.origin.admit(tuned, _reference(tuned))
            found = [task for task in self._tasks if task.fingerprint == arrival.fingerprint]
            if not found:
                raise OptionError(
                    "it is not among the models that were added",
                    where=arrival.source,
                    fix=f"choose one of {', '.join(task.source for task in self._tasks) or 'none'}",
                )
            task = found[0]
            rows = self._rows_again(task, arrival, data, inputs)
            step = self._step(arrival, rows, joins=False)
            left = [one for one in self._tasks if one is not task]
            report = StepReport(len(left), task.name, removed=True)
            self._settle(self.method.remove(self.state, step) if left else {}, left, report, None)
        _stop_clock(report, clock, memory)
        return self

    def features(self, task: str, inputs: Rows) -> Float[Tensor, "inputs width"]:
        """Return the merged model's features of raw inputs, as the task's head reads them."""
        model = self._find(task).opener().over(inputs)
        return model.features(self.parameters, self.fitting.batch_size)

    def predict(
        self, task: str, inputs: Rows, *, kind: HeadKind | None = None
    ) -> Float[Tensor, "inputs classes"]:
        """Return the merged model's outputs for one task."""
        heads = self._find(task).heads
        if "own" not in heads:
            raise OptionError("its model has no head", where=task, fix="use features")
        head = heads.get(kind or self.heads[0], heads["own"])
        return head(self.features(task, inputs))

    def head(self, task: str, kind: HeadKind | None = None) -> LinearHead:
        """Return a task's head."""
        heads = self._find(task).heads
        return heads.get(kind or self.heads[0], heads["own"])

    def summary(self) -> dict[str, Any]:
        """Return ACC, BWT and the accuracy matrix per kind of head, and shifts, as plain data."""
        names = [task.name for task in self._tasks]
        return summary(self.history, names, {task.name: task.individual for task in self._tasks})

    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write the fusion: a model folder, a folder per task, and what the next `add` needs."""
        from transship.verbs.merge.fusion.state import save

        return save(self, Path(folder), force=force)

    @classmethod
    def load(cls, folder: str | Path, **opening: Any) -> "Fusion":
        """Return a saved fusion; `opening` may hold device, trust_remote_code and allow_pickle."""
        from transship.verbs.merge.fusion.state import load

        return load(Path(folder), **opening)

    def report(self, path: str | Path, *, force: bool = False) -> Path:
        """Write a page to look at."""
        from transship.report import html
        from transship.verbs.merge.fusion.page import page

        return html.write(page(self), path, force=force)

    def restore_tasks(self, tasks: list[Task]) -> None:
        """Take over the tasks of a saved fusion."""
        self._tasks = tasks

    def _free_name(self, tuned: Any, name: str | None) -> str:
        taken = {task.name for task in self._tasks}
        if name is not None:
            if name in taken:
                raise OptionError(
                    f"there is a task '{name}' already", where="--name", fix="choose another name"
                )
            if not re.fullmatch(r"[\w][\w.-]*", name):
                raise OptionError(
                    f"'{name}' cannot be a folder's name", where="--name", fix="use letters, digits, - and ."
                )
            return name
        stem = (
            re.sub(r"[^\w.-]+", "-", _reference(tuned).rstrip("/").rsplit("/", 1)[-1]).strip(".-") or "task"
        )
        number, found = 1, stem
        while found in taken:
            number += 1
            found = f"{stem}-{number}"
        return found

    def _check_new(self, arrival: FineTune) -> None:
        known = {task.fingerprint: task.name for task in self._tasks}
        if arrival.fingerprint in known:
            raise OptionError(
                f"the same model was added before, as '{known[arrival.fingerprint]}'",
                where=arrival.source,
                fix="give another fine-tune; merge status lists those that are in",
            )

    def _step(self, arrival: FineTune, rows: TaskRows, *, joins: bool) -> Arrival:
        check_inputs(arrival, rows, self.choices, joins=joins)
        previous: TaskModel | None = None
        if joins and self.method.replay and self._tasks:
            last = self._tasks[-1]
            kept = last.keeper()
            previous = last.opener().over(None if kept is None else kept.inputs)
        incoming = arrival.model.over(rows.inputs)
        number = len(self._tasks) + (1 if joins else 0)
        return Arrival(number, self.origin.backbone, arrival.update, incoming, previous, self.choices.seed)

    def _settle(
        self,
        state: State,
        tasks: list[Task],
        report: StepReport,
        new: tuple[Task, TaskModel, Tensor | None] | None,
    ) -> None:
        """Find strength and heads for a new state, measure, and only then make it this fusion's."""
        before = (self.state, self.strength)
        try:
            self.state = state
            vector = self.vector
            base = self.origin.backbone
            strength = (
                find_strength(self.choices.strength, base, vector, tasks, self.fitting) if tasks else 1.0
            )
            backbone = scaled(base, vector, strength) if tasks else base
            if new is not None:
                self._carry_once(*new, backbone)
            report.strength, report.norm = strength, norm(vector) * abs(strength)
            report.details = {key: float(value) for key, value in state.get("numbers", {}).items()}
            heads = refresh(tasks, backbone, report, self.fitting, evaluate=self.choices.evaluate)
        except BaseException:
            self.state, self.strength = before
            raise
        self.strength = strength
        for task in tasks:
            task.heads = heads[task.name]
        self._tasks = tasks
        self.history.append(report)

    def _carry_once(self, task: Task, incoming: TaskModel, outputs: Tensor | None, backbone: Vector) -> None:
        if outputs is not None and "carried-once" in self.heads:
            features = incoming.features(backbone, self.fitting.batch_size)
            task.heads["carried-once"] = carry(features, outputs, task.heads["own"], self.fitting.settings)

    def _rows_again(self, task: Task, arrival: FineTune, data: Any, inputs: int | None) -> TaskRows:
        rows = task_rows(
            data,
            None,
            None,
            label_names=arrival.label_names,
            label_share=self.fitting.settings.label_share,
            most=inputs if inputs is not None else task.about.get("rows"),
            seed=self.choices.seed,
            where=task.name,
        )
        known = task.about.get("data_fingerprint")
        if self.method.needs_data and known is not None and known != rows.about.get("data_fingerprint"):
            raise DataError(
                f"it was added with other data ({task.about.get('data')})",
                where=task.name,
                fix="give the same data, so that the same numbers are taken out",
            )
        return rows

    def _find(self, name: str) -> Task:
        for task in self._tasks:
            if task.name == name:
                return task
        raise unknown(name, [task.name for task in self._tasks], kind="task", where="fusion")


def _stop_clock(report: StepReport, clock: tuple[float, float], memory: PeakMemory) -> None:
    report.seconds = time.perf_counter() - clock[0]
    report.cpu_seconds = time.process_time() - clock[1]
    report.memory = memory.peak


def _reference(tuned: Any) -> str:
    return str(tuned) if isinstance(tuned, str | Path) else getattr(tuned, "name", None) or "task"
