"""`Fusion`: one model that fine-tunes join one after another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from transship import folders
from transship.activations.batches import longest
from transship.activations.functional import Features
from transship.checkpoints.footprint import Footprint
from transship.data.locate import written_folder
from transship.errors import OptionError
from transship.outside import complete
from transship.progress import Progress, quiet
from transship.registry import unknown
from transship.report import Page, html
from transship.verbs.merge.fusion.choices import choose
from transship.verbs.merge.fusion.disk import CheckpointOrigin
from transship.verbs.merge.fusion.folder import read, read_about, record, save
from transship.verbs.merge.fusion.measure import StepCost, StepReport, summary
from transship.verbs.merge.fusion.origin import FusionOrigin, ModuleOrigin
from transship.verbs.merge.fusion.page import feature_maps, page
from transship.verbs.merge.fusion.refresh import merged_backbone
from transship.verbs.merge.fusion.steps import Ending, add, plan_add, plan_remove, remove
from transship.verbs.merge.fusion.task import Fused, FusedTask
from transship.verbs.merge.maths.states import State, Vector
from transship.verbs.merge.protocol import ContinualMethod
from transship.verbs.merge.tasks.heads import HeadKind, HeadSettings, LinearHead
from transship.verbs.merge.tasks.model import Rows


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
        finish: `none`, `weights` or `weights:STEPS`: train merged backbone and heads on what the tasks' own
            models said of the kept inputs; `auto` is `none`.
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
        finish: str = "auto",
        evaluate: bool = True,
        seed: int = 0,
        batch_size: int = 64,
        features: Features | None = None,
        head: str = "head",
        preprocess: Callable[[Any], Any] | None = None,
        device: str = "auto",
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
            finish=finish,
        )
        self.fused = Fused()
        self.scratch: Path | None = None
        self.origin: FusionOrigin
        if isinstance(base, FusionOrigin):
            self.origin = base
        elif isinstance(base, nn.Module):
            self.origin = ModuleOrigin(
                base, features=features, head=head, preprocess=preprocess, device=device
            )
        else:
            reading = {"trust_remote_code": trust_remote_code, "allow_pickle": allow_pickle}
            self.origin = CheckpointOrigin(base, device=device, device_map=device_map, **reading)

    @property
    def method(self) -> ContinualMethod:
        """The method, with its parameters."""
        return self.choices.method

    @property
    def heads(self) -> tuple[HeadKind, ...]:
        """The kinds of head; the first one is used for predictions."""
        return self.choices.heads

    @property
    def tasks(self) -> tuple[FusedTask, ...]:
        """The tasks, in the order in which they came."""
        return self.fused.tasks

    @property
    def history(self) -> tuple[StepReport, ...]:
        """What was measured after every step."""
        return self.fused.history

    @property
    def state(self) -> State:
        """The method's state; empty before the first model."""
        return self.fused.state

    @property
    def strength(self) -> float:
        """The factor of the merged vector."""
        return self.fused.strength

    @property
    def backbone(self) -> Vector:
        """θ_0: the base's tensors that its fine-tunes share."""
        return self.origin.backbone(self.fused.names)

    @property
    def vector(self) -> Vector:
        """τ_m, without the strength; empty before the first model."""
        return self.method.merged(self.state, self.backbone) if self.state else {}

    @property
    def parameters(self) -> Vector:
        """θ_0 + strength · τ_m, and what a finish added: the merged backbone."""
        return merged_backbone(self.fused, self.backbone, self.choices) if self.state else self.backbone

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
        finish: bool = True,
        progress: Progress = quiet,
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
            finish: whether a fusion that is finished is so now: of several models that follow one another the
                last will do.
            progress: is told how far the finish is.
        """
        with StepCost() as cost:
            step = plan_add(
                self.fused,
                self.origin,
                self.choices,
                tuned,
                data,
                name=name,
                labels=labels,
                test=test,
                inputs=inputs,
                test_rows=test_rows,
            )
            ending = Ending(finish, self.scratch, progress)
            fused = add(self.fused, self.choices, step, reopen or {}, ending)
        return self._take(fused, cost)

    def remove(
        self, tuned: Any, data: Any = None, *, inputs: int | None = None, progress: Progress = quiet
    ) -> "Fusion":
        """Take a model out again, as if it had never come; only for methods whose state is additive.

        Args:
            tuned: the fine-tune that was added, which has to be read again.
            data: the same data as when it was added, for methods that read inputs.
            inputs: the same as when it was added.
            progress: is told how far the finish is.
        """
        with StepCost() as cost:
            step, task = plan_remove(self.fused, self.origin, self.choices, tuned, data, inputs=inputs)
            fused = remove(self.fused, self.choices, step, task, Ending(True, self.scratch, progress))
        return self._take(fused, cost)

    def _take(self, fused: Fused, cost: StepCost) -> "Fusion":
        report = replace(
            fused.history[-1], seconds=cost.seconds, cpu_seconds=cost.cpu_seconds, memory=cost.memory
        )
        self.fused = replace(fused, history=(*fused.history[:-1], report))
        return self

    def features(self, task: str, inputs: Rows) -> Float[Tensor, "inputs width"]:
        """Return the merged model's features of raw inputs, as the task's head reads them."""
        model = self._find(task).store.model().over(inputs)
        return model.features(self.parameters, self.choices.batch_size)

    def predict(
        self, task: str, inputs: Rows, *, kind: HeadKind | None = None
    ) -> Float[Tensor, "inputs classes"]:
        """Return the merged model's outputs for one task."""
        return self.head(task, kind)(self.features(task, inputs))

    def head(self, task: str, kind: HeadKind | None = None) -> LinearHead:
        fused = self._find(task)
        if "own" not in fused.heads:
            raise OptionError("its model has no head", where=task, fix="use features")
        return fused.head(*(self.choices.answering if kind is None else (kind,)))

    def summary(self) -> dict[str, Any]:
        """Return ACC, BWT and the accuracy matrix per kind of head, and shifts, as plain data."""
        own = {task.name: task.individual for task in self.tasks}
        return summary(self.history, list(own), own)

    def adding_bytes(self, tuned: str, data: Any = None) -> int:
        """Return the bytes that `add` takes beside the interpreter, from above, before anything is read.

        The base, the arriving model, their difference and the merged weights; the state before and after;
        what the method says that it holds; one batch, through all blocks for methods and heads that follow
        gradients.
        """
        sizes = {name: tensor.shape for name, tensor in self.origin.weights.items()}
        weights = 4 * sum(shape.numel() for shape in sizes.values())
        state = sum(tensor.nbytes for group in self.state.values() for tensor in group.values())
        model = Footprint.of(tuned)
        inputs = [] if data is None else list(data.inputs)
        tokens = longest(tuned, inputs) if inputs else 1
        batch = model.layers * model.forward(self.choices.batch_size, tokens)
        return 4 * weights + model.weights + 2 * max(state, weights) + self.method.memory(sizes) + batch

    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write the fusion: a model folder, a folder per task, and what the next `add` needs."""
        self.fused = save(self.fused, self.origin, self.choices, Path(folder), force=force)
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path, **opening: Any) -> "Fusion":
        """Return a fusion of a folder or the hub.

        `opening` may hold device, trust_remote_code and allow_pickle.
        """
        folder = written_folder(folder)
        about = read_about(folder)
        with complete(f"{folder}/fusion.json", "start the fusion again"):
            origin = CheckpointOrigin(str(about["base"]["name"]), **opening)
            fusion = cls(origin, **about["choices"])
            fusion.fused = read(folder, origin, about)
        fusion.scratch = folders.cache("finish")
        return fusion

    def page(self) -> Page:
        """Return a page to look at; the merged model runs on kept inputs."""
        pictures = feature_maps(self.tasks, self.features)
        return page(record(self.fused, self.origin, self.choices), pictures=pictures)

    def report(self, path: str | Path, *, force: bool = False) -> Path:
        return html.write(self.page(), path, force=force)

    def _find(self, name: str) -> FusedTask:
        for task in self.tasks:
            if task.name == name:
                return task
        raise unknown(name, [task.name for task in self.tasks], kind="task", where="fusion")
