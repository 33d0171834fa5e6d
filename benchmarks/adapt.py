"""Speed of adapt: FA's Sinkhorn beside the embedder, stage 1 beside naive fine-tuning, and a whole fit.

Takes five minutes on two cores, most of it the whole fit. Ratios are taken within one run, in CPU seconds,
except that of the whole fit.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import torch

from transship.verbs.adapt.model.network import pooled
from transship.verbs.adapt.train.losses import SinkhornAlignment

STEPS = 40
ALLOWED = 600.0  # wall seconds of a whole fit on two cores


def run() -> list[dict[str, Any]]:
    """Return the three ratios."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step, stages, whole = fa(), stage1(), fit()
    beside = "the embedder, both ways"
    return [
        row(f"Sinkhorn / {beside}, ms a step of FA at 128 × 5000", step["sinkhorn"], step["embedder"], "< 1"),
        row(
            "stage 1 / 8 passes of nft on 5,000 series, CPU s",
            stages["stage 1"],
            stages["nft, 8 passes"],
            "<= 0.3",
        ),
        row("a whole fit on ECG5000 / 600 s, wall s", whole["wall seconds"], ALLOWED, "<= 1"),
        row("its CPU s", whole["CPU seconds"], None, None),
        row("its test error", whole["test error"], None, None),
    ]


def row(name: str, ours: float, peer: float | None, needed: str | None) -> dict[str, Any]:
    """Return one line of the table."""
    ratio = None if peer is None else ours / peer
    return {"name": name, "ours": ours, "peer": peer, "ratio": ratio, "needed": needed}


def fa(length: int = 140, rows: int = 128, items: int = 5000) -> dict[str, float]:
    """Return milliseconds per step: the embedder (both ways, and Adam), the distance matrix, Sinkhorn."""
    from transship.data import find_model
    from transship.verbs.adapt.model.backbone import open_backbone
    from transship.verbs.adapt.model.embedder import shape_for
    from transship.verbs.adapt.model.network import new_embedder

    theta = open_backbone(str(find_model("minilm-l6"))).theta
    torch.manual_seed(0)
    source = theta.positions.mean(0) + 0.14 * torch.randn(items, theta.width)  # type: ignore[union-attr]
    embedder = new_embedder(shape_for(theta, (length,), 1, tokens=32), theta, 0)
    optimiser = torch.optim.Adam(embedder.parameters(), 3e-3)
    inputs, alignment = torch.randn(rows, 1, length), SinkhornAlignment(source)
    spent = {"embedder": 0.0, "distances": 0.0, "sinkhorn": 0.0}
    distances = alignment._distances

    def timed(features: torch.Tensor) -> torch.Tensor:
        start = time.process_time()
        output = distances(features)
        spent["distances"] += time.process_time() - start
        return output

    alignment._distances = timed  # type: ignore[method-assign]
    for step in range(STEPS + 5):
        if step == 5:  # warm
            spent = dict.fromkeys(spent, 0.0)
        start = time.process_time()
        output = pooled(embedder(inputs))
        spent["embedder"] += time.process_time() - start
        features = output.detach().requires_grad_(True)
        before, start = spent["distances"], time.process_time()
        value = alignment(features)
        spent["sinkhorn"] += time.process_time() - start - (spent["distances"] - before)
        start = time.process_time()
        (slope,) = torch.autograd.grad(value, features)
        spent["distances"] += time.process_time() - start
        start = time.process_time()
        output.backward(slope)
        optimiser.step()
        optimiser.zero_grad()
        spent["embedder"] += time.process_time() - start
    return {name: 1000 * value / STEPS for name, value in spent.items()}


def stage1(rows: int = 5000, short: int = 4, long: int = 12) -> dict[str, float]:
    """Return CPU seconds of stage 1 with its logs, as `adapt fit` has it, and of 8 passes of nft.

    A step of nft is the difference of two fits of other lengths: both begin and validate once.
    """
    from transship import data
    from transship.verbs.adapt import Recraft

    train = data.load("ucr_ElectricDevices").split("train")
    order = np.random.default_rng(0).permutation(len(train))[:rows]
    inputs, labels = np.asarray(train.inputs, np.float32)[order], np.asarray(train.labels)[order]
    share = 0.1
    common = {"backbone": "minilm-l6", "tokens": 16, "validation": share, "device": "cpu"}
    common |= {"batch_size": 64, "select": False}
    model = Recraft(**common, method="recraft", steps=1).fit(inputs, labels)
    seconds = [
        Recraft(**common, method="nft", steps=steps).fit(inputs, labels).seconds_["stage2"]
        for steps in (short, long)
    ]
    passes = 8 * (len(inputs) * (1 - share) // 64)
    return {
        "stage 1": model.seconds_["stage1"],
        "nft, 8 passes": (seconds[1] - seconds[0]) / (long - short) * passes,
    }


def fit() -> dict[str, float]:
    """Return CPU and wall seconds of one whole fit on ECG5000, and its test error."""
    from transship import data
    from transship.verbs.adapt import Recraft

    content = data.load("ucr_ECG5000")
    train, test = content.split("train"), content.split("test")
    cpu, wall = time.process_time(), time.perf_counter()
    model = Recraft("minilm-l6", method="recraft", device="cpu").fit(
        np.asarray(train.inputs), train.labels, compare=True
    )
    spent = {"CPU seconds": time.process_time() - cpu, "wall seconds": time.perf_counter() - wall}
    return (
        spent
        | {"test error": model.evaluate(np.asarray(test.inputs), test.labels)["error"]}
        | dict(model.seconds_)
    )
