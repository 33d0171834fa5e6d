"""A fit from raw rows to an adapted model, in three steps: plan, prepare, apply."""

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from transship import parallel
from transship.errors import TransshipWarning
from transship.numerics import derive_seed
from transship.progress import Bars, Progress, quiet
from transship.verbs.adapt.adapted import ADAPTED, Adapted
from transship.verbs.adapt.model.backbone import Backbone
from transship.verbs.adapt.model.embedder import Shape
from transship.verbs.adapt.model.network import AdaptedNetwork, HeadShape, new_embedder, silence
from transship.verbs.adapt.model.source import SourceSide, open_source
from transship.verbs.adapt.plan import AdaptPlan, make_plan
from transship.verbs.adapt.raw.fit import RawResult, fit_base, raw_baselines
from transship.verbs.adapt.raw.models import BaseModel
from transship.verbs.adapt.rows.metrics import paired_test
from transship.verbs.adapt.rows.reading import Split
from transship.verbs.adapt.settings import Settings
from transship.verbs.adapt.train.loop import Checkpoints, Runtime
from transship.verbs.adapt.train.problem import AdaptMethod, LearningProblem, LearningRows
from transship.verbs.adapt.train.stages import COLLAPSED, stage_one, stage_two

SURE = 0.05  # a difference that chance makes less often than this is advice


@dataclass(frozen=True, eq=False)
class AdaptPrepared:
    """What is computed before anything is trained.

    Attributes:
        train: the rows to train on, with the base's outputs where there is a base.
        held: those held out.
        raw: the raw baselines on the rows held out, best first; empty when nobody asked.
        base: the raw model that the network corrects, or None.
        source: the source's features and head; None for methods that need none.
        seconds: CPU seconds by what took them.
    """

    train: LearningRows
    held: LearningRows
    raw: tuple[RawResult, ...]
    base: BaseModel | None
    source: SourceSide | None
    seconds: Mapping[str, float]


def adapt(
    X: Any,  # noqa: N803
    y: Any,
    settings: Settings,
    *,
    compare: bool = False,
    seen: Progress | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[Adapted, Split]:
    """Fit on raw rows; everything that can be wrong with them is said before anything is trained.

    `compare` runs the raw baselines on the validation rows first; `seen` takes (what, done, total) as the
    work goes on, `tell` lines for the user.
    """
    plan, watch = make_plan(X, y, settings), _watcher(settings, seen)
    prepared = prepare(plan, compare=compare, watch=watch, tell=tell)
    return apply(plan, prepared, watch), plan.split


def prepare(
    plan: AdaptPlan,
    *,
    compare: bool = False,
    watch: Progress = quiet,
    tell: Callable[[str], None] = lambda line: None,
) -> AdaptPrepared:
    """Return the raw models and the source's side, which is kept on disk."""
    settings, targets, train, held = plan.settings, plan.targets, plan.train, plan.held
    plain, plain_held = train.inputs.numpy(), held.inputs.numpy()
    truth, name = targets.truth(plan.split.targets), settings.base
    options: Any = {"seed": settings.seed, "tokens": plan.inputs.kind == "tokens"}
    raw: list[RawResult] = []
    if name == "auto" or compare:
        raw = raw_baselines(
            plain,
            truth,
            plain_held,
            plan.held_truth,
            task=targets.task,
            metric=plan.metric,
            **options,
        )
    chosen = raw[0].name if name == "auto" else name
    base: BaseModel | None = None
    if chosen not in ("none", "constant"):  # of constant: nothing that is linear in the raw values helps
        fitted = next((result.model for result in raw if result.name == chosen), None)
        base, offsets = fit_base(chosen, plain, truth, targets, fitted=fitted, **options)
        train = replace(train, base=torch.from_numpy(offsets))
        held = replace(held, base=torch.from_numpy(base.outputs(plain_held)))
    for result in raw:
        figure = f"validation {plan.metric.name} {result.validation:.4f}"
        tell(f"raw baseline {result.name}: {figure} in {result.seconds:.1f} s")
    start = time.process_time()
    source = _source(plan, watch)
    return AdaptPrepared(train, held, tuple(raw), base, source, {"proxy": time.process_time() - start})


def _source(plan: AdaptPlan, watch: Progress) -> SourceSide | None:
    if plan.proxy is None:
        return None
    settings = plan.settings
    return open_source(
        plan.backbone,
        plan.proxy,
        items=settings.proxy_items,
        omega=settings.omega,
        cache=None if settings.cache is None else Path(settings.cache),
        watch=lambda done, total: watch("proxy", done, total),
    )


def apply(plan: AdaptPlan, prepared: AdaptPrepared, watch: Progress = quiet) -> Adapted:
    """Train in two stages, from where a checkpoint stands; return the model with all that is known of it."""
    settings, accelerator = plan.settings, open_accelerator(plan.settings)
    head_shape = plan.head_shape()
    problem = _problem(plan, prepared, head_shape, accelerator.device)
    work = None if settings.work is None else Path(settings.work)
    checkpoints = Checkpoints(work, _key(plan), every=settings.checkpoint_seconds)
    state, runtime = checkpoints.resume(), Runtime(accelerator, checkpoints, watch)
    phases = [phase for phase in plan.method.phases() if phase.steps]
    clock = [time.process_time()]
    state = stage_one(runtime, problem, phases, state, log_every=settings.log_every)
    clock.append(time.process_time())
    if settings.predictor == "transport":
        head_shape = plan.head_shape(classes=problem.known.classes)
        head = _head(head_shape, settings.seed).to(problem.device)
        problem = replace(problem, network=problem.network.with_head(head))
    number = len(phases)
    state = stage_two(runtime, problem, plan.method, settings, plan.score, state, number=number)
    clock.append(time.process_time())
    seconds = {"stage1": clock[1] - clock[0], "stage2": clock[2] - clock[1]}
    problem.network.requires_grad_(False)
    if prepared.source is not None:
        state = state.with_snapshot(problem, "stage 2")
    notes = [*state.notes, *_collapse(state.log)]
    for note in notes:
        warnings.warn(note, TransshipWarning, stacklevel=3)
    records = {"stage1": list(state.log), "history": list(state.history), "notes": notes}
    adapted = Adapted(
        plan.inputs,
        plan.targets,
        problem.network,
        head_shape,
        prepared.source,
        _about(plan, prepared) | records,
        {**prepared.seconds, **seconds},
        plan.backbone,
        prepared.base,
        state.snapshots,
        raw={result.name: result.model for result in prepared.raw},
    )
    checkpoints.clear()
    return _judged(plan, prepared, adapted)


def _judged(plan: AdaptPlan, prepared: AdaptPrepared, adapted: Adapted) -> Adapted:
    """Return the model with its figures on the rows held out, and the advice that they give."""
    targets, truth, split = plan.targets, plan.held_truth, plan.split
    outputs = adapted.outputs(split.held_inputs)
    validation = adapted.measured(outputs, split.held_targets)
    sentence, advised = "", ADAPTED
    if prepared.raw:
        best, rows = prepared.raw[0], plan.held.inputs.numpy()
        own = targets.prediction(outputs), targets.scores(outputs)
        predicted, scores = best.model.answers(rows)
        raw = predicted.reshape(own[0].shape), scores
        chance = paired_test(plan.metric, truth, own, raw, seed=derive_seed(plan.settings.seed, "advice"))
        figure = validation[plan.metric.name]
        sentence = advice(figure, len(truth), plan, best, chance)
        advised = ADAPTED if chance < SURE and figure < best.validation else best.name
    judged = {"validation": validation, "advice": sentence, "advised": advised}
    return replace(adapted, about={**adapted.about, **judged})


def _about(plan: AdaptPlan, prepared: AdaptPrepared) -> dict[str, Any]:
    settings, split = plan.settings, plan.split
    raw = [
        {"name": result.name, "validation": result.validation, "seconds": result.seconds}
        for result in prepared.raw
    ]
    return {
        "metric": plan.metric.name,
        "loss": plan.loss.name,
        "task": plan.targets.task,
        "backbone": plan.backbone.name,
        "backbone_hash": plan.backbone.fingerprint,
        "method": settings.method,
        "settings": settings.recorded(),
        "budget": settings.budget(len(plan.train)),
        "rows": {"train": len(split.inputs), "validation": len(split.held_inputs)},
        "data": plan.data_hash,
        "seed": settings.seed,
        "baselines": raw,
    }


def _key(plan: AdaptPlan) -> str:
    """Return what names a fit: its checkpoints are gone on from by the same one only."""
    facts = {
        "settings": plan.settings.recorded(),
        "data": plan.data_hash,
        "backbone": plan.backbone.fingerprint,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _problem(
    plan: AdaptPlan, prepared: AdaptPrepared, head_shape: HeadShape, device: torch.device
) -> LearningProblem:
    """Return the network as it starts, with its rows."""
    network = new_network(plan.backbone, plan.shape, head_shape, plan.method, plan.settings.seed)
    network.embedder.look_at(plan.train.inputs)
    network.to(device)
    if prepared.base is not None:
        silence(network.head)
    mean, std = (torch.from_numpy(part).to(device) for part in (plan.targets.mean, plan.targets.std))
    return LearningProblem(
        network,
        prepared.train,
        prepared.held,
        plan.targets.code_count,
        plan.loss,
        (mean, std),
        plan.backbone,
        prepared.source,
        plan.settings.seed,
        device,
    )


def new_network(
    backbone: Backbone, shape: Shape, head_shape: HeadShape, method: AdaptMethod, seed: int
) -> AdaptedNetwork:
    """Return φ, body and head as they start: pretrained where they can be, or all of them random."""
    pretrained, drawn = method.pretrained, derive_seed(seed, "embedder")
    embedder = new_embedder(shape, backbone.theta, drawn, pretrained=pretrained)
    body = backbone.body() if pretrained else backbone.scratch_body(derive_seed(seed, "body"))
    return AdaptedNetwork(embedder, body, _head(head_shape, seed))


def _head(shape: HeadShape, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "head"))
        return shape.build()


def open_accelerator(settings: Settings) -> Any:
    """Return accelerate's handle on the device, the precision and the other processes."""
    # start-up: models that only predict need none
    from accelerate import Accelerator, PartialState  # type: ignore[import-untyped]
    from accelerate.state import AcceleratorState  # type: ignore[import-untyped]

    parallel.join()
    device = None if settings.device == "auto" else torch.device(settings.device)
    # accelerate keeps one state per process, and a second fit may want another precision or device
    AcceleratorState._reset_state(reset_partial_state=parallel.size() == 1)
    # of several processes accelerate finds a CPU's only when told that there is nothing else
    cpu = not torch.accelerator.is_available() if device is None else device.type == "cpu"
    if device is not None and parallel.size() == 1:
        PartialState(cpu=cpu).device = device  # it has no argument for one device of several
    return Accelerator(cpu=cpu, mixed_precision=settings.precision)


def _watcher(settings: Settings, seen: Progress | None) -> Progress:
    """Return who is told of progress: bars on standard error where asked for, and `seen`."""
    bars: Progress = Bars() if settings.verbose else quiet

    def watch(what: str, done: int, total: int, /) -> None:
        bars(what, done, total)
        if seen is not None:
            seen(what, done, total)

    return watch


def _collapse(log: Sequence[Mapping[str, Any]]) -> list[str]:
    if log and log[-1]["spread"] < COLLAPSED:
        return [
            f"stage 1: target features spread only {log[-1]['spread']:.2f} times as far as the source's: "
            "a small W₁ is partly a collapse onto the source's centre"
        ]
    return []


def advice(validation: float, rows: int, plan: AdaptPlan, raw: RawResult, chance: float) -> str:
    """Return one sentence: the adapted model, or the best raw one, which costs seconds.

    `chance` is the p-value of the difference on the same validation rows.
    """
    method, name = plan.settings.method, raw.name
    figures = f"{plan.metric.name} {validation:.4f} against {raw.validation:.4f}"
    test = f"paired test: p = {chance:.2g}"
    if chance >= SURE:
        return (
            f"{rows} validation rows show no difference between the adapted model ({method}) and the raw "
            f"baseline {name}: {figures} ({test}); {name} is the cheaper one"
        )
    shown = f"{figures} on the same {rows} validation rows ({test})"
    if validation < raw.validation:
        return f"use the adapted model ({method}), not the best raw baseline ({name}): {shown}"
    return f"use the raw baseline {name}, not the adapted model ({method}): {shown}"
