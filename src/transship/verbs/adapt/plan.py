"""What a fit is asked: the rows as the network takes them, how they are judged, and what raw models make of
them.
"""

import dataclasses
import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from transship.errors import DataError, OptionError
from transship.registry import build_method
from transship.verbs.adapt.raw.base import Base, baselines, fit_base
from transship.verbs.adapt.raw.baselines import RawResult
from transship.verbs.adapt.rows.inputs import Inputs
from transship.verbs.adapt.rows.metrics import Metric, default_metric, find_metric
from transship.verbs.adapt.rows.splitting import Split, split_rows
from transship.verbs.adapt.rows.targets import Targets
from transship.verbs.adapt.settings import Settings
from transship.verbs.adapt.train.learner import Rows
from transship.verbs.adapt.train.losses import RELATIVE, Loss, find_loss
from transship.verbs.adapt.train.protocol import AdaptMethod

Array = NDArray[Any]
NOTHING = 1e-6  # of the mean size: targets so small count as zero


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows and settings that were checked.

    Attributes:
        settings: of the fit.
        method: how it adapts.
        split: the raw rows, to train on and held out.
        inputs: how raw inputs become tensors.
        targets: how targets do, and outputs become predictions.
        metric: what validation chooses by.
        loss: of stage 2.
        train: the rows to train on, as tensors, with the base's outputs where there is a base.
        held: likewise those held out.
        base: the raw model that the network corrects, or None.
        raw: the raw baselines on the rows held out, best first; empty when nobody asked.
    """

    settings: Settings
    method: AdaptMethod
    split: Split
    inputs: Inputs
    targets: Targets
    metric: Metric
    loss: Loss
    train: Rows
    held: Rows
    base: Base | None = None
    raw: tuple[RawResult, ...] = ()

    @classmethod
    def read(cls, X: Any, y: Any, settings: Settings) -> Self:  # noqa: N803
        """Check rows and settings, before anything is opened or run."""
        settings.checked()
        method: AdaptMethod = build_method("adapt", settings.method, settings.method_options)
        split = split_rows(X, y, settings)
        inputs = Inputs.fit(split.inputs, kind=settings.kind, missing=settings.missing)
        plane = len(inputs.size)
        targets = Targets.fit(split.targets, task=settings.task, plane=plane, seed=settings.seed)
        metric = (
            find_metric(settings.metric, targets.task) if settings.metric else default_metric(targets.task)
        )
        loss = find_loss(settings.loss, targets.task)
        _check_predictor(settings, targets, method)
        train = _rows(inputs, targets, split.inputs, split.targets)
        held = _rows(inputs, targets, split.held_inputs, split.held_targets)
        made = cls(settings, method, split, inputs, targets, metric, loss, train, held)
        made._check_metric()
        made._check_loss()
        return made

    @cached_property
    def data_hash(self) -> str:
        """The rows' SHA-256, with their types and shapes."""
        digest = hashlib.sha256(b"transship-adapt-1")
        split = self.split
        for part in (split.inputs, split.targets, split.held_inputs, split.held_targets):
            array = np.ascontiguousarray(part)
            digest.update(f"{array.dtype} {array.shape}".encode())
            digest.update(array.astype("U").tobytes() if array.dtype.kind in "OU" else array.tobytes())
        return digest.hexdigest()

    @cached_property
    def held_truth(self) -> Array:
        """Targets of the rows held out, as metrics take them."""
        return self.targets.truth(self.split.held_targets)

    def _check_metric(self) -> None:
        """Refuse validation rows on which the metric has no value, whatever is predicted for them."""
        truth, scores = self.held_truth, None
        if self.targets.classes is not None:
            scores = np.full((len(truth), len(self.targets.classes)), 1.0 / len(self.targets.classes))
        elif self.targets.task == "multilabel":
            scores = np.full(truth.shape, 0.5)
        try:
            self.metric(truth, truth, scores)
        except DataError as error:
            raise DataError(
                f"{self.metric.name} is undefined on the {len(truth)} validation rows ({error.what})",
                where="validation",
                fix="choose another metric, or other validation rows",
            ) from error

    def _check_loss(self) -> None:
        """Refuse training targets that a relative loss would divide by nothing."""
        if self.loss.name not in RELATIVE:
            return
        truth = self.targets.truth(self.split.targets)
        sizes = np.linalg.norm(truth.reshape(len(truth), -1), axis=1)
        zero = sizes <= NOTHING * sizes.mean()
        if zero.any():
            rows = np.setdiff1d(np.arange(len(truth) + len(self.split.held_index)), self.split.held_index)
            raise DataError(
                f"target {int(rows[zero.argmax()]) + 1} is all zero ({int(zero.sum())} such rows to train "
                f"on), and {self.loss.name} divides by its size",
                where="y",
                fix="choose the loss mse, or leave such rows out",
            )

    def on_base(self, *, compare: bool) -> Self:
        """Return the problem with the baselines that were tried, and the base's outputs beside the rows."""
        name = self.settings.base
        if name == "none" and not compare:
            return self
        truth = self.targets.truth(self.split.targets)
        plain, plain_held = self.train.inputs.numpy(), self.held.inputs.numpy()
        options: Any = {"seed": self.settings.seed, "tokens": self.inputs.kind == "tokens"}
        found: list[RawResult] = []
        if name == "auto" or compare:
            found = baselines(
                plain, truth, plain_held, self.held_truth, self.targets, self.metric.name, **options
            )
        tried = dataclasses.replace(self, raw=tuple(found))
        if name == "auto":
            name = found[0].name
        if name in ("none", "constant"):  # of constant: nothing that is linear in the raw values helps
            return tried
        fitted = next((one.model for one in found if one.name == name), None)
        base, offsets = fit_base(name, plain, truth, self.targets, fitted=fitted, **options)
        return dataclasses.replace(
            tried,
            base=base,
            train=dataclasses.replace(self.train, base=torch.from_numpy(offsets)),
            held=dataclasses.replace(self.held, base=torch.from_numpy(base.outputs(plain_held))),
        )


def _check_predictor(settings: Settings, targets: Targets, method: AdaptMethod) -> None:
    if settings.predictor == "transport" and targets.task != "classification":
        raise OptionError(
            f"label transport Λ has no meaning for {targets.task}", where="predictor", fix="choose linear"
        )
    if settings.predictor == "transport" and not method.needs_source:
        raise OptionError(
            f"label transport needs a source, and {settings.method} has none",
            where="predictor",
            fix="choose linear, or the method recraft or fa",
        )
    if settings.predictor in ("transport", "pooled") and settings.base != "none":
        raise OptionError(
            "a base goes with a linear head", where="base", fix="choose predictor linear, or base none"
        )
    if settings.predictor == "pooled" and targets.task != "dense":
        raise OptionError("the pooled head is for dense targets", where="predictor", fix="choose linear")


def _rows(inputs: Inputs, targets: Targets, values: Any, wanted: Any) -> Rows:
    return Rows(
        torch.from_numpy(inputs.transform(values)),
        torch.from_numpy(targets.encode(wanted)),
        torch.from_numpy(targets.label_codes(wanted)),
    )


__all__ = ["Problem"]
