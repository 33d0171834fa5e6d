"""What the stitching suites measure: pairs of encoders and heads, ω and δ, and the scale of a layer."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from transship.activations.models import load_model
from transship.activations.readout import features
from transship.data import find_model
from transship.errors import TransshipWarning
from transship.verbs.translate import (
    InverseRelativeProjection,
    KernelRidge,
    Procrustes,
    Ridge,
    scale_probe,
    stitching_matrix,
)
from transship.verbs.translate.maps.vectors import unit_rows
from transship_suites.irp.declared import ALPHAS, CROSS, DEFAULT, DELTAS, METHODS, OMEGAS, SETTINGS
from transship_suites.irp.features import encoded, hub_encoded, stitch_texts
from transship_suites.materials.embeddings import vectors
from transship_suites.runner import Case, Context, Measurement

Rows = Mapping[str, Any]  # by encoder


def measured(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure a case of the small suite."""
    parts = {"sensitivity": measure_sensitivity, "scale": measure_scale}
    return parts.get(str(case["part"]), measure_stitch)(case, context)


def measure_stitch(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure all ordered pairs of encoders and heads."""
    anchors, heads, test, labels = encoded(case, context)
    crossing = case["part"] == "cross-modal"
    omega, delta = CROSS if crossing else SETTINGS.get(str(case["data"]), DEFAULT)
    methods = (
        InverseRelativeProjection(delta=delta, subspaces=omega, n_anchors=None, inverse=False),
        InverseRelativeProjection(delta=delta, subspaces=omega, inverse=False),
        InverseRelativeProjection(delta=delta, subspaces=omega, completion=True, inverse=False),
        InverseRelativeProjection(regularize=1.0, inverse=False),
        Procrustes(),
        Ridge(),
        KernelRidge(inverse=False),
    )
    texts = [name for name in anchors if name.startswith("captions")]
    named = dict(zip(METHODS, methods, strict=True))
    yield from _stitched(context, named, anchors, heads, test, labels, texts=texts if crossing else ())


def measure_hub(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure a row of Table 2 in the paper's own setting."""
    about, options = context.options["data"][case["data"]], context.options
    rows, labels, is_test = hub_encoded(about, context)
    across = about["kind"] == "both"
    train = np.random.default_rng(context.seed("split")).permutation(np.flatnonzero(~is_test))
    chosen = train[: options["anchors across" if across else "anchors"]]
    heads = {
        name: LogisticRegression(max_iter=300).fit(own[train], labels[train]) for name, own in rows.items()
    }
    # the paper leaves the number of anchors to δ alone
    irp = InverseRelativeProjection(
        delta=about["delta"], subspaces=about["omega"], n_anchors=None, seed=context.seed("irp") % 2**31
    )
    methods = {"IRP": irp, "procrustes": Procrustes(), "ridge": Ridge()}
    anchors, test = ({name: own[part] for name, own in rows.items()} for part in (chosen, is_test))
    texts = options["texts"] if across else ()
    yield from _stitched(context, methods, anchors, heads, test, labels[is_test], texts=texts)


def _stitched(
    context: Context,
    methods: Mapping[str, Any],
    anchors: Rows,
    heads: Rows,
    test: Rows,
    labels: Any,
    *,
    texts: Collection[str] = (),
) -> Iterator[Measurement]:
    """Yield accuracies of every method, of absolute stitching and of heads on their own encoders.

    Where some encoders are of `texts`, pairs of an encoder of images and a head of texts count, and the other
    way round.
    """
    context.attach("encoders", list(anchors))
    matrices = {
        name: stitching_matrix(method, anchors, heads, test, labels) for name, method in methods.items()
    }
    for name, matrix in matrices.items():
        context.attach(name, matrix.accuracy.tolist())
        if texts:
            text = np.array([encoder in texts for encoder in matrix.names])
            metrics: dict[str, float | None] = {
                "accuracy": float(matrix.accuracy[text[:, None] != text[None, :]].mean())
            }
        else:
            metrics = {"accuracy": matrix.stitched, "similarity": _off(matrix.similarity)}
        yield Measurement({"method": name}, metrics)
    first = next(iter(matrices.values()))
    pairs = len(first.names) * (len(first.names) - 1)
    plain = {"accuracy": _off(first.absolute), "achievable": first.achievable, "available": pairs}
    yield Measurement({"method": "absolute"}, plain)
    yield Measurement({"method": "non-stitch"}, {"accuracy": first.native})


def measure_sensitivity(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure similarity, accuracy, condition number and anchors kept against ω and δ."""
    anchors, heads, test, labels = encoded(case, context)
    for omega in OMEGAS:
        for delta in DELTAS:
            # the paper leaves the number of anchors to δ alone: no guard here, so that the peak shows
            method = InverseRelativeProjection(
                delta=delta,
                subspaces=omega,
                n_anchors=None,
                inverse=False,
                seed=context.seed("irp") % 2**31,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TransshipWarning)  # conditions are a column
                matrix = stitching_matrix(method, anchors, heads, test, labels)
                own = [(method.fit(rows, rows), test[name]) for name, rows in anchors.items()]
            cosines = [(unit_rows(fitted.transform(rows)) * unit_rows(rows)).sum(1) for fitted, rows in own]
            metrics = {
                "similarity": _off(matrix.similarity),
                "accuracy": matrix.stitched,
                "similarity within": float(np.mean([np.mean(part) for part in cosines])),
                "condition": float(np.mean([np.mean(fitted.conditions_) for fitted, _ in own])),
                "anchors": float(np.mean([len(part) for fitted, _ in own for part in fitted.lists_])),
            }
            yield Measurement({"omega": omega, "delta": delta}, metrics)


def measure_scale(case: Case, context: Context) -> Iterator[Measurement]:
    """Give every vector that leaves a layer of a sentence encoder the length α; measure a head after it."""
    texts, labels, is_test = stitch_texts(str(case["data"]), context.options)
    rows = vectors(context, "minilm-l6", texts, "document")
    head = LogisticRegression(max_iter=300).fit(rows[~is_test], labels[~is_test])
    drawn = np.random.default_rng(context.seed("questions")).permutation(np.flatnonzero(is_test))[:120]
    asked = [texts[row] for row in drawn]
    loaded = load_model(str(find_model("minilm-l6")), device=context.device, name="minilm-l6")

    def accuracy(_: Any) -> float:
        return float((head.predict(features(loaded, asked)) == labels[drawn]).mean())

    layers = {"embeddings": 0, "encoder.layer.1": 2, "encoder.layer.3": 4, "encoder.layer.5": 6}
    probe = scale_probe(loaded.model, list(layers), ALPHAS, accuracy)
    for number, values in zip(layers.values(), probe.accuracy, strict=True):
        for alpha, value in zip(ALPHAS, values, strict=True):
            yield Measurement({"layer": number, "alpha": alpha}, {"accuracy": float(value)})
    yield Measurement({"method": "not rescaled"}, {"accuracy": probe.baseline})


def _off(values: Any) -> float | None:
    """Return the mean over pairs of different encoders that have a value."""
    kept = values[~np.eye(len(values), dtype=bool)]
    kept = kept[np.isfinite(kept)]
    return float(kept.mean()) if len(kept) else None
