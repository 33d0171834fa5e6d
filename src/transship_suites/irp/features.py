"""Encoders of the stitching suite: small networks on images, sentence encoders on texts and captions."""

from __future__ import annotations

from typing import Any

from transship_suites.materials.embeddings import vectors
from transship_suites.runner import Case, Context

IMAGES = ("digits", "mnist", "fashion_mnist")
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
    import numpy as np
    from sklearn.linear_model import LogisticRegression

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
    import numpy as np

    from transship.data import load

    data = load(name, "text")
    assert data.splits is not None
    assert data.labels is not None
    is_test = np.asarray(data.splits) == "test"
    rng = np.random.default_rng(0)
    kept = np.sort(
        np.concatenate(
            [
                rng.permutation(np.flatnonzero(~is_test))[: options["train"]],
                rng.permutation(np.flatnonzero(is_test))[: options["test"]],
            ]
        )
    )
    return [str(data.inputs[row]) for row in kept], np.asarray(data.labels)[kept], is_test[kept]


def _caption_features(labels: Any, context: Context) -> dict[str, Any]:
    """Return sentence vectors of captions that name each image's class, in words drawn per image."""
    import numpy as np

    drawn = np.random.default_rng(context.seed("captions")).integers(len(TEMPLATES), size=len(labels))
    texts = [template.format(name) for template in TEMPLATES for name in DIGITS]
    places = drawn * len(DIGITS) + labels
    models = context.options["encoders"]["cross-modal"]
    return {f"captions by {model}": vectors(context, model, texts, "document")[places] for model in models}


def _image_features(name: str, context: Context) -> Features:
    """Return features of small networks of several widths, each trained apart on half of the images."""
    import numpy as np

    images, labels, is_test = _images(name, context.options["images"])
    features = {}
    for copy, width in enumerate(WIDTHS):
        settings = {
            "width": width,
            "epochs": context.options["epochs"],
            "seed": context.seed("network", name, copy),
        }

        def make(settings: dict[str, Any] = settings) -> dict[str, Any]:
            return {"features": _train(images, labels, is_test, **settings)}

        parts = {**settings, "data": name, "images": context.options["images"]}
        found = context.cached("irp-stitch", parts, make, code=(_train, _images))
        features[f"network {copy + 1} ({width})"] = np.asarray(found["features"])
    return features, labels, is_test


def _images(name: str, count: int) -> tuple[Any, Any, Any]:
    import numpy as np

    from transship.data import digits, load

    data = digits(kind="array", seed=0) if name == "digits" else load(name, "image", mode="L")
    assert data.splits is not None
    assert data.labels is not None
    is_test = np.asarray(data.splits) == "test"
    rng = np.random.default_rng(0)
    kept = np.concatenate(
        [
            rng.permutation(np.flatnonzero(part))[:size]
            for part, size in ((~is_test, count), (is_test, count // 4))
        ]
    )
    pixels = np.stack([np.asarray(data.inputs[int(row)], dtype=np.float32) for row in kept])
    pixels = pixels.reshape(len(kept), -1)
    return pixels / max(1.0, float(pixels.max())), np.asarray(data.labels)[kept], is_test[kept]


def _train(pixels: Any, labels: Any, is_test: Any, width: int, epochs: int, seed: int) -> Any:
    """Train two hidden layers on a random half of the training images; return the last features."""
    import numpy as np
    import torch

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
