"""Stitching: a head trained on one encoder, used on another without training; and how much scale matters."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transship.errors import DataError, MatchError
from transship.types import Array
from transship.verbs.translate.maps.base import Translator
from transship.verbs.translate.maps.vectors import unit_rows


class Stitch:
    """Encoder, translator and head as one predictor: what the head learned on its own encoder, on another.

    Attributes:
        encoder: inputs → vectors, or None when vectors are given.
        translator: the encoder's space → the head's space, or None for none (absolute).
        head: anything with `predict`, or a function of vectors.
    """

    def __init__(
        self, encoder: Callable[[Any], Array] | None, translator: Translator | None, head: Any
    ) -> None:
        """Keep the three parts; nothing is trained."""
        self.encoder, self.translator, self.head = encoder, translator, head

    def features(self, inputs: Any) -> Any:
        vectors = inputs if self.encoder is None else self.encoder(inputs)
        return vectors if self.translator is None else self.translator.transform(vectors)

    def predict(self, inputs: Any) -> Any:
        features = self.features(inputs)
        return self.head.predict(features) if hasattr(self.head, "predict") else self.head(features)

    def score(self, inputs: Any, labels: Any) -> float:
        return float((np.asarray(self.predict(inputs)) == np.asarray(labels)).mean())


@dataclass(frozen=True)
class Stitching:
    """Accuracy of every encoder with every head.

    Attributes:
        names: the encoders, in order; a head is named by the encoder it was trained on.
        accuracy: [encoders, heads]; the diagonal is the head on its own encoder (non-stitch).
        absolute: the same without translation; NaN where widths differ.
        similarity: mean cosine of translated with native rows, 1 on the diagonal.
    """

    names: tuple[str, ...]
    accuracy: Array
    absolute: Array
    similarity: Array

    @property
    def stitched(self) -> float:
        """Mean accuracy over pairs of different encoder and head."""
        return float(self.accuracy[~np.eye(len(self.names), dtype=bool)].mean())

    @property
    def native(self) -> float:
        """Mean accuracy of heads on their own encoders."""
        return float(np.diagonal(self.accuracy).mean())

    @property
    def achievable(self) -> int:
        """Ordered pairs that absolute stitching can tackle at all."""
        off = ~np.eye(len(self.names), dtype=bool)
        return int(np.isfinite(self.absolute[off]).sum())

    def by_encoder(self) -> dict[str, float]:
        """Mean accuracy per encoder over the heads of others."""
        return dict(zip(self.names, _means(self.accuracy), strict=True))

    def by_head(self) -> dict[str, float]:
        """Mean accuracy per head over other encoders."""
        return dict(zip(self.names, _means(self.accuracy.T), strict=True))


def stitching_matrix(
    method: Translator,
    anchors: Mapping[str, Array],
    heads: Mapping[str, Any],
    test: Mapping[str, Array],
    labels: Array,
) -> Stitching:
    """Stitch every encoder to every head, [encoders, heads]; encoders may be of other modalities.

    `anchors` and `test` hold each encoder's vectors of the same items in the same order; `heads` are trained
    on their own encoder's vectors.
    """
    names = tuple(anchors)
    _check(names, anchors, heads, test, labels)
    size = len(names)
    accuracy, absolute, similarity = (np.full((size, size), np.nan) for _ in range(3))
    for column, owner in enumerate(names):
        head, others = heads[owner], [name for name in names if name != owner]
        for row, encoder in enumerate(names):
            if test[encoder].shape[1] == test[owner].shape[1]:
                absolute[row, column] = Stitch(None, None, head).score(test[encoder], labels)
        accuracy[column, column], similarity[column, column] = absolute[column, column], 1.0
        fits = method.fit_each((anchors[encoder] for encoder in others), anchors[owner])
        for encoder, fitted in zip(others, fits, strict=True):
            stitch, row = Stitch(None, fitted, head), names.index(encoder)
            accuracy[row, column] = stitch.score(test[encoder], labels)
            moved = unit_rows(stitch.features(test[encoder]))
            similarity[row, column] = float((moved * unit_rows(test[owner])).sum(1).mean())
    return Stitching(names, accuracy, absolute, similarity)


@dataclass(frozen=True)
class ScaleProbe:
    """Accuracy when vectors of a layer are given another length: [layers, factors].

    Attributes:
        layers: names of the layers.
        factors: α, the length that every vector is given.
        accuracy: with rescaling.
        baseline: without.
    """

    layers: tuple[str, ...]
    factors: tuple[float, ...]
    accuracy: Array
    baseline: float


def scale_probe(
    model: Any, layers: Sequence[str], factors: Sequence[float], evaluate: Callable[[Any], float]
) -> ScaleProbe:
    """Rescale the output of one layer at a time and evaluate: Sec. 4.2 and Figs. 2 and 4 of the paper.

    `layers` are module names of `model` (a torch module); `evaluate(model)` returns its accuracy.
    """
    accuracy = [[_with_scale(model, layer, factor, evaluate) for factor in factors] for layer in layers]
    return ScaleProbe(tuple(layers), tuple(factors), np.asarray(accuracy), float(evaluate(model)))


@contextlib.contextmanager
def rescaled(model: Any, layer: str, factor: float) -> Iterator[None]:
    """Give every vector that leaves `layer` the length `factor`, while the body runs."""
    modules = dict(model.named_modules())
    if layer not in modules:
        raise MatchError(
            f"has no layer '{layer}'", where=type(model).__name__, fix=f"name one of: {_few(modules)}"
        )

    def inject(module: Any, inputs: Any, output: Any) -> Any:
        import torch  # start-up: heads and maps alone may do without

        first = output[0] if isinstance(output, tuple) else output
        scaled = torch.nn.functional.normalize(first, dim=-1) * factor
        return (scaled, *output[1:]) if isinstance(output, tuple) else scaled

    handle = modules[layer].register_forward_hook(inject)
    try:
        yield
    finally:
        handle.remove()


def _with_scale(model: Any, layer: str, factor: float, evaluate: Callable[[Any], float]) -> float:
    with rescaled(model, layer, factor):
        return float(evaluate(model))


def _means(values: Array) -> list[float]:
    """Return the mean of each row without its diagonal element."""
    off = ~np.eye(len(values), dtype=bool)
    return [float(row[kept].mean()) for row, kept in zip(values, off, strict=True)]


def _few(modules: Mapping[str, Any]) -> str:
    return ", ".join([name for name in modules if name][:8])


def _check(
    names: Sequence[str],
    anchors: Mapping[str, Array],
    heads: Mapping[str, Any],
    test: Mapping[str, Array],
    labels: Array,
) -> None:
    if len(names) < 2 or set(names) != set(heads) or set(names) != set(test):
        raise DataError(
            "anchors, heads and test rows are not of the same encoders",
            where="stitching",
            fix="give all three per encoder",
        )
    counts = {len(anchors[name]) for name in names}, {len(test[name]) for name in names} | {len(labels)}
    if any(len(count) > 1 for count in counts):
        raise DataError(
            "encoders have different numbers of rows", where="stitching", fix="give the same items to all"
        )
