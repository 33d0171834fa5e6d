"""Features of pre-trained encoders, heads on them, and every encoder with every head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from transship.activations import load_model
from transship.activations.readout import features
from transship.data import Dataset, find_model
from transship.verbs.translate import InverseRelativeProjection, Procrustes, Ridge, stitching_matrix
from transship_suites.materials.hub import read
from transship_suites.runner import Case, Context, Measurement

Array = NDArray[Any]


def measured(case: Case, context: Context) -> Iterator[Measurement]:
    """Yield accuracies of every method, of absolute stitching and of heads on their own encoders."""
    from sklearn.linear_model import LogisticRegression

    about, options = context.options["data"][case["data"]], context.options
    rows, labels, is_test = _encoded(about, context)
    across = about["kind"] == "both"
    train = np.random.default_rng(context.seed("split")).permutation(np.flatnonzero(~is_test))
    anchors = train[: options["anchors across" if across else "anchors"]]
    heads = {
        name: LogisticRegression(max_iter=300).fit(own[train], labels[train]) for name, own in rows.items()
    }
    known = {name: own[anchors] for name, own in rows.items()}
    test = {name: own[is_test] for name, own in rows.items()}
    found = None
    for name, method in _methods(about, context.seed("irp") % 2**31).items():
        found = stitching_matrix(method, known, heads, test, labels[is_test])
        context.attach(name, {"encoders": list(found.names), "accuracy": found.accuracy.round(4).tolist()})
        accuracy = _across(found.names, found.accuracy, context) if across else found.stitched
        yield Measurement({"method": name}, {"accuracy": accuracy})
    assert found is not None
    off = found.absolute[~np.eye(len(found.names), dtype=bool)]
    plain = off[np.isfinite(off)]
    yield Measurement(
        {"method": "absolute"},
        {
            "accuracy": float(plain.mean()) if len(plain) else None,
            "achievable": found.achievable,
            "available": len(off),
        },
    )
    yield Measurement({"method": "non-stitch"}, {"accuracy": found.native})


def _methods(about: Mapping[str, Any], seed: int) -> dict[str, Any]:
    # the paper leaves the number of anchors to δ alone
    irp = InverseRelativeProjection(delta=about["delta"], subspaces=about["omega"], n_anchors=None, seed=seed)
    return {"IRP": irp, "procrustes": Procrustes(), "ridge": Ridge()}


def _encoded(about: Mapping[str, Any], context: Context) -> tuple[dict[str, Array], Array, Array]:
    """Return features by encoder, labels, and which rows are for testing: the same rows for every seed."""
    kinds: tuple[Literal["image", "text"], ...] = ("image", "text")
    if about["kind"] != "both":
        kinds = (about["kind"],)
    found: dict[str, Array] = {}
    labels = is_test = np.empty(0)
    for kind in kinds:
        data = _rows(about, kind, context.options)
        assert data.splits is not None
        labels, is_test = np.asarray(data.labels), np.asarray(data.splits) == "test"
        for name in context.options["images" if kind == "image" else "texts"]:
            found[name] = _vectors(context, name, data, kind)
    return found, labels, is_test


def _rows(about: Mapping[str, Any], kind: Literal["image", "text"], options: Mapping[str, Any]) -> Dataset:
    column = about.get("column") if kind == about["kind"] else kind
    data = read(about["hub"], kind, config=about.get("config"), column=column, label=about.get("label"))
    assert data.splits is not None
    kept = [
        np.random.default_rng(0).permutation(np.flatnonzero(np.asarray(data.splits) == split))[:most]
        for split, most in (("train", options["train"]), ("test", options["test"]))
    ]
    return data.subset(np.sort(np.concatenate(kept)))


def _vectors(context: Context, model: str, data: Dataset, kind: str) -> Array:
    """Return one encoder's features of all rows, made once for all seeds and runs."""
    folder = find_model(model)

    def make() -> dict[str, Any]:
        loaded = load_model(str(folder), device=context.device, name=model)
        inputs = (data.inputs[row] for row in range(len(data)))
        return {"vectors": features(loaded, inputs, batch_size=context.options["batch"])}

    parts = {
        "model": model,
        "size": sum(file.stat().st_size for file in folder.glob("*.safetensors")),
        "rows": data.fingerprint(),
        "kind": kind,
    }
    return np.asarray(context.cached("stitch-features", parts, make, code=(_vectors,))["vectors"])


def _across(names: tuple[str, ...], accuracy: Array, context: Context) -> float:
    """Return the mean over pairs of an image encoder and a head on texts, and the other way round."""
    text = np.array([name in context.options["texts"] for name in names])
    return float(accuracy[text[:, None] != text[None, :]].mean())
