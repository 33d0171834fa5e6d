"""Encoders of the stitching suites: small networks on images, sentence encoders on texts, hub models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from transship.activations import load_model
from transship.activations.readout import features as features_of
from transship.data import Dataset, digits, find_model, load
from transship.types import Array
from transship_suites.irp.declared import IMAGES
from transship_suites.materials.embeddings import vectors
from transship_suites.materials.origins import read
from transship_suites.runner import Case, Context

WIDTHS = (48, 64, 64, 96)  # two of equal width, so that absolute stitching is possible at all
# what a caption says around the name of the class; which one an image gets is drawn
TEMPLATES = (
    "a picture of {}",
    "this image shows {}",
    "somebody drew {} here",
    "{}, in black and white",
    "a small scan of {}",
    "the photograph is of {}",
    "look, it is {}",
    "a grainy image with {} in the middle",
)
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
Features = tuple[dict[str, Any], Any, Any]


def encoded(case: Case, context: Context) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], Any]:
    """Return anchors, heads, test rows per encoder, and the test labels."""
    name, options = str(case["data"]), context.options
    features, labels, is_test = _features(str(case["part"]), name, context)
    rng = np.random.default_rng(context.seed("split"))
    train = rng.permutation(np.flatnonzero(~is_test))
    test = np.sort(rng.permutation(np.flatnonzero(is_test))[: options["test"]])
    anchors, kept = train[: options["anchors"]], train[: options["train"]]
    heads = {
        encoder: LogisticRegression(max_iter=300).fit(rows[kept], labels[kept])
        for encoder, rows in features.items()
    }
    return (
        {encoder: rows[anchors] for encoder, rows in features.items()},
        heads,
        {encoder: rows[test] for encoder, rows in features.items()},
        labels[test],
    )


def _features(part: str, name: str, context: Context) -> Features:
    """Return rows by encoder, labels, and which rows are for testing."""
    if part == "cross-modal":
        features, labels, is_test = _image_features(name, context)
        some = dict(list(features.items())[::3])  # the narrowest and the widest network
        return some | _caption_features(labels, context), labels, is_test
    if name in IMAGES:
        return _image_features(name, context)
    return _text_features(name, context, context.options["encoders"][part])


def _text_features(name: str, context: Context, encoders: list[str]) -> Features:
    texts, labels, is_test = stitch_texts(name, context.options)
    return {model: vectors(context, model, texts, "document") for model in encoders}, labels, is_test


def stitch_texts(name: str, options: Any) -> tuple[list[str], Any, Any]:
    """Return texts, labels, and which texts are for testing: the same rows for every seed."""
    data = load(name, "text")
    assert data.splits is not None
    assert data.labels is not None
    is_test = np.asarray(data.splits) == "test"
    kept = np.sort(_drawn(is_test, options["train"], options["test"]))
    return [str(data.inputs[row]) for row in kept], np.asarray(data.labels)[kept], is_test[kept]


def _drawn(is_test: Any, train: int, test: int) -> Any:
    """Return the numbers of some training rows and of some test rows, the same for every seed."""
    rng = np.random.default_rng(0)
    parts = ((~is_test, train), (is_test, test))
    return np.concatenate([rng.permutation(np.flatnonzero(part))[:size] for part, size in parts])


def _caption_features(labels: Any, context: Context) -> dict[str, Any]:
    """Return sentence vectors of captions that name each image's class, in words drawn per image."""
    drawn = np.random.default_rng(context.seed("captions")).integers(len(TEMPLATES), size=len(labels))
    texts = [template.format(name) for template in TEMPLATES for name in DIGITS]
    places = drawn * len(DIGITS) + labels
    models = context.options["encoders"]["cross-modal"]
    return {f"captions by {model}": vectors(context, model, texts, "document")[places] for model in models}


def _image_features(name: str, context: Context) -> Features:
    """Return features of small networks of several widths, each trained apart on half of the images."""
    images, labels, is_test = _images(name, context.options["images"])
    features = {}
    for copy, width in enumerate(WIDTHS):
        settings = {
            "width": width,
            "epochs": context.options["epochs"],
            "seed": context.seed("network", name, copy),
        }

        parts = {**settings, "data": name, "images": context.options["images"]}
        make = partial(_trained, images, labels, is_test, **settings)
        arrays = context.cached("irp-stitch", parts, make, code=(_train, _images))
        features[f"network {copy + 1} ({width})"] = np.asarray(arrays["features"])
    return features, labels, is_test


def _images(name: str, count: int) -> tuple[Any, Any, Any]:
    data = digits(kind="array", seed=0) if name == "digits" else load(name, "image", mode="L")
    assert data.splits is not None
    assert data.labels is not None
    is_test = np.asarray(data.splits) == "test"
    kept = _drawn(is_test, count, count // 4)
    pixels = np.stack([np.asarray(data.inputs[int(row)], dtype=np.float32) for row in kept])
    pixels = pixels.reshape(len(kept), -1)
    return pixels / max(1.0, float(pixels.max())), np.asarray(data.labels)[kept], is_test[kept]


def _trained(*rows: Any, **settings: Any) -> dict[str, Any]:
    return {"features": _train(*rows, **settings)}


def _train(pixels: Any, labels: Any, is_test: Any, width: int, epochs: int, seed: int) -> Any:
    """Train two hidden layers on a random half of the training images; return the last features."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        wide = 2 * width
        body = torch.nn.Sequential(
            torch.nn.Linear(pixels.shape[1], wide),
            torch.nn.GELU(),
            torch.nn.Linear(wide, width),
            torch.nn.Tanh(),
        )
        head = torch.nn.Linear(width, int(labels.max()) + 1)
    order = np.random.default_rng(seed)
    train = order.permutation(np.flatnonzero(~is_test))
    train = train[: len(train) // 2]
    x, y = torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64))
    optimiser = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=2e-3)
    for _ in range(epochs):
        for rows in np.array_split(order.permutation(train), max(1, len(train) // 64)):
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(head(body(x[rows])), y[rows])
            torch.autograd.backward(loss)
            optimiser.step()
    with torch.inference_mode():
        return body(x).numpy()


def hub_encoded(about: Mapping[str, Any], context: Context) -> Features:
    """Return features of the hub's encoders, labels, and which rows are for testing, whatever the seed."""
    kinds: tuple[Literal["image", "text"], ...] = ("image", "text")
    if about["kind"] != "both":
        kinds = (about["kind"],)
    vectors_by: dict[str, Array] = {}
    labels = is_test = np.empty(0)
    for kind in kinds:
        data = _hub_rows(about, kind, context.options)
        assert data.splits is not None
        labels, is_test = np.asarray(data.labels), np.asarray(data.splits) == "test"
        for name in context.options["images" if kind == "image" else "texts"]:
            vectors_by[name] = _hub_vectors(context, name, data, kind)
    return vectors_by, labels, is_test


def _hub_rows(
    about: Mapping[str, Any], kind: Literal["image", "text"], options: Mapping[str, Any]
) -> Dataset:
    column = about.get("column") if kind == about["kind"] else kind
    data = read(about["hub"], kind, config=about.get("config"), column=column, label=about.get("label"))
    assert data.splits is not None
    kept = [
        np.random.default_rng(0).permutation(np.flatnonzero(np.asarray(data.splits) == split))[:most]
        for split, most in (("train", options["train"]), ("test", options["test"]))
    ]
    return data.subset(np.sort(np.concatenate(kept)))


def _hub_vectors(context: Context, model: str, data: Dataset, kind: str) -> Array:
    """Return one encoder's features of all rows, made once for all seeds and runs."""
    folder = find_model(model)

    def make() -> dict[str, Any]:
        loaded = load_model(str(folder), device=context.device, name=model)
        inputs = (data.inputs[row] for row in range(len(data)))
        return {"vectors": features_of(loaded, inputs, batch_size=context.options["batch"])}

    parts = {
        "model": model,
        "size": sum(file.stat().st_size for file in folder.glob("*.safetensors")),
        "rows": data.fingerprint(),
        "kind": kind,
    }
    return np.asarray(context.cached("stitch-features", parts, make, code=(_hub_vectors,))["vectors"])
