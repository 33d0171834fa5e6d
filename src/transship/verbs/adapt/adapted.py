"""An adapted model: how inputs are read, the network, how outputs are read, and what it was made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transship.numerics import chunks
from transship.verbs.adapt.model.backbone import Backbone, Body
from transship.verbs.adapt.model.heads import HeadShape
from transship.verbs.adapt.model.network import Network, pooled
from transship.verbs.adapt.raw.base import Base
from transship.verbs.adapt.rows.inputs import Inputs
from transship.verbs.adapt.rows.metrics import evaluate, find_metric
from transship.verbs.adapt.rows.targets import Targets
from transship.verbs.adapt.source.model import Source
from transship.verbs.adapt.train.learner import FORWARD_BATCH

Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class Adapted:
    """What a fit makes.

    Attributes:
        inputs: how raw inputs become tensors.
        targets: how outputs become predictions.
        network: φ, body, head.
        head_shape: what the head is built from.
        source: the source's features and head, or None.
        about: everything that is known: backbone, task, metric, settings, data hash, validation, log,
            history.
        seconds: CPU seconds of the parts of the fit; not saved, since they differ from run to run.
        backbone: the pretrained model, where it is at hand.
        base: the raw model that the network corrects, or None.
        snapshots: pooled φ(x) of some training rows during stage 1 and after stage 2, for the report; not
            saved.
        path_clouds: the same after stage 2 of fits with less of stage 1, by name; not saved.
        bound: the terms of Theorem 7 on the validation rows, for the report; not saved.
        forward_rows: how many rows run at once.
    """

    inputs: Inputs
    targets: Targets
    network: Network
    head_shape: HeadShape
    source: Source | None
    about: dict[str, Any]
    seconds: Mapping[str, float] = field(default_factory=dict)
    backbone: Backbone | None = None
    base: Base | None = None
    snapshots: Mapping[str, Tensor] = field(default_factory=dict)
    path_clouds: Mapping[str, Tensor] = field(default_factory=dict)
    bound: Any = None
    forward_rows: int = FORWARD_BATCH

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.network.embedder.parameters()).device

    def outputs(self, values: Any) -> Array:
        """Return outputs for raw inputs: the network's, on top of the base's where there is one."""
        made = self._over(values, lambda batch: self.network(batch))
        return made if self.base is None else made + self.base.outputs(self.inputs.transform(values))

    def embedded(self, values: Any) -> Array:
        """Return token means of φ(x): where features of source and target are compared."""
        return self._over(values, lambda batch: pooled(self.network.embedder(batch)))

    def features(self, values: Any) -> Array:
        """Return token means of the adapted body's states."""
        return self._over(values, lambda batch: self.network.states(self.network.embedder(batch)).mean(1))

    def source_probabilities(self, values: Any, body: Body, source: Source) -> Array:
        """Return p_s(z|φ(x)) through the pretrained body."""
        grid = self.network.embedder.shape.grid
        return self._over(
            values, lambda batch: source.probabilities(body(self.network.embedder(batch), None, grid))
        )

    def evaluate(self, values: Any, truth: Any) -> dict[str, float]:
        """Return every metric of the task on whole sets."""
        return self.measured(self.outputs(values), truth)

    def measured(self, outputs: Array, truth: Any) -> dict[str, float]:
        """Return every metric of the task for outputs that are there."""
        wanted = self.targets.truth(truth)
        return evaluate(self.targets.task, wanted, self.as_prediction(outputs), self.targets.scores(outputs))

    def score(self, outputs: Array, truth: Array) -> float:
        """Return the metric that the fit chose by; `truth` as `Targets.truth` gives it."""
        metric = find_metric(str(self.about["metric"]))
        return float(metric(truth, self.as_prediction(outputs), self.targets.scores(outputs)))

    def as_prediction(self, outputs: Array) -> Array:
        """Return predictions as metrics take them: int codes, 0/1, or floats."""
        if self.targets.classes is not None:
            return np.asarray(outputs.argmax(1), dtype=np.int64)
        return self.targets.decode(outputs)

    @torch.no_grad()
    def _over(self, values: Any, made: Any) -> Array:
        rows = torch.from_numpy(self.inputs.transform(values))
        parts: list[Tensor] = [
            made(rows[part].to(self.device)).float().cpu() for part in chunks(len(rows), self.forward_rows)
        ]
        return np.asarray(torch.cat(parts).numpy())


__all__ = ["Adapted"]
