"""A fit from raw rows to an adapted model: check, open the source, stage 1, stage 2."""

import dataclasses
import hashlib
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from transship import parallel
from transship.data import find_model
from transship.errors import OptionError, TransshipWarning
from transship.numerics import derive_seed
from transship.progress import Progress
from transship.registry import build_method
from transship.verbs.adapt.adapted import Adapted
from transship.verbs.adapt.advice import advice
from transship.verbs.adapt.backbone import Backbone, open_backbone
from transship.verbs.adapt.base import Base, baselines, fit_base
from transship.verbs.adapt.bench import Bench, Rows
from transship.verbs.adapt.embedders import shape_for
from transship.verbs.adapt.heads import HeadShape, TransportHead, silence
from transship.verbs.adapt.inputs import Inputs
from transship.verbs.adapt.lora import add_lora, merge_lora
from transship.verbs.adapt.losses import find_loss, soft_table, transition
from transship.verbs.adapt.measure import COLLAPSED
from transship.verbs.adapt.metrics import default_metric, find_metric
from transship.verbs.adapt.network import Network, Part, new_embedder
from transship.verbs.adapt.protocol import AdaptMethod
from transship.verbs.adapt.raw import RawResult
from transship.verbs.adapt.session import Session
from transship.verbs.adapt.settings import Settings
from transship.verbs.adapt.source import Source, open_source
from transship.verbs.adapt.splitting import Split, split_rows
from transship.verbs.adapt.targets import Targets
from transship.verbs.adapt.training import Budget, Trainer

Array = NDArray[Any]


def adapt(
    X: Any,  # noqa: N803
    y: Any,
    settings: Settings,
    *,
    compare: bool = False,
    seen: Any = None,
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[Adapted, Split]:
    """Fit on raw rows; everything that can be wrong with them is said before anything is trained.

    `compare` runs the raw baselines on the validation rows first; `seen` takes (what, done, total) as the
    work goes on, `tell` lines for the user.
    """
    settings.checked()
    method: AdaptMethod = build_method("adapt", settings.method, settings.method_options)
    split = split_rows(X, y, settings)
    inputs = Inputs.fit(split.inputs, kind=settings.kind, missing=settings.missing)
    plane = len(inputs.size)
    targets = Targets.fit(split.targets, task=settings.task, plane=plane, seed=settings.seed)
    metric = find_metric(settings.metric, targets.task) if settings.metric else default_metric(targets.task)
    loss = find_loss(settings.loss, targets.task)
    _check_predictor(settings, targets, method)
    train = _rows(inputs, targets, split.inputs, split.targets)
    held = _rows(inputs, targets, split.held_inputs, split.held_targets)
    base, raw, train, held = _with_base(settings, inputs, targets, split, metric.name, train, held, compare)
    for one in raw:
        tell(f"raw baseline {one.name}: validation {metric.name} {one.validation:.4f} in {one.seconds:.1f} s")
    backbone = _open(settings)
    shape = shape_for(
        backbone.theta,
        inputs.size,
        inputs.channels,
        tokens=settings.tokens,
        patch=settings.patch,
        stem=settings.stem,
    )
    watch = _watcher(settings, seen)
    started = time.process_time()
    source = _source(settings, method, backbone, watch)
    seconds = {"proxy": time.process_time() - started}
    accelerator = _accelerator(settings)
    head_shape = _head_shape(backbone, shape, targets, settings, source)
    network = _network(backbone, shape, head_shape, method, settings.seed).to(accelerator.device)
    scale = tuple(torch.from_numpy(part).to(accelerator.device) for part in (targets.mean, targets.std))
    bench = Bench(
        network,
        train,
        held,
        targets.code_count,
        loss,
        (scale[0], scale[1]),
        backbone,
        source,
        settings.seed,
        accelerator.device,
    )
    data_hash = _hash(split)
    key = _key(settings, data_hash, backbone)
    work = None if settings.work is None else Path(settings.work)
    session = Session(work, key, every=settings.checkpoint_seconds)
    trainer = Trainer(bench, accelerator, session, log_every=settings.log_every, watch=watch)
    if base is not None:
        silence(network.head)
    adapted = Adapted(
        inputs, targets, network, head_shape, source, {"metric": metric.name}, backbone=backbone, base=base
    )
    truth = targets.truth(split.held_targets)

    started = time.process_time()
    phases = method.phases()
    trainer.stage_one(phases)
    _start_head(bench)
    seconds["stage1"] = time.process_time() - started

    started = time.process_time()
    if settings.lora_rank and "body" in method.trains:
        add_lora(network.body, settings.lora_rank, derive_seed(settings.seed, "lora"))
    budget = _budget(settings, len(train))
    trainer.stage_two(
        len(phases),
        budget,
        _learning(method, settings),
        method.objective(),
        lambda outputs: adapted.score(outputs.numpy(), truth),
    )
    merge_lora(network.body)
    seconds["stage2"] = time.process_time() - started
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    notes = [*trainer.notes, *_collapse(trainer.log)]
    for note in notes:
        warnings.warn(note, TransshipWarning, stacklevel=2)
    adapted.seconds, adapted.snapshots = seconds, trainer.snapshots
    adapted.about = _about(
        settings, backbone, adapted, trainer, split, metric.name, loss.name, data_hash, notes, budget
    )
    adapted.about["validation"] = adapted.evaluate(split.held_inputs, split.held_targets)
    adapted.about["baselines"] = [
        {"name": one.name, "validation": one.validation, "seconds": one.seconds} for one in raw
    ]
    adapted.about["advice"] = advice(
        adapted.about["validation"][metric.name],
        len(held),
        metric.name,
        adapted.about["baselines"],
        settings.method,
    )
    session.clear()
    return adapted, split


def _check_predictor(settings: Settings, targets: Targets, method: AdaptMethod) -> None:
    if settings.predictor == "transport" and targets.task != "classification":
        raise OptionError(
            f"label transport Λ has no meaning for {targets.task}", where="predictor", fix="choose linear"
        )
    if settings.predictor == "transport" and not method.needs_source:
        raise OptionError(
            f"label transport needs a source, and {settings.method} has none",
            where="predictor",
            fix="choose linear, or the method recraft or fa",
        )
    if settings.predictor != "linear" and settings.base != "none":
        raise OptionError(
            "a base goes with a linear head", where="base", fix="choose predictor linear, or base none"
        )
    if settings.predictor == "pooled" and targets.task != "dense":
        raise OptionError("the pooled head is for dense targets", where="predictor", fix="choose linear")


def _rows(inputs: Inputs, targets: Targets, values: Any, wanted: Any) -> Rows:
    return Rows(
        torch.from_numpy(inputs.transform(values)),
        torch.from_numpy(targets.encode(wanted)),
        torch.from_numpy(targets.label_codes(wanted)),
    )


def _with_base(
    settings: Settings,
    inputs: Inputs,
    targets: Targets,
    split: Split,
    metric: str,
    train: Rows,
    held: Rows,
    compare: bool,
) -> tuple[Base | None, list[RawResult], Rows, Rows]:
    """Return the base (or None), the raw baselines that were tried, and the rows with the base's outputs."""
    if settings.base == "none" and not compare:
        return None, [], train, held
    truth, held_truth = targets.truth(split.targets), targets.truth(split.held_targets)
    plain, plain_held, tokens = train.inputs.numpy(), held.inputs.numpy(), inputs.kind == "tokens"
    found: list[RawResult] = []
    name = settings.base
    if name == "auto" or compare:
        found = baselines(
            plain, truth, plain_held, held_truth, targets, metric, seed=settings.seed, tokens=tokens
        )
    if name == "none":
        return None, found, train, held
    if name == "auto":
        name = found[0].name
    if name == "constant":  # nothing that is linear in the raw values helps
        return None, found, train, held
    base, offsets = fit_base(name, plain, truth, targets, seed=settings.seed, tokens=tokens)
    return (
        base,
        found,
        dataclasses.replace(train, base=torch.from_numpy(offsets)),
        dataclasses.replace(held, base=torch.from_numpy(base.outputs(plain_held))),
    )


def _open(settings: Settings) -> Backbone:
    reference = settings.backbone
    if isinstance(reference, str | Path):
        found = open_backbone(str(find_model(reference)), trust_remote_code=settings.trust_remote_code)
        found.loaded.name = str(reference)
        return found
    return open_backbone(reference)


def _source(
    settings: Settings, method: AdaptMethod, backbone: Backbone, watch: Callable[[str, int, int], None]
) -> Source | None:
    if not method.needs_source:
        return None
    cache = None if settings.cache is None else Path(settings.cache)
    return open_source(
        backbone,
        settings.proxy,
        items=settings.proxy_items,
        omega=settings.omega,
        seed=settings.seed,
        cache=cache,
        watch=lambda done, total: watch("proxy", done, total),
    )


def _head_shape(
    backbone: Backbone, shape: Any, targets: Targets, settings: Settings, source: Source | None
) -> HeadShape:
    grid = shape.grid
    for _ in range(len(getattr(backbone.loaded.config, "depths", None) or [0]) - 1):
        grid = (-(-grid[0] // 2), -(-grid[1] // 2))  # a Swin merges pairs of rows and columns between stages
    predictor: Any = settings.predictor  # `auto` was replaced before
    return HeadShape(
        predictor,
        backbone.width_out,
        targets.outputs,
        targets.size,
        grid,
        shape.prefix,
        source.classes if source is not None and settings.predictor == "transport" else 0,
    )


def _network(
    backbone: Backbone, shape: Any, head_shape: HeadShape, method: AdaptMethod, seed: int
) -> Network:
    embedder = new_embedder(shape, backbone.theta, derive_seed(seed, "embedder"))
    body = backbone.body() if method.pretrained else backbone.scratch_body(derive_seed(seed, "body"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "head"))
        head = head_shape.build()
    return Network(embedder, body, head)


def _start_head(bench: Bench) -> None:
    """Begin Λ from the table of stage 1."""
    head = bench.network.head
    if isinstance(head, TransportHead):
        source = bench.known
        made = bench.views(bench.train).source
        assert made is not None
        plan = transition(soft_table(made, bench.train.codes, bench.classes), 1e-2)
        head.start(source.weight, source.bias, plan)


def _learning(method: AdaptMethod, settings: Settings) -> frozenset[Part]:
    return method.trains - {"embedder"} if settings.freeze_embedder else method.trains


def batch_rows(asked: int | str, rows: int) -> int:
    """Return the rows of a micro-batch: as asked, or by the number of rows."""
    size = int(asked) if asked != "auto" else 16 if rows < 1500 else 32 if rows < 4000 else 64
    return min(size, rows)


def _budget(settings: Settings, rows: int) -> Budget:
    size = batch_rows(settings.batch_size, rows)
    epoch = max(1, rows // (size * settings.accumulation))
    passes = settings.epochs
    count = int(passes) if passes != "auto" else int(np.clip(round(400 / epoch), 8, 30))
    return Budget(
        settings.steps or count * epoch,
        size,
        settings.accumulation,
        settings.learning_rate,
        settings.embedder_factor,
        settings.weight_decay,
        settings.warmup,
        settings.clip,
        settings.patience,
        settings.select,
    )


def _accelerator(settings: Settings) -> Any:
    from accelerate import Accelerator  # type: ignore[import-untyped]

    if settings.device not in ("auto", "cpu", "cuda", "mps"):
        raise OptionError(f"there is no device '{settings.device}'", where="device", fix="choose auto or cpu")
    from accelerate.state import AcceleratorState  # type: ignore[import-untyped]

    # accelerate keeps one state per process, and a second fit may want another precision
    if AcceleratorState._shared_state and AcceleratorState().mixed_precision != settings.precision:
        AcceleratorState._reset_state(reset_partial_state=False)
    parallel.join()
    # of several processes accelerate finds a CPU's only when told that there is nothing else
    cpu = settings.device == "cpu" or not torch.accelerator.is_available()
    return Accelerator(cpu=cpu, mixed_precision=settings.precision)


def _watcher(settings: Settings, seen: Any) -> Callable[[str, int, int], None]:
    bars: dict[str, Progress] = {}

    def watch(what: str, done: int, total: int) -> None:
        if settings.verbose:
            bars.setdefault(what, Progress(what, total, unit="items" if what == "proxy" else "steps"))(done)
        if seen is not None:
            seen(what, done, total)

    return watch


def _hash(split: Split) -> str:
    digest = hashlib.sha256(b"transship-adapt-1")
    for part in (split.inputs, split.targets, split.held_inputs, split.held_targets):
        array = np.ascontiguousarray(part)
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(array.astype("U").tobytes() if array.dtype.kind in "OU" else array.tobytes())
    return digest.hexdigest()


def _key(settings: Settings, data_hash: str, backbone: Backbone) -> str:
    parts = {"settings": settings.recorded(), "data": data_hash, "backbone": backbone.fingerprint}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _collapse(log: list[dict[str, Any]]) -> list[str]:
    if log and log[-1]["spread"] < COLLAPSED:
        return [
            f"stage 1: target features spread only {log[-1]['spread']:.2f} times as far as the source's: "
            "a small W₁ is partly a collapse onto the source's centre"
        ]
    return []


def _about(
    settings: Settings,
    backbone: Backbone,
    adapted: Adapted,
    trainer: Trainer,
    split: Split,
    metric: str,
    loss: str,
    data_hash: str,
    notes: list[str],
    budget: Budget,
) -> dict[str, Any]:
    return {
        "metric": metric,
        "loss": loss,
        "task": adapted.targets.task,
        "backbone": backbone.name,
        "backbone_hash": backbone.fingerprint,
        "method": settings.method,
        "settings": settings.recorded(),
        "budget": vars(budget),
        "rows": {"train": len(split.inputs), "validation": len(split.held_inputs)},
        "data": data_hash,
        "stage1": trainer.log,
        "history": trainer.history,
        "notes": notes,
        "seed": settings.seed,
    }


__all__ = ["adapt"]
