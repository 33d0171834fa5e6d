"""A raw model under the network: the network learns what it leaves over.

A linear model on raw values or on random convolutions of them is hard to beat on little data. With a base,
the adapted model's outputs are base + network: logits for classes and labels, values for numbers. The
network's head starts at zero, so the whole starts as the base, and that start is one of the candidates
validation chooses from. The base's outputs on the training rows are those of models that have not seen the
row, since the outputs of a model on its own training rows leave nothing over: exact leave-one-out for ridge
regression on values or random convolutions, which comes with its fit (rows beyond the many that it takes are
new to it), and five folds otherwise.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transship.numerics import derive_seed
from transship.verbs.adapt.raw.baselines import RawModel, RawResult, fit_raw, raw_baselines
from transship.verbs.adapt.rows.targets import Targets

Array = NDArray[Any]
FOLDS = 5


@dataclass(frozen=True, eq=False)
class Base:
    """A fitted raw model in the units of the network's outputs."""

    model: RawModel
    targets: Targets

    def outputs(self, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return what is added to the network's outputs for scaled inputs [rows, channels, …]."""
        return _as_outputs(self.model, self.model.outputs(inputs), self.targets)


def _as_outputs(model: RawModel, made: Array, targets: Targets) -> NDArray[np.float32]:
    """Return outputs of the raw model [rows, …] in the units of the network's."""
    if targets.task in ("classification", "multilabel"):
        return np.asarray(model.sharpness * made, dtype=np.float32)
    return np.asarray(targets.encode(made.reshape(len(made), *targets.shape)), dtype=np.float32)


def fit_base(
    name: str,
    inputs: Array,
    truth: Array,
    targets: Targets,
    *,
    seed: int,
    tokens: bool = False,
    fitted: RawModel | None = None,
) -> tuple[Base, NDArray[np.float32]]:
    """Return the base fitted on all training rows, and outputs on them of models without the row.

    `fitted` is the model of that name where it was fitted on these rows already.
    """
    classes = None if targets.classes is None else len(targets.classes)
    settings: dict[str, Any] = {"task": targets.task, "seed": seed, "classes": classes, "tokens": tokens}
    whole = Base(fitted or fit_raw(name, inputs, truth, **settings), targets)
    unseen = whole.model.unseen(inputs)
    if unseen is not None:
        return whole, _as_outputs(whole.model, unseen, targets)
    folds = max(2, min(FOLDS, len(inputs) // 2))
    parts = np.array_split(np.random.default_rng(derive_seed(seed, "folds")).permutation(len(inputs)), folds)
    made: Array | None = None
    for part in parts:
        rest = np.setdiff1d(np.arange(len(inputs)), part)
        fold = fit_raw(name, inputs[rest], truth[rest], **settings)
        found = _as_outputs(fold, fold.outputs(inputs[part]), targets)
        if made is None:
            made = np.empty((len(inputs), *found.shape[1:]), np.float32)
        made[part] = found
    assert made is not None
    return whole, made


def baselines(
    inputs: Array,
    truth: Array,
    held: Array,
    held_truth: Array,
    targets: Targets,
    metric: str,
    *,
    seed: int,
    tokens: bool = False,
) -> list[RawResult]:
    """Return the raw baselines on the validation rows, best first."""
    return raw_baselines(
        inputs, truth, held, held_truth, task=targets.task, metric=metric, seed=seed, tokens=tokens
    )


__all__ = ["Base", "baselines", "fit_base"]
