"""The two stages: a method's phases one after the other, logged on whole sets; the target's own loss."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from transship.numerics import derive_seed
from transship.verbs.adapt.model.network import (
    PARTS,
    AdaptedNetwork,
    Part,
    TransportHead,
    add_lora,
    merge_lora,
)
from transship.verbs.adapt.model.source import SourceSide
from transship.verbs.adapt.settings import Settings
from transship.verbs.adapt.train.loop import (
    PhaseRun,
    Runtime,
    TrainingState,
    put_weights,
    run_phase,
    weights_of,
)
from transship.verbs.adapt.train.losses import (
    conditional_entropy,
    entropy,
    soft_table,
    spread,
    table_loss,
    transition,
    transport_distance,
)
from transship.verbs.adapt.train.problem import AdaptMethod, LearningProblem, Phase

MOST, MOST_HELD_OUT = 1024, 512  # rows that stand for the whole sets in logs
MOST_TRANSPORT = 512  # of them in W₁, against all source features
COLLAPSED = 0.5  # spread under this share of the source's is worth a warning
_SMOOTH = 1e-3  # of the marginal in Λ, where held-out labels may meet an empty cell


def stage_one(
    runtime: Runtime,
    problem: LearningProblem,
    phases: Sequence[Phase],
    state: TrainingState,
    *,
    log_every: int = 16,
) -> TrainingState:
    """Train φ by the phases, from where the checkpoint stands.

    The start, every so many steps and the end of each phase are logged; without a source there is nothing to
    compare features and labels with.
    """
    logged: Log | None = None
    if problem.source is not None:
        distance = source_distance(problem.source, min(MOST_TRANSPORT, MOST, len(problem.train)))
        logged = partial(_logged, problem, distance, runtime.began)
        if not state.log:
            state = logged(state, "start", 0).with_snapshot(problem, "start")
    for number, phase in enumerate(phases):
        if number >= state.phase:
            state = _phase(runtime, problem, number, phase, state, logged, log_every)
    return state


# from a state, a phase's name and its step to the state with one more row of the stage-1 log
Log = Callable[[TrainingState, str, int], TrainingState]


def _phase(
    runtime: Runtime,
    problem: LearningProblem,
    number: int,
    phase: Phase,
    state: TrainingState,
    logged: Log | None,
    log_every: int,
) -> TrainingState:
    trained = problem.network.train_only(phase.trains)
    run = PhaseRun(phase, number, [{"params": trained, "lr": phase.rate}], torch.optim.Adam)
    selects = phase.select and logged is not None
    if selects and state.resumed is None:
        before = weights_of(problem.network, ["embedder"])
        state = replace(state, best={"start": dict(state.log[-1])}, before=before)

    def after(step: int, state: TrainingState) -> tuple[TrainingState, bool]:
        if logged is not None and (step + 1 == phase.steps or (step + 1) % log_every == 0):
            state = logged(state, phase.name, step + 1)
            state = _considered(problem, state) if selects else state
        return state, False

    state = run_phase(runtime, problem, run, state, after)
    state = _settled(problem, state, phase.name) if selects else state
    return state if logged is None else state.with_snapshot(problem, phase.name)


def _logged(
    problem: LearningProblem, distance: float, began: float, state: TrainingState, phase: str, step: int
) -> TrainingState:
    row = {"phase": phase, "step": step, "w1_source": distance, **stage_one_row(problem)}
    return replace(state, log=(*state.log, row | {"seconds": time.process_time() - began}))


def _considered(problem: LearningProblem, state: TrainingState) -> TrainingState:
    """Return the state that keeps this embedder if a probe on it errs least; the later one of equals."""
    row, best = state.log[-1], state.best.get("row")
    if best is not None and row["probe_error"] > best["probe_error"]:
        return state
    kept = weights_of(problem.network, ["embedder"])
    return replace(state, best={**state.best, "row": dict(row)}, kept=kept)


def _settled(problem: LearningProblem, state: TrainingState, phase: str) -> TrainingState:
    """Take the best embedder, or that from before the phase: FLD did not fall, or a probe got worse."""
    start, row, notes = state.best["start"], state.best["row"], state.notes
    error = start["probe_error"]
    noise = (error * (1.0 - error) / len(problem.validation)) ** 0.5
    fell, worse = row["fld"] < start["fld"], row["probe_error"] > error + noise
    put_weights(problem.network, state.kept if fell and not worse else state.before)
    if worse or not fell:
        why = f"a probe's held-out error rose from {error:.3f} to {row['probe_error']:.3f}"
        why = why if fell else f"FLD did not fall below {start['fld']:.3f} nats"
        notes = (*notes, f"stage 1: {why}, so the embedder from before that phase is kept")
        row = {**start, "step": 0}
    log = (*state.log, {**row, "phase": f"{phase} chosen"})
    return replace(state, log=log, notes=notes, best={}, kept={}, before={})


def stage_one_row(problem: LearningProblem) -> dict[str, Any]:
    """Return what stage 1 is measured by, on whole sets, for the embedder as it stands.

    W₁, spread, FLD, the entropies of Z, Z' and p_s, held-out FLD, and the error of a probe.
    """
    source, validation = problem.known, problem.validation
    index = problem.draw(MOST, "log")
    some = torch.linspace(0, len(validation) - 1, min(MOST_HELD_OUT, len(validation))).long()
    train, held = problem.views(problem.train, index), problem.views(validation, some)
    codes, held_codes = problem.train.codes[index], validation.codes[some]
    table = soft_table(train.source.double(), codes, problem.classes)
    rows = train.pooled[torch.linspace(0, len(index) - 1, min(MOST_TRANSPORT, len(index))).long()]
    return {
        "w1": transport_distance(rows, source.features),
        "spread": spread(train.pooled) / spread(source.features),
        "fld": float(conditional_entropy(table)),
        "entropy_z": float(entropy(table.sum(1))),
        "entropy_target": float(entropy(table.sum(0))),
        "mean_entropy": float(-(train.source * train.source.clamp_min(1e-12).log()).sum(1).mean()),
        "held_out_fld": held_out_distortion(table, held.source.double(), held_codes),
        "probe_error": probe_error(train.features, codes, held.features, held_codes, problem.classes),
    }


def held_out_distortion(
    table: Float[Tensor, "source classes"], source: Float[Tensor, "rows source"], codes: Int[Tensor, " rows"]
) -> float:
    """Return mean Σ_z p_s(z|u)·(−log Λ(z'|z)) on other rows than those of the table: FLD's own form there."""
    smooth = transition(table, _SMOOTH) * table.sum(1, keepdim=True).clamp_min(1e-12)
    return float(table_loss(source, codes, smooth))


def source_distance(source: SourceSide, count: int) -> float:
    """Return W₁ of `count` source features against the others: what alignment can reach."""
    drawn = np.random.default_rng(derive_seed(0, "source", count)).permutation(len(source.features))
    some, rest = np.split(drawn, [min(count, len(drawn) // 2)])
    return transport_distance(
        source.features[torch.from_numpy(some)], source.features[torch.from_numpy(rest)]
    )


def probe_error(
    features: Float[Tensor, "rows width"],
    codes: Int[Tensor, " rows"],
    held: Float[Tensor, "held width"],
    held_codes: Int[Tensor, " held"],
    classes: int,
) -> float:
    """Return the held-out error of a ridge probe on the frozen body's features."""
    mean = features.double().mean(0)
    x, z = features.double() - mean, held.double() - mean
    wanted = functional.one_hot(codes, classes).double()
    gram = x.T @ x
    ridge = 1e-2 * gram.diagonal().mean() + 1e-12
    weights = torch.linalg.solve(
        gram + ridge * torch.eye(len(gram), dtype=gram.dtype), x.T @ (wanted - wanted.mean(0))
    )
    outputs = z @ weights + wanted.mean(0)
    return float((outputs.argmax(1) != held_codes).double().mean())


def stage_two(
    runtime: Runtime,
    problem: LearningProblem,
    method: AdaptMethod,
    settings: Settings,
    score: Callable[[Tensor], float],
    state: TrainingState,
    *,
    number: int,
) -> TrainingState:
    """Train what the method leaves to learn under the problem's head; keep the best validation's weights.

    It is validated after every pass, or once if that chooses nothing, by `score` of the outputs: the smaller
    the better. `number` is that of the phase, the first one after stage 1.
    """
    network, rows = problem.network, len(problem.train)
    if isinstance(network.head, TransportHead):
        _start_transport(problem, network.head)
    parts = method.trains - {"embedder"} if settings.freeze_embedder else method.trains
    if settings.lora_rank and "body" in parts:
        add_lora(network.body, settings.lora_rank, derive_seed(problem.seed, "lora"))
    network.train_only(parts)
    steps, batch = settings.stage_two_steps(rows), settings.batch_rows(rows)
    run = PhaseRun(
        Phase("stage 2", steps, settings.learning_rate, batch, method.objective, parts),
        number,
        _groups(network, settings, parts),
        _optimizer(settings),
        settings.accumulation,
        partial(_schedule, steps, max(1, round(settings.warmup * steps))),
        settings.clip,
    )
    epoch = max(1, rows // (batch * settings.accumulation))
    validated = partial(_validated, runtime, problem, settings, score, epoch)
    if state.resumed is None:
        state = replace(state, history=(), best={}, kept={})
        if problem.train.base is not None:
            state, _ = validated(0, state)  # the base alone, which the network may never beat
    chooses = settings.select or settings.patience is not None

    def after(step: int, state: TrainingState) -> tuple[TrainingState, bool]:
        due = step + 1 == steps or (chooses and (step + 1) % epoch == 0)
        return validated(step + 1, state) if due else (state, False)

    state = run_phase(runtime, problem, run, state, after)
    if settings.select and state.kept:
        put_weights(network, state.kept)
    merge_lora(network.body)
    return replace(state, best={}, kept={})


def _optimizer(settings: Settings) -> Callable[..., torch.optim.Optimizer]:
    """Return the optimizer of stage 2, which takes groups of parameters."""
    decay = settings.weight_decay
    if settings.optimizer == "sgd":
        return partial(torch.optim.SGD, momentum=settings.momentum, weight_decay=decay)
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return partial(kind, weight_decay=decay)


def _schedule(steps: int, rising: int, step: int) -> float:
    """Return the factor of the rates at a step: it rises, and then falls to zero in a line."""
    if step < rising:
        return (step + 1) / rising
    return max(0.0, (steps - step) / max(1, steps - rising))


def _start_transport(problem: LearningProblem, head: TransportHead) -> None:
    """Let label transport begin with the source's head and the Λ that stage 1 has reached."""
    given = problem.views(problem.train, torch.arange(len(problem.train))).source
    plan = transition(soft_table(given, problem.train.codes, problem.classes), 1e-2)
    head.start(problem.known.weight, problem.known.bias, plan)


def _groups(network: AdaptedNetwork, settings: Settings, parts: frozenset[Part]) -> list[dict[str, Any]]:
    """Return what learns, part by part, with its rate."""
    groups = []
    for part in PARTS:
        slow = part == "body" and "norms" not in parts  # norms alone are as new as an embedder
        factor = 1.0 if slow else settings.embedder_factor
        if learning := _learning(network, part):
            groups.append({"params": learning, "lr": settings.learning_rate * factor})
    return groups


def _learning(network: AdaptedNetwork, part: Part) -> list[nn.Parameter]:
    return [parameter for parameter in getattr(network, part).parameters() if parameter.requires_grad]


def _validated(
    runtime: Runtime,
    problem: LearningProblem,
    settings: Settings,
    score: Callable[[Tensor], float],
    epoch: int,
    step: int,
    state: TrainingState,
) -> tuple[TrainingState, bool]:
    """Return the state with one more row of history, and whether patience has run out."""
    network, targets = problem.network, problem.validation.targets
    outputs = problem.outputs(problem.validation)
    loss = float(problem.loss.compute(outputs, targets, tuple(part.cpu() for part in problem.scale)))
    value = score(outputs)
    row = {
        "epoch": -(-step // epoch),
        "step": step,
        "loss": float(np.mean(state.losses)) if state.losses else float("nan"),
        "validation_loss": loss,
        "validation": value,
        "seconds": time.process_time() - runtime.began,
    }
    state = replace(state, history=(*state.history, row), losses=())
    best: Mapping[str, Any] = state.best
    if not best or (value, loss) < (best["value"], best["loss"]):
        best = {"value": value, "loss": loss, "epoch": len(state.history)}
        learned = [part for part in PARTS if _learning(network, part)]
        kept = weights_of(network, learned) if settings.select else state.kept
        state = replace(state, best=best, kept=kept)
    waited = len(state.history) - int(best["epoch"])
    return state, settings.patience is not None and waited >= settings.patience
