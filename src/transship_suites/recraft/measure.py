"""One method on one task: what it scores on test rows, how long it took, and where stage 1 ended."""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch

from transship.errors import TransshipWarning
from transship.numerics import chunks
from transship.types import Array
from transship.verbs.adapt import Recraft
from transship.verbs.adapt.model.backbone import open_backbone
from transship.verbs.adapt.raw.fit import fit_raw
from transship.verbs.adapt.rows.metrics import evaluate
from transship.verbs.adapt.settings import COMMAND
from transship_suites.materials.grids import base, grid_task, proxy
from transship_suites.materials.symbols import symbol_task
from transship_suites.materials.targets import Target, series_task
from transship_suites.recraft import worth
from transship_suites.recraft.declared import DEFAULT, EQUAL_TIME, HYBRID
from transship_suites.runner import Case, Context, Measurement

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
    "symbols": ("constant", "logistic", "ridge", "ngrams", "rocket", "forest"),
}


def adapted(
    task: Target,
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
    model = Recraft(
        backbone=_opened(backbone) if isinstance(backbone, str) else backbone,
        task=task.kind,  # type: ignore[arg-type]
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
    task: Target, method: str, settings: Mapping[str, Any], *, longer: float = 1.0
) -> dict[str, Any]:
    """Return what a row tells the estimator; a suite's settings stand above those of the task."""
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
    return open_backbone(backbone)


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


def raw(task: Target, *, seed: int, kernels: int | None = None) -> Iterator[Measurement]:
    """Yield the raw baselines, fitted on the training rows alone, as rows of the table."""
    tokens = task.settings.get("kind") == "tokens"
    options: dict[str, Any] = {"seed": seed, "kernels": kernels, "classes": task.classes, "tokens": tokens}
    for name in RAW["symbols" if tokens else task.kind]:
        start = time.process_time()
        model = fit_raw(name, *task.train, task=task.kind, **options)
        figures = scored(task, model.predict(task.test[0]), model.scores(task.test[0]))
        seconds = time.process_time() - start
        yield Measurement({"method": name}, {**figures, "seconds": seconds, "stage1_seconds": 0.0})


def scored(task: Target, predicted: Array, scores: Array | None) -> dict[str, float]:
    """Return the test figures by the names that tables use; shares as shares, errors as errors."""
    truth = task.test[1]
    if task.kind == "dense":
        errors = evaluate("dense", truth, np.asarray(predicted).reshape(truth.shape))
        return {"nrmse": errors["nrmse"], "relative_l2": errors["relative-l2"], "mse": errors["mse"]}
    errors = evaluate(task.kind, truth, np.asarray(predicted).astype(np.int64), scores)
    if task.kind == "multilabel":
        return {"auroc_error": errors["1-auroc"], "map_error": errors["1-map"]}
    return {
        "accuracy": 1.0 - errors["error"],
        "error": errors["error"],
        "cross_entropy": errors["cross-entropy"],
        "f1_error": errors["1-f1"],
    }


def measured_series(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure one part on one series: all parts of a seed share rows and first weights.

    The seeds of a variant may take its tasks in turn.
    """
    name, part = str(case["task"]), str(case["part"])
    own, seeds = context.options["variants"][case["variant"]], context.options["seeds"]
    if own.get("in_turn") and own["tasks"][case.seed % seeds % len(own["tasks"])] != name:
        return
    size = worth.size_of(own, part)
    task = series_task(name, rows=size, test=own["test"], seed=context.seed("rows", name) % 2**32)
    sized = {"rows": size} if size is not None else {}
    for row in measured(task, part, context, backbone=case["backbone"], options=own):
        yield Measurement({**row.factors, **sized}, row.metrics)


def measured_grid(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure one part on one task of grids: all parts of a seed share rows and first weights."""
    name, part = str(case["task"]), str(case["part"])
    own = context.options["variants"][case["variant"]]
    task = grid_task(name, rows=own["rows"], test=own["test"], seed=context.seed("rows", name) % 2**32)
    settings, backbone = dict(own["settings"]), None
    if part not in ("raw", "fno"):
        backbone = base(context, int(context.options["pretrain"]))
        settings["proxy"] = proxy()
    yield from measured(task, part, context, backbone=backbone, options={**own, "settings": settings})


def measured_symbols(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure one part on one task of symbols: all parts of a seed share rows and first weights."""
    name, part = str(case["task"]), str(case["part"])
    own = context.options["variants"][case["variant"]]
    task = symbol_task(name, rows=own["rows"], test=own["test"], seed=context.seed("rows", name) % 2**32)
    yield from measured(task, part, context, backbone=case["backbone"], options=own)


def measured(
    task: Target, part: str, context: Context, *, backbone: Any, options: Mapping[str, Any]
) -> Iterator[Measurement]:
    """Yield what a part measures: one method, the raw models, or the Fourier operator.

    `options` hold `settings` of the estimator, `methods` (their own parameters by name), `longer` for `nft*`,
    and `changes`: parts that are a method with other settings.
    """
    seed = context.seed("fit", task.name) % 2**31
    change = options.get("changes", {}).get(part, {})
    method = str(change.get("method", part))
    if method == "raw":
        yield from raw(task, seed=seed)
    elif method == "fno":
        reason = missing()
        if reason is not None:
            context.attach("skipped", reason)
            return
        yield Measurement({"method": "fno"}, fourier_operator(task, seed=seed, **options.get("fno", {})))
    else:
        own = options.get("methods", {}).get(method)
        settings = {**options["settings"], **({"method_options": own} if own else {})}
        settings |= change.get("settings", {})
        longer = float(options.get("longer", 1.0))
        metrics = adapted(task, method, seed=seed, backbone=backbone, settings=settings, longer=longer)
        yield Measurement({"method": part}, metrics)


def missing() -> str | None:
    """Return why the operator cannot run here; None where it can."""
    if importlib.util.find_spec("neuralop") is None:
        return "neuraloperator is not installed (pip install 'transship[pde]')"
    try:
        from neuralop.models import FNO  # noqa: F401
    except ImportError as error:  # it imports several libraries of its own
        return f"neuraloperator does not import: {error}"
    return None


def fourier_operator(
    task: Target, *, seed: int, epochs: int = 60, width: int = 24, modes: int = 8, batch: int = 16
) -> dict[str, float]:
    """Train an FNO on the training rows (relative ℓ2, AdamW, one cycle) and return its test figures.

    Inputs and outputs are standardised by the training rows; the last weights are kept. Channels and modes
    are small: it trains in about the time that the adapted models have.
    """
    from neuralop.models import FNO  # an extra

    start = time.process_time()
    inputs, outputs = (torch.as_tensor(np.asarray(part, np.float32)) for part in task.train)
    shaped = outputs.reshape(len(outputs), -1, *inputs.shape[2:])
    mean_in, mean_out = inputs.mean(), shaped.mean()
    scale_in, scale_out = inputs.std().clamp_min(1e-6), shaped.std().clamp_min(1e-6)
    axes = inputs.ndim - 2
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = FNO(
            n_modes=(min(modes, inputs.shape[-1] // 2),) * axes,
            in_channels=inputs.shape[1],
            out_channels=shaped.shape[1],
            hidden_channels=width,
            n_layers=4,
        )
    x, y = (inputs - mean_in) / scale_in, (shaped - mean_out) / scale_out
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-4)
    steps = epochs * max(1, len(x) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=4e-3, total_steps=steps, pct_start=0.2)
    order = torch.randperm(len(x), generator=generator)
    for step in range(steps):
        place = step % max(1, len(x) // batch)
        if place == 0:
            order = torch.randperm(len(x), generator=generator)
        rows = order[place * batch : (place + 1) * batch]
        wrong = (model(x[rows]) - y[rows]).flatten(1).norm(dim=1)
        loss = (wrong * scale_out / shaped[rows].flatten(1).norm(dim=1).clamp_min(1e-6)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    with torch.inference_mode():
        held = (torch.as_tensor(np.asarray(task.test[0], np.float32)) - mean_in) / scale_in
        predicted = torch.cat([model(held[some]) for some in chunks(len(held), 64)]) * scale_out + mean_out
    figures = scored(task, predicted.numpy(), None)
    return {**figures, "seconds": time.process_time() - start, "stage1_seconds": 0.0}
