"""The tasks of a fusion, and what it is after a step: values that adding and removing make anew."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from transship.checkpoints import Checkpoint
from transship.verbs.merge.fusion.measure import StepReport
from transship.verbs.merge.maths.states import State, Vector
from transship.verbs.merge.tasks.heads import HeadKind, LinearHead
from transship.verbs.merge.tasks.model import Rows, TaskModel, TestRows


@dataclass(frozen=True, eq=False)
class Kept:
    """What is kept of a task's inputs, with what its own model said of them.

    Attributes:
        inputs: raw and unlabelled, unless heads are tuned on labels.
        features: [inputs, width] of the task's own model; None where nothing is measured or carried.
        outputs: [inputs, classes]; None likewise, or without a head.
        labels: of the first rows, where tuned heads need them.
    """

    inputs: Rows
    features: Float[Tensor, "inputs width"] | None = None
    outputs: Float[Tensor, "inputs classes"] | None = None
    labels: Int[Tensor, " labelled"] | None = None

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True, eq=False)
class TaskFiles:
    """What a task's model folder holds beside the backbone.

    Attributes:
        checkpoint: where config, tokenizer and other files come from.
        backbone: backbone tensor → its name in that checkpoint.
        head: all other floating-point tensors, by their names there.
        dtypes: in which each of them is stored.
        linear: names, among them, of the last Linear's weight and bias.
    """

    checkpoint: Checkpoint
    backbone: Mapping[str, str]
    head: Mapping[str, Tensor]
    dtypes: Mapping[str, str]
    linear: tuple[str, str | None] | None


@dataclass(frozen=True, eq=False)
class TaskStore:
    """Where what a task needs is read; it is dropped after use, so that memory does not grow with the tasks.

    Attributes:
        model: makes the model that runs.
        kept: reads what is kept of its inputs; None where nothing is.
        test: finds its labelled test rows; None where there are none, or no longer.
        files: reads what its model's folder holds beside the backbone; None in memory and without a head.
        inputs: the folder of its kept inputs in a saved fusion; it may be missing.
    """

    model: Callable[[], TaskModel]
    kept: Callable[[], Kept | None]
    test: Callable[[], TestRows | None]
    files: Callable[[], TaskFiles | None]
    inputs: Path | None = None


@dataclass(frozen=True, eq=False)
class FusedTask:
    """One task of a fusion.

    Attributes:
        name: unique in the fusion.
        fingerprint: of the fine-tune that brought it.
        source: the fine-tune as the user gave it.
        store: where its model, kept inputs, test rows and files are.
        heads: by kind.
        norm: ‖τ_i‖.
        individual: accuracy of its own model.
        label_names: of the classes.
        about: what else is known: data, rows, how test rows are found again.
    """

    name: str
    fingerprint: str
    source: str
    store: TaskStore
    heads: Mapping[HeadKind, LinearHead] = field(default_factory=dict)
    norm: float = 0.0
    individual: float | None = None
    label_names: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def classes(self) -> int:
        """Outputs of its head; 0 without one."""
        return self.heads["own"].weight.shape[0] if "own" in self.heads else 0

    def head(self, *kinds: HeadKind) -> LinearHead:
        """Return the first head of these kinds that was fitted, or its own."""
        return next((self.heads[kind] for kind in kinds if kind in self.heads), self.heads["own"])


@dataclass(frozen=True, eq=False)
class Fused:
    """What a fusion is after a step.

    Attributes:
        names: of the backbone's tensors, which the first fine-tune settles.
        state: the method's.
        strength: the factor of the merged vector.
        tasks: in the order in which they came.
        history: what was measured after every step.
        finished: what a finish added to the merged backbone; empty without one.
    """

    names: tuple[str, ...] = ()
    state: State = field(default_factory=dict)
    strength: float = 1.0
    tasks: tuple[FusedTask, ...] = ()
    history: tuple[StepReport, ...] = ()
    finished: Vector = field(default_factory=dict)
