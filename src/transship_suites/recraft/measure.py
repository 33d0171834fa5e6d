"""One method on one task: what it scores on test rows, how long it took, and where stage 1 ended."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from transship_suites.materials.series import Array, Task
from transship_suites.runner import Measurement

# `nft*` is nft for as long as both stages of recraft take together
EQUAL_TIME = "nft*"
# `hybrid` is recraft on the best raw model, kept where it gains on validation rows: as `adapt fit` does, but
# with the stage 1, the tokens and the epochs of the suite
HYBRID = "hybrid"
# `default` is the shortest command, `transship adapt fit --backbone … --train … OUT`: nothing is told
DEFAULT = "default"
# what the other methods are told, so that they differ in their stage 1 alone: the last weights, since every
# one has the same budget, and one way of stage 2. A row of the log costs three steps; tables show where stage
# 1 begins and ends
TOLD: Mapping[str, Any] = {
    "select": False,
    "predictor": "linear",
    "freeze_embedder": False,
    "log_every": 1000,
}
RAW = {
    "classification": ("constant", "logistic", "ridge", "rocket"),
    "dense": ("constant", "ridge", "rocket"),
}


def adapted(
    task: Task,
    method: str,
    *,
    seed: int,
    backbone: Any,
    settings: Mapping[str, Any],
    longer: float = 1.0,
    device: str = "cpu",
) -> dict[str, float]:
    """Fit one method and return its metrics on the test rows.

    Args:
        task: the rows.
        method: a method of `adapt`, `nft*`, `hybrid` or `default`.
        seed: of everything drawn.
        backbone: its name, folder or the model itself.
        settings: further parameters of the estimator, which `default` does not get; `epochs`, or
            `steps` where it is told, is the budget of stage 2.
        longer: how many times that budget `nft*` has.
        device: where it trains: cpu, or accelerate's choice.
    """
    from transship.errors import TransshipWarning
    from transship.verbs.adapt import Recraft

    model = Recraft(
        backbone=_opened(backbone) if isinstance(backbone, str) else backbone,
        task=task.kind,
        validation=task.validation,
        seed=seed,
        device=device,
        **parameters(task, method, settings, longer=longer),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TransshipWarning)  # collapse is one of the numbers here
        model.fit(*task.train)
    if task.kind == "classification":  # one pass over the test rows gives both
        scores = model.predict_proba(task.test[0])
        figures = scored(task, np.asarray(model.classes_)[scores.argmax(1)], scores)
    elif task.kind == "multilabel":
        scores = model.predict_proba(task.test[0])
        figures = scored(task, scores > 0.5, scores)
    else:
        figures = scored(task, model.predict(task.test[0]), None)
    for stage in ("stage1", "stage2"):
        figures[f"{stage}_seconds"] = float(model.seconds_[stage])
    figures["seconds"] = figures["stage1_seconds"] + figures["stage2_seconds"]
    if len(model.stage1_) > 1:
        figures |= stage_one(model.stage1_)
    if model.history_[0]["step"] == 0:  # on a raw model, which validation may keep alone
        best = min(model.history_, key=lambda row: (row["validation"], row["validation_loss"]))
        figures["raw_alone"] = float(best["step"] == 0)
    return figures


def parameters(
    task: Task, method: str, settings: Mapping[str, Any], *, longer: float = 1.0
) -> dict[str, Any]:
    """Return what a row tells the estimator; a suite's settings stand above those of the task."""
    from transship.verbs.adapt.settings import COMMAND

    if method == DEFAULT:
        return dict(COMMAND)
    asked = {**TOLD, **task.settings, **settings, "method": method}
    if method == EQUAL_TIME:
        budget = "steps" if asked.get("steps") else "epochs"
        asked |= {"method": "nft", budget: round(longer * asked[budget])}
    if method == HYBRID:
        asked |= {"method": "recraft", "base": "auto", "select": True}
    return asked


@cache
def _opened(backbone: str) -> Any:
    """Return the backbone by name, read once per process; fits copy what they train."""
    from transship.data import find_model
    from transship.verbs.adapt.model.backbone import open_backbone

    found = open_backbone(str(find_model(backbone)))
    found.loaded.name = backbone
    return found


def stage_one(log: list[dict[str, Any]]) -> dict[str, float]:
    """Return where stage 1 began and ended, on the whole training set."""
    first, last = log[0], log[-1]
    return {
        "w1_start": first["w1"],
        "w1": last["w1"],
        "w1_source": last["w1_source"],
        "w1_ratio": last["w1"] / last["w1_source"],
        "spread": last["spread"],
        "fld_start": first["fld"],
        "fld": last["fld"],
        "fld_drop": (first["fld"] - last["fld"]) / last["entropy_target"],
        "held_out_fld_start": first["held_out_fld"],
        "held_out_fld": last["held_out_fld"],
        "entropy_z": last["entropy_z"],
        "entropy_target": last["entropy_target"],
    }


def raw(task: Task, *, seed: int, kernels: int | None = None) -> Iterator[Measurement]:
    """Yield the raw baselines, fitted on the training rows alone, as rows of the table."""
    import time

    from transship.verbs.adapt.raw.baselines import fit_raw

    for name in RAW[task.kind]:
        start = time.process_time()
        model = fit_raw(name, *task.train, task=task.kind, seed=seed, kernels=kernels, classes=task.classes)
        figures = scored(task, model.predict(task.test[0]), model.scores(task.test[0]))
        seconds = time.process_time() - start
        yield Measurement({"method": name}, {**figures, "seconds": seconds, "stage1_seconds": 0.0})


def scored(task: Task, predicted: Array, scores: Array | None) -> dict[str, float]:
    """Return the test figures by the names that tables use; shares as shares, errors as errors."""
    from transship.verbs.adapt.rows.metrics import evaluate

    truth = task.test[1]
    if task.kind == "classification":
        found = evaluate("classification", truth, np.asarray(predicted).astype(np.int64), scores)
        return {
            "accuracy": 1.0 - found["error"],
            "error": found["error"],
            "cross_entropy": found["cross-entropy"],
            "f1_error": found["1-f1"],
        }
    if task.kind == "multilabel":
        found = evaluate("multilabel", truth, np.asarray(predicted).astype(np.int64), scores)
        return {"auroc_error": found["1-auroc"], "map_error": found["1-map"]}
    found = evaluate("dense", truth, np.asarray(predicted).reshape(truth.shape))
    return {"nrmse": found["nrmse"], "relative_l2": found["relative-l2"], "mse": found["mse"]}
