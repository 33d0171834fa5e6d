"""The ways of stage 2: a linear head or label transport, φ frozen or trained; and when one is the better."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from transship.errors import DataError
from transship.numerics import derive_seed
from transship.verbs.adapt.heads import Predictor
from transship.verbs.adapt.metrics import Metric
from transship.verbs.adapt.protocol import AdaptMethod
from transship.verbs.adapt.settings import Settings

Array = np.ndarray[Any, Any]
RESAMPLES = 200  # of the validation rows: a standard error within a twentieth
_HEADS = {"linear": "linear head", "transport": "label transport", "pooled": "pooled head"}


@dataclass(frozen=True)
class Way:
    """One way of stage 2.

    Attributes:
        predictor: which head.
        frozen: whether φ stays as stage 1 made it.
    """

    predictor: Predictor = "linear"
    frozen: bool = False

    def __str__(self) -> str:
        return f"{_HEADS[self.predictor]}, {'φ frozen' if self.frozen else 'everything trained'}"

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """Return what `told` gave."""
        return cls(told["predictor"], told["freeze_embedder"])

    def told(self) -> dict[str, Any]:
        """Return it as settings."""
        return {"predictor": self.predictor, "freeze_embedder": self.frozen}


def ways_of(settings: Settings, method: AdaptMethod, task: str) -> list[Way]:
    """Return the ways that settings, method and task leave open; the first one is the default.

    What is told is the only way. `auto` stands for the linear head with everything trained, and, for methods
    that leave stage 2 open, for the others: φ frozen, and where targets are classes and no raw model stands
    under the network, label transport.
    """
    further = transport_open(settings, method) and task == "classification"
    told: Any = settings.predictor
    heads: list[Predictor] = [told]
    if told == "auto":
        heads = ["linear", "transport"] if further else ["linear"]
    frozen = [bool(settings.freeze_embedder)]
    if settings.freeze_embedder == "auto":
        frozen = [False, True] if method.open_stage_two and "body" in method.trains else [False]
    return [Way(head, one) for head in heads for one in frozen]


def transport_open(settings: Settings, method: AdaptMethod) -> bool:
    """Return whether label transport is told, or one of the ways where targets are classes."""
    if settings.predictor == "auto":
        return method.open_stage_two and method.needs_source and settings.base == "none"
    return settings.predictor == "transport"


def standard_error(metric: Metric, truth: Array, prediction: Array, scores: Array | None, seed: int) -> float:
    """Return the standard error of a metric over the rows, by the bootstrap.

    Draws in which the metric is undefined do not count; without two that do, the error is 0.
    """
    generator = np.random.default_rng(derive_seed(seed, "standard error"))
    found = []
    for _ in range(RESAMPLES):
        rows = generator.integers(0, len(truth), len(truth))
        try:
            found.append(metric(truth[rows], prediction[rows], None if scores is None else scores[rows]))
        except DataError:
            continue
    return float(np.std(found, ddof=1)) if len(found) > 1 else 0.0


__all__ = ["Way", "standard_error", "transport_open", "ways_of"]
