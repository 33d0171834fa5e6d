"""A task in a fusion: its model's heads, and what is kept of its inputs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from transship.verbs.merge.tasks.heads import HeadKind, LinearHead
from transship.verbs.merge.tasks.model import Rows, TaskModel
from transship.verbs.merge.tasks.rows import TestRows


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


@dataclass(eq=False)
class Task:
    """One task of a fusion.

    Attributes:
        name: unique in the fusion.
        fingerprint: of the fine-tune that brought it.
        source: the fine-tune as the user gave it.
        opener: makes the model that runs; dropped after use, so that memory does not grow with the tasks.
        keeper: reads what is kept of its inputs; None where nothing is.
        tester: finds its labelled test rows; None where there are none, or no longer.
        files: what its model's folder holds beside the backbone; None in memory and without a head.
        heads: by kind.
        norm: ‖τ_i‖.
        individual: accuracy of its own model.
        classes: outputs of its head; 0 without one.
        label_names: of the classes.
        about: what else is known: data, rows, how test rows are found again.
        inputs_in: the folder of a saved fusion that holds its kept inputs.
    """

    name: str
    fingerprint: str
    source: str
    opener: Callable[[], TaskModel]
    keeper: Callable[[], Kept | None]
    tester: Callable[[], TestRows | None]
    files: Callable[[], Any] | None = None
    heads: dict[HeadKind, LinearHead] = field(default_factory=dict)
    norm: float = 0.0
    individual: float | None = None
    label_names: tuple[str, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)
    inputs_in: Path | None = None

    @property
    def classes(self) -> int:
        """Outputs of its head; 0 without one."""
        return self.heads["own"].weight.shape[0] if "own" in self.heads else 0
