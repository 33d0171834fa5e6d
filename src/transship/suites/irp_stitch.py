"""Zero-shot stitching through the relative space, against direct maps: Table 2, Figs. 3 and 6 of IRP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transship.suites.runner import (
    Case,
    Claim,
    Column,
    Context,
    Curve,
    Measurement,
    Need,
    Options,
    Paper,
    Row,
    Scale,
    Suite,
    Table,
    cell,
)

# the paper's own settings of ω and δ per data set, where it has the data set
SETTINGS = {"mnist": (8, 0.65), "fashion_mnist": (8, 0.65), "trec_questions": (8, 0.70)}
DEFAULT = (8, 0.65)
IMAGES = ("digits", "mnist", "fashion_mnist")
WIDTHS = (48, 64, 64, 96)  # two of equal width, so that absolute stitching is possible at all
OMEGAS, DELTAS = (1, 4, 16), (0.0, 0.4, 0.6, 0.7, 0.8, 0.9)


def cases(options: Options) -> list[dict[str, Any]]:
    """Return one case per data set, and the sensitivity on one of them."""
    found: list[dict[str, Any]] = [{"part": "stitch", "data": name} for name in options["data"]]
    return [*found, {"part": "sensitivity", "data": options["sensitivity"]}]


def run(case: Case, context: Context) -> list[Measurement]:
    """Measure all ordered pairs of encoders on one data set."""
    return list((_stitch if case["part"] == "stitch" else _sensitivity)(case, context))


def _stitch(case: Case, context: Context) -> Iterator[Measurement]:
    from transship.verbs.translate import stitching_matrix

    anchors, heads, test, labels = _encoded(case, context)
    first = None
    for name, method in _methods(str(case["data"])).items():
        found = stitching_matrix(method, anchors, heads, test, labels)
        context.attach(name, found.accuracy.tolist())
        yield Measurement(
            {"method": name}, {"accuracy": found.stitched, "similarity": _off(found.similarity)}
        )
        first = first or found
    assert first is not None
    yield Measurement(
        {"method": "absolute"}, {"accuracy": _off(first.absolute), "achievable": first.achievable}
    )
    yield Measurement({"method": "non-stitch"}, {"accuracy": first.native})


def _sensitivity(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure similarity, accuracy, condition number and anchors kept against ω and δ."""
    import warnings

    import numpy as np

    from transship.verbs.translate import InverseRelativeProjection, stitching_matrix

    anchors, heads, test, labels = _encoded(case, context)
    for omega in OMEGAS:
        for delta in DELTAS:
            # the paper leaves the number of anchors to δ alone: no guard here, so that the peak shows
            method = InverseRelativeProjection(
                delta=delta, subspaces=omega, n_anchors=None, seed=context.seed("irp") % 2**31
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = stitching_matrix(method, anchors, heads, test, labels)
                own = [method.fit(rows, rows) for rows in anchors.values()]
            within = [
                float(np.mean(_cosines(one.transform(rows), rows)))
                for one, rows in zip(own, test.values(), strict=True)
            ]
            yield Measurement(
                {"omega": omega, "delta": delta},
                {
                    "similarity": _off(found.similarity),
                    "accuracy": found.stitched,
                    "similarity within": float(np.mean(within)),
                    "condition": float(np.mean([np.mean(one.conditions_) for one in own])),
                    "anchors": float(np.mean([len(part) for one in own for part in one.lists_])),
                },
            )


def _methods(data: str) -> dict[str, Any]:
    from transship.verbs.translate import InverseRelativeProjection, KernelRidge, Procrustes, Ridge

    omega, delta = SETTINGS.get(data, DEFAULT)
    return {
        "IRP (paper)": InverseRelativeProjection(delta=delta, subspaces=omega, n_anchors=None),
        "IRP (guarded)": InverseRelativeProjection(delta=delta, subspaces=omega),
        "IRP (completed)": InverseRelativeProjection(delta=delta, subspaces=omega, completion=True),
        "IRP (Tikhonov)": InverseRelativeProjection(regularize=1.0),
        "procrustes": Procrustes(),
        "ridge": Ridge(),
        "kernel": KernelRidge(inverse=False),
    }


def _encoded(case: Case, context: Context) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], Any]:
    """Return anchors, heads, test rows per encoder, and the test labels."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    name, options = str(case["data"]), context.options
    make = _image_features if name in IMAGES else _text_features
    features, labels, is_test = make(name, context)
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


def _text_features(name: str, context: Context) -> tuple[dict[str, Any], Any, Any]:
    import numpy as np

    from transship.data import load
    from transship.suites._embeddings import vectors

    data = load(name, "text")
    assert data.splits is not None
    assert data.labels is not None
    is_test = np.asarray(data.splits) == "test"
    rng = np.random.default_rng(0)
    kept = np.sort(
        np.concatenate(
            [
                rng.permutation(np.flatnonzero(~is_test))[: context.options["train"]],
                rng.permutation(np.flatnonzero(is_test))[: context.options["test"]],
            ]
        )
    )
    texts = [str(data.inputs[row]) for row in kept]
    features = {
        model: vectors(context, model, name, texts, "document") for model in context.options["encoders"]
    }
    return features, np.asarray(data.labels)[kept], is_test[kept]


def _image_features(name: str, context: Context) -> tuple[dict[str, Any], Any, Any]:
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


def _cosines(a: Any, b: Any) -> Any:
    from transship.verbs.translate.quality import unit_rows

    return (unit_rows(a) * unit_rows(b)).sum(1)


def _off(values: Any) -> float | None:
    """Return the mean over pairs of different encoders that have a value."""
    import numpy as np

    kept = values[~np.eye(len(values), dtype=bool)]
    kept = kept[np.isfinite(kept)]
    return float(kept.mean()) if len(kept) else None


_ROWS = tuple(
    Row(name, {"method": name})
    for name in (
        "IRP (paper)",
        "IRP (guarded)",
        "IRP (completed)",
        "IRP (Tikhonov)",
        "procrustes",
        "ridge",
        "kernel",
        "absolute",
        "non-stitch",
    )
)
_DATA = ("digits", "mnist", "trec_questions")
_SETTING = (
    "the paper has five large pretrained vision encoders and four language models; we have small networks "
    "trained here for images, of which two share a width, and the sentence encoders at hand for text"
)

suite = Suite(
    title="Zero-shot stitching through the relative space",
    summary=(
        "A head trained on one encoder is used on another, translated by a map that was fitted on anchors "
        "only. All ordered pairs of encoders; absolute uses the head without translation, non-stitch on its "
        "own encoder. IRP (paper) leaves the number of anchors to δ; guarded and completed keep it clear of "
        "the width of the space, where the inverse is at its worst."
    ),
    paper=Paper(
        "Latent Space Translation via Inverse Relative Projection",
        authors="Maiorca, Moschella, Fumero, Locatello and Rodolà",
        where="Table 2, Figures 3 and 6",
    ),
    claims=(
        Claim(
            text="Stitching by IRP keeps most of the accuracy: at most 0.15 is lost on average.",
            quantity=cell("accuracy", method="non-stitch") - cell("accuracy", method="IRP (paper)"),
            at_most=0.15,
            source="Table 2",
        ),
        Claim(
            text="Without translation a head is close to guessing: IRP gains at least 0.3.",
            quantity=cell("accuracy", method="IRP (paper)") - cell("accuracy", method="absolute"),
            at_least=0.3,
            source="Table 2",
        ),
        Claim(
            text="A direct map (ridge) stitches at least as well as IRP.",
            quantity=cell("accuracy", method="ridge") - cell("accuracy", method="IRP (paper)"),
            at_least=0.0,
            source="ours",
        ),
        Claim(
            text="Many subspaces make up for hard pruning: at δ = 0.8, ω = 16 is more similar than ω = 1.",
            quantity=cell("similarity", part="sensitivity", omega=16, delta=0.8)
            - cell("similarity", part="sensitivity", omega=1, delta=0.8),
            at_least=0.0,
            source="Section 4.1, Figure 3",
        ),
        Claim(
            text="Pruning lowers the condition number: δ = 0.8 has a lower one than δ = 0.4.",
            quantity=cell("condition", part="sensitivity", omega=16, delta=0.4)
            - cell("condition", part="sensitivity", omega=16, delta=0.8),
            at_least=0.0,
            source="Figures 3 and 6",
        ),
    ),
    scales={
        "quick": Scale(
            seeds=3,
            minutes=4,
            options={
                "data": list(_DATA),
                "sensitivity": "trec_questions",
                "encoders": ["minilm-l3", "minilm-l6", "bge-small"],
                "anchors": 768,
                "train": 2000,
                "test": 500,
                "images": 4000,
                "epochs": 6,
            },
        ),
        "full": Scale(
            seeds=5,
            minutes=60,
            options={
                "data": [*IMAGES, "trec_questions", "wordnet_supersense", "sms_spam"],
                "sensitivity": "trec_questions",
                "encoders": ["minilm-l3", "minilm-l6", "bge-small", "granite-small", "mpnet-base"],
                "anchors": 1000,
                "train": 5000,
                "test": 2000,
                "images": 20000,
                "epochs": 8,
            },
            needs=(
                Need("data", "fashion_mnist", "get-data", "MIT"),
                Need("data", "sms_spam", "get-data", "CC BY 4.0"),
                Need("data", "wordnet_supersense-train", "get-data", "WordNet licence"),
                Need("model", "granite-small", "get-models", "Apache-2.0"),
                Need("model", "mpnet-base", "get-models", "Apache-2.0"),
            ),
        ),
    },
    cases=cases,
    run=run,
    tables=(
        Table(
            title="Accuracy over all ordered pairs of encoders",
            rows=_ROWS,
            columns=tuple(Column(name, cell("accuracy", part="stitch", data=name)) for name in _DATA),
            paper={
                ("IRP (paper)", "mnist"): 0.88,
                ("absolute", "mnist"): 0.10,
                ("non-stitch", "mnist"): 0.97,
                ("IRP (paper)", "trec_questions"): 0.73,
                ("absolute", "trec_questions"): 0.22,
                ("non-stitch", "trec_questions"): 0.87,
            },
            paper_source="Table 2",
            setting=_SETTING,
        ),
        Table(
            title="Sensitivity to δ with 16 subspaces",
            rows=tuple(Row(f"δ = {delta}", {"delta": delta}) for delta in DELTAS),
            columns=tuple(
                Column(name, cell(metric, part="sensitivity", omega=16))
                for name, metric in (
                    ("similarity between spaces", "similarity"),
                    ("similarity within a space", "similarity within"),
                    ("accuracy", "accuracy"),
                    ("condition number", "condition"),
                    ("anchors kept", "anchors"),
                )
            ),
        ),
    ),
    curves=(
        Curve(
            title="Reconstruction similarity between spaces",
            x="delta",
            quantity=cell("similarity", part="sensitivity"),
            lines=tuple(Row(f"ω = {omega}", {"omega": omega}) for omega in OMEGAS),
            x_title="δ",
            y_title="cosine",
        ),
        Curve(
            title="Accuracy of stitched heads",
            x="delta",
            quantity=cell("accuracy", part="sensitivity"),
            lines=tuple(Row(f"ω = {omega}", {"omega": omega}) for omega in OMEGAS),
            x_title="δ",
            y_title="accuracy",
        ),
    ),
    needs=(
        Need("data", "mnist", "get-data"),
        Need("data", "trec_questions", "get-data"),
        Need("model", "minilm-l3", "get-models", "Apache-2.0"),
        Need("model", "minilm-l6", "get-models", "Apache-2.0"),
        Need("model", "bge-small", "get-models", "MIT"),
    ),
)
