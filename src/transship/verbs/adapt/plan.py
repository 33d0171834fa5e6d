"""The plan of a fit: everything that is known before anything is computed. Wrong input dies here, by name."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transship.data import Dataset
from transship.errors import DataError, OptionError
from transship.registry import build_method
from transship.types import Array
from transship.verbs.adapt.model.backbone import Backbone, open_backbone
from transship.verbs.adapt.model.embedder import Shape, shape_for
from transship.verbs.adapt.model.network import HeadShape
from transship.verbs.adapt.model.source import checked_proxy
from transship.verbs.adapt.rows.inputs import Inputs
from transship.verbs.adapt.rows.metrics import Metric, default_metric, find_metric
from transship.verbs.adapt.rows.reading import Split, split_rows
from transship.verbs.adapt.rows.targets import Targets
from transship.verbs.adapt.settings import Settings
from transship.verbs.adapt.train.losses import RELATIVE, Loss, find_loss
from transship.verbs.adapt.train.problem import AdaptMethod, LearningRows

NOTHING = 1e-6  # of the mean size: targets so small count as zero


@dataclass(frozen=True, eq=False)
class AdaptPlan:
    """Rows, settings and models that were checked.

    Attributes:
        settings: of the fit.
        method: how it adapts.
        split: the raw rows, to train on and held out.
        inputs: how raw inputs become tensors.
        targets: how targets do, and outputs become predictions.
        metric: what validation chooses by.
        loss: of stage 2.
        train: the rows to train on, as tensors.
        held: those held out.
        backbone: the pretrained model.
        shape: how φ cuts these inputs into tokens.
        proxy: the source's data, or None for methods that need none.
    """

    settings: Settings
    method: AdaptMethod
    split: Split
    inputs: Inputs
    targets: Targets
    metric: Metric
    loss: Loss
    train: LearningRows
    held: LearningRows
    backbone: Backbone
    shape: Shape
    proxy: Dataset | None

    @cached_property
    def data_hash(self) -> str:
        """The rows' SHA-256, with their types and shapes."""
        digest, split = hashlib.sha256(b"transship-adapt-1"), self.split
        for part in (split.inputs, split.targets, split.held_inputs, split.held_targets):
            array = np.ascontiguousarray(part)
            digest.update(f"{array.dtype} {array.shape}".encode())
            digest.update(array.astype("U").tobytes() if array.dtype.kind in "OU" else array.tobytes())
        return digest.hexdigest()

    @cached_property
    def held_truth(self) -> Array:
        """Targets of the rows held out, as metrics take them."""
        return self.targets.truth(self.split.held_targets)

    def score(self, outputs: Tensor) -> float:
        """Return the metric of outputs for the rows held out; the smaller the better."""
        targets, values = self.targets, outputs.numpy()
        return float(self.metric(self.held_truth, targets.prediction(values), targets.scores(values)))

    def head_shape(self, *, classes: int = 0) -> HeadShape:
        """Return what the head is built from: of label transport where `classes` of the source are given.

        Label transport begins where stage 1 ends, so stage 1 has a linear head.
        """
        targets, grid = self.targets, self.shape.grid
        for _ in range(self.backbone.merges):
            grid = (-(-grid[0] // 2), -(-grid[1] // 2))
        pooled = self.settings.predictor == "pooled"
        return HeadShape(
            "transport" if classes else "pooled" if pooled else "linear",
            self.backbone.width_out,
            targets.outputs,
            targets.size,
            grid,
            self.shape.prefix,
            classes,
        )


def make_plan(X: Any, y: Any, settings: Settings) -> AdaptPlan:  # noqa: N803
    """Check rows and settings, and open what is missing last; nothing is computed yet."""
    settings.checked()
    method: AdaptMethod = build_method("adapt", settings.method, settings.method_options)
    split = split_rows(X, y, settings)
    reading: Any = {"kind": settings.kind, "missing": settings.missing, "held": split.held_inputs}
    inputs = Inputs.fit(split.inputs, **reading)
    targets = Targets.fit(split.targets, task=settings.task, plane=len(inputs.size), seed=settings.seed)
    metric = find_metric(settings.metric, targets.task) if settings.metric else default_metric(targets.task)
    loss = find_loss(settings.loss, targets.task)
    _check_predictor(settings, targets, method)
    train, held = (
        LearningRows(
            torch.from_numpy(inputs.transform(values)),
            torch.from_numpy(targets.encode(wanted)),
            torch.from_numpy(targets.label_codes(wanted)),
        )
        for values, wanted in (
            (split.inputs, split.targets),
            (split.held_inputs, split.held_targets),
        )
    )
    _check_metric(metric, targets, split)
    _check_loss(loss, targets, split)
    backbone = open_backbone(settings.backbone, trust_remote_code=settings.trust_remote_code)
    if settings.stem == "kmer" and inputs.kind != "tokens":
        raise OptionError(
            "k-mers are made of symbols", where="stem", fix="pass --kind tokens, or leave it out"
        )
    options: Any = {"tokens": settings.tokens, "patch": settings.patch, "stem": settings.stem}
    shape = shape_for(backbone.theta, inputs.size, inputs.channels, **options)
    proxy = checked_proxy(settings.proxy, backbone) if method.needs_source else None
    return AdaptPlan(
        settings, method, split, inputs, targets, metric, loss, train, held, backbone, shape, proxy
    )


def _check_metric(metric: Metric, targets: Targets, split: Split) -> None:
    """Refuse validation rows on which the metric has no value, whatever is predicted for them."""
    truth, scores = targets.truth(split.held_targets), None
    if targets.classes is not None:
        scores = np.full((len(truth), len(targets.classes)), 1.0 / len(targets.classes))
    elif targets.task == "multilabel":
        scores = np.full(truth.shape, 0.5)
    try:
        metric(truth, truth, scores)
    except DataError as error:
        raise DataError(
            f"{metric.name} is undefined on the {len(truth)} validation rows ({error.what})",
            where="validation",
            fix="choose another metric, or other validation rows",
        ) from error


def _check_loss(loss: Loss, targets: Targets, split: Split) -> None:
    """Refuse training targets that a relative loss would divide by nothing."""
    if loss.name not in RELATIVE:
        return
    truth = targets.truth(split.targets)
    sizes = np.linalg.norm(truth.reshape(len(truth), -1), axis=1)
    zero = sizes <= NOTHING * sizes.mean()
    if zero.any():
        rows = np.setdiff1d(np.arange(len(truth) + len(split.held_index)), split.held_index)
        raise DataError(
            f"target {int(rows[zero.argmax()]) + 1} is all zero ({int(zero.sum())} such rows to train "
            f"on), and {loss.name} divides by its size",
            where="y",
            fix="choose the loss mse, or leave such rows out",
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
