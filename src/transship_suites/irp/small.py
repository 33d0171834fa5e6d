"""What the stitching suite measures: pairs of encoders and heads, ω and δ, and the scale of a layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transship.errors import TransshipWarning
from transship_suites.irp.features import encoded, stitch_texts
from transship_suites.runner import Case, Context, Measurement

# the paper's own settings of ω and δ per data set, where it has the data set
SETTINGS = {"mnist": (8, 0.65), "fashion_mnist": (8, 0.65), "trec_questions": (8, 0.70)}
DEFAULT, CROSS = (8, 0.65), (16, 0.8)
OMEGAS, DELTAS = (1, 4, 16), (0.0, 0.4, 0.6, 0.7, 0.8, 0.9)
ALPHAS = (0.1, 1.0, 5.0, 10.0, 20.0, 100.0)
METHODS = (
    "IRP (paper)",
    "IRP (guarded)",
    "IRP (completed)",
    "IRP (Tikhonov)",
    "procrustes",
    "ridge",
    "kernel",
)


def measure_stitch(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure all ordered pairs of encoders and heads."""
    from transship.verbs.translate import stitching_matrix

    anchors, heads, test, labels = encoded(case, context)
    context.attach("encoders", list(anchors))
    crossing = case["part"] == "cross-modal"
    first = None
    for name, method in _methods(str(case["data"]), crossing).items():
        found = stitching_matrix(method, anchors, heads, test, labels)
        context.attach(name, found.accuracy.tolist())
        metrics = {"accuracy": found.stitched, "similarity": _off(found.similarity)}
        if crossing:
            metrics = {"accuracy": _across(found.names, found.accuracy)}
        yield Measurement({"method": name}, metrics)
        first = first or found
    assert first is not None
    pairs = len(first.names) * (len(first.names) - 1)
    yield Measurement(
        {"method": "absolute"},
        {"accuracy": _off(first.absolute), "achievable": first.achievable, "available": pairs},
    )
    yield Measurement({"method": "non-stitch"}, {"accuracy": first.native})


def measure_sensitivity(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure similarity, accuracy, condition number and anchors kept against ω and δ."""
    import warnings

    import numpy as np

    from transship.verbs.translate import InverseRelativeProjection, stitching_matrix

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
                found = stitching_matrix(method, anchors, heads, test, labels)
                own = [(method.fit(rows, rows), test[name]) for name, rows in anchors.items()]
            within = [float(np.mean(_cosines(one.transform(rows), rows))) for one, rows in own]
            yield Measurement(
                {"omega": omega, "delta": delta},
                {
                    "similarity": _off(found.similarity),
                    "accuracy": found.stitched,
                    "similarity within": float(np.mean(within)),
                    "condition": float(np.mean([np.mean(one.conditions_) for one, _ in own])),
                    "anchors": float(np.mean([len(part) for one, _ in own for part in one.lists_])),
                },
            )


def measure_scale(case: Case, context: Context) -> Iterator[Measurement]:
    """Give every vector that leaves a layer of a sentence encoder the length α; measure a head after it."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    from transship.activations.models import load_model
    from transship.activations.readout import features
    from transship.data import find_model
    from transship.verbs.translate import scale_probe
    from transship_suites.materials.embeddings import vectors

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
    for number, found in zip(layers.values(), probe.accuracy, strict=True):
        for alpha, value in zip(ALPHAS, found, strict=True):
            yield Measurement({"layer": number, "alpha": alpha}, {"accuracy": float(value)})
    yield Measurement({"method": "not rescaled"}, {"accuracy": probe.baseline})


def _methods(data: str, crossing: bool) -> dict[str, Any]:
    from transship.verbs.translate import InverseRelativeProjection, KernelRidge, Procrustes, Ridge

    omega, delta = CROSS if crossing else SETTINGS.get(data, DEFAULT)
    made = (
        InverseRelativeProjection(delta=delta, subspaces=omega, n_anchors=None, inverse=False),
        InverseRelativeProjection(delta=delta, subspaces=omega, inverse=False),
        InverseRelativeProjection(delta=delta, subspaces=omega, completion=True, inverse=False),
        InverseRelativeProjection(regularize=1.0, inverse=False),
        Procrustes(),
        Ridge(),
        KernelRidge(inverse=False),
    )
    return dict(zip(METHODS, made, strict=True))


def _cosines(a: Any, b: Any) -> Any:
    from transship.verbs.translate.nearest import unit_rows

    return (unit_rows(a) * unit_rows(b)).sum(1)


def _off(values: Any) -> float | None:
    """Return the mean over pairs of different encoders that have a value."""
    import numpy as np

    kept = values[~np.eye(len(values), dtype=bool)]
    kept = kept[np.isfinite(kept)]
    return float(kept.mean()) if len(kept) else None


def _across(names: tuple[str, ...], accuracy: Any) -> float:
    """Return the mean over pairs of an image encoder and a head of captions, or the other way round."""
    text = [name.startswith("captions") for name in names]
    found = [
        accuracy[row, column]
        for row, left in enumerate(text)
        for column, right in enumerate(text)
        if left != right
    ]
    return float(sum(found) / len(found))
