"""The training loop: one for all phases, through `accelerate`, and the checkpoints that it goes on from.

Batches are drawn by seed, phase and epoch. Several processes take slices of each batch and add their parts of
its gradient up; mixed precision is accelerate's. Nothing here knows what is minimised.

Every draw of a training depends on seed, phase and step alone, so weights, optimiser moments, what objectives
keep and the records are all there is to remember; a resumed training ends in the same bytes.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from safetensors import safe_open
from safetensors.torch import load, save_file
from torch import Tensor, nn

from transship import parallel
from transship.atomic import atomic_file
from transship.errors import NumericalError, OutputError
from transship.numerics import derive_seed
from transship.progress import Progress
from transship.verbs.adapt.model.network import AdaptedNetwork, Part
from transship.verbs.adapt.train.problem import LearningProblem, Objective, Phase

SHOWN = 300  # training rows whose features the report draws
_FILE = "state.safetensors"
_FACTS = ("log", "history", "notes", "best", "losses")
_TENSORS = ("kept", "before", "snapshots")


@dataclass(frozen=True, eq=False)
class TrainingState:
    """How far a training is, beside network and optimiser: all of it goes into every checkpoint.

    Attributes:
        phase: the number of the phase that runs; −1 before the first.
        step: how many of its steps are taken.
        log: rows of stage 1.
        history: rows of stage 2.
        notes: sentences for the user.
        best: the best row so far of the phase that is running, and the one it began with.
        losses: of the steps since the last validation.
        kept: weights of the best row.
        before: the embedder from before a phase that may be undone.
        snapshots: pooled φ(x) of some training rows before stage 1 and after each of its phases, and after
            stage 2, for pictures.
        resumed: the tensors of a checkpoint, until its phase has taken them.
        saved: when the last checkpoint was written, by the monotonic clock.
    """

    phase: int = -1
    step: int = 0
    log: tuple[dict[str, Any], ...] = ()
    history: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    best: Mapping[str, Any] = field(default_factory=dict)
    losses: tuple[float, ...] = ()
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    before: Mapping[str, Tensor] = field(default_factory=dict)
    snapshots: Mapping[str, Tensor] = field(default_factory=dict)
    resumed: Mapping[str, Tensor] | None = None
    saved: float = field(default_factory=time.monotonic)

    def with_snapshot(self, problem: LearningProblem, name: str) -> "TrainingState":
        """Return the state with the features of a few rows, for the pictures of the report."""
        with torch.no_grad():
            features = problem.embedded(problem.draw(SHOWN, "shown")).mean(1).float().cpu()
        return replace(self, snapshots={**self.snapshots, name: features})


@dataclass(frozen=True)
class Checkpoints:
    """A folder for checkpoints, or none.

    Attributes:
        folder: where; None keeps nothing.
        key: names arguments, data and backbone: another fit's folder is refused.
        every: seconds between two checkpoints.
    """

    folder: Path | None
    key: str
    every: float = 30.0

    def resume(self) -> TrainingState:
        """Return the state of the last checkpoint, or a new one."""
        # of several machines only the first one kept it
        kept = parallel.agreed(self._load() if parallel.is_main() else None)
        if kept is None:
            return TrainingState()
        tensors, facts = kept
        records: dict[str, Any] = {group: under(tensors, f"{group}.") for group in _TENSORS}
        records |= {name: facts[name] if name == "best" else tuple(facts[name]) for name in _FACTS}
        return TrainingState(facts["number"], facts["step"], **records, resumed=tensors)

    def _load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        if self.folder is None or not (self.folder / _FILE).is_file():
            return None
        with safe_open(self.folder / _FILE, "pt") as file:
            facts = json.loads((file.metadata() or {})["about"])
        if facts["key"] != self.key:
            raise OutputError(
                "it holds the checkpoint of another fit (other data, arguments or backbone)",
                where=str(self.folder),
                fix="name another folder, or remove it",
            )
        return load((self.folder / _FILE).read_bytes()), facts

    def due(self, state: TrainingState) -> bool:
        """Return whether this process has a checkpoint to write."""
        late = time.monotonic() - state.saved >= self.every
        return self.folder is not None and late and parallel.is_main()

    def save(self, state: TrainingState, weights: Mapping[str, Tensor]) -> TrainingState:
        """Write a checkpoint, whole or not at all; return the state that knows."""
        assert self.folder is not None
        groups = {f"{group}.{name}": v for group in _TENSORS for name, v in getattr(state, group).items()}
        plain = {
            name: value.detach().cpu().contiguous().clone() for name, value in {**weights, **groups}.items()
        }
        facts = {"number": state.phase, "step": state.step, "key": self.key}
        facts |= {name: getattr(state, name) for name in _FACTS}
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(self.folder / _FILE, force=True, sync=False) as draft:
            save_file(plain, draft, {"about": json.dumps(facts)})
        return replace(state, saved=time.monotonic())

    def clear(self) -> None:
        """Remove the checkpoint: the training is done."""
        if self.folder is not None:
            (self.folder / _FILE).unlink(missing_ok=True)


@dataclass(frozen=True, eq=False)
class Runtime:
    """What a training runs on.

    Attributes:
        accelerator: accelerate's handle on the device, the precision and the other processes.
        checkpoints: where it is kept.
        watch: told (phase, step, steps) as the work goes on.
        began: the CPU seconds of this process when training began.
    """

    accelerator: Any
    checkpoints: Checkpoints
    watch: Progress
    began: float = field(default_factory=time.process_time)


@dataclass(frozen=True, eq=False)
class PhaseRun:
    """A phase, ready to run.

    Attributes:
        phase: what is minimised, by which parts, for how long.
        number: its place among all phases of a fit.
        groups: parameters with their rates.
        optimiser: its class.
        accumulation: micro-batches per step.
        schedule: from the step to a factor of the rates.
        clip: largest gradient norm.
    """

    phase: Phase
    number: int
    groups: Sequence[dict[str, Any]]
    optimiser: Callable[..., torch.optim.Optimizer]
    accumulation: int = 1
    schedule: Callable[[int], float] = lambda step: 1.0
    clip: float | None = None


# from a step and the state after it to the state with its records, and whether the phase ends there
After = Callable[[int, TrainingState], tuple[TrainingState, bool]]


def run_phase(
    runtime: Runtime, problem: LearningProblem, run: PhaseRun, state: TrainingState, after: After
) -> TrainingState:
    """Take the steps of a phase, from where the checkpoint stands."""
    phase, groups = run.phase, [dict(group) for group in run.groups]
    objective = phase.objective(problem)
    extras = dict(objective.modules())
    if extras:
        beside = [parameter for module in extras.values() for parameter in module.parameters()]
        groups.append({"params": beside, "lr": groups[-1]["lr"]})
    parameters = [parameter for group in groups for parameter in group["params"]]
    rates = [group["lr"] for group in groups]
    fused = True if problem.device.type == "cpu" else None  # an eighth of a step less there
    plain = run.optimiser(groups, fused=fused)
    optimiser = runtime.accelerator.prepare(plain)
    if state.resumed is None:
        state = replace(state, phase=run.number, step=0, losses=())
    else:
        _go_on(problem.network, plain, objective, extras, state.resumed)
        state = replace(state, resumed=None)
    runtime.watch(phase.name, state.step, phase.steps)
    for step in range(state.step, phase.steps):
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * run.schedule(step)
        loss = take_step(runtime, problem, run, objective, optimiser, parameters, step)
        state, stop = after(step, replace(state, step=step + 1, losses=(*state.losses, loss)))
        runtime.watch(phase.name, step + 1, phase.steps)
        if stop:
            break
        if runtime.checkpoints.due(state):
            state = runtime.checkpoints.save(state, _weights(problem.network, run, plain, objective, extras))
    parallel.wait()
    return state


def take_step(
    runtime: Runtime,
    problem: LearningProblem,
    run: PhaseRun,
    objective: Objective,
    optimiser: Any,
    parameters: list[nn.Parameter],
    step: int,
) -> float:
    """Take one step of the optimiser over all micro-batches; return the loss."""
    total, phase = 0.0, run.phase
    for micro in range(run.accumulation):
        rows = _batch(problem, phase, step * run.accumulation + micro)
        own = parallel.share(rows) if phase.shared else rows
        if not len(own):
            continue
        index = torch.from_numpy(own.copy())
        with runtime.accelerator.autocast():
            loss = objective.loss(index, step, phase.steps) * (len(own) / len(rows))
        if not bool(torch.isfinite(loss)):
            raise NumericalError(
                f"the loss is {loss.item()} in step {step + 1} of {phase.name}",
                where="training",
                fix="lower the learning rate, or train in float32",
            )
        runtime.accelerator.backward(loss / run.accumulation)
        total += float(loss.detach()) / run.accumulation
    if phase.shared:
        parallel.add_gradients(parameters)
        total = sum(parallel.gather(total))
    if run.clip is not None:
        runtime.accelerator.clip_grad_norm_(parameters, run.clip)
    optimiser.step()
    optimiser.zero_grad()
    return total


def _batch(problem: LearningProblem, phase: Phase, place: int) -> Int[np.ndarray, " batch"]:
    """Return the rows of a micro-batch: a new order every epoch, the same in every process."""
    rows = len(problem.train)
    size = min(phase.batch or rows, rows)
    per_epoch = max(1, rows // size)
    seed = derive_seed(problem.seed, phase.name, "epoch", place // per_epoch)
    start = (place % per_epoch) * size
    return np.random.default_rng(seed).permutation(rows)[start : start + size]


def weights_of(network: AdaptedNetwork, parts: Sequence[Part]) -> dict[str, Tensor]:
    """Return a copy of the weights of some parts as they stand."""
    return {
        f"{part}.{name}": value.detach().clone()
        for part in parts
        for name, value in getattr(network, part).named_parameters()
    }


@torch.no_grad()
def put_weights(network: AdaptedNetwork, weights: Mapping[str, Tensor]) -> None:
    """Put such weights back."""
    own = dict(network.named_parameters())
    for name, value in weights.items():
        own[name].copy_(value)


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, without it."""
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}


def _weights(
    network: AdaptedNetwork,
    run: PhaseRun,
    optimiser: torch.optim.Optimizer,
    objective: Objective,
    extras: Mapping[str, nn.Module],
) -> dict[str, Tensor]:
    """Return what a checkpoint holds beside the state: weights, moments, and what the objective keeps."""
    parts: list[Part] = ["embedder", "head"]
    parts += ["body"] if {"body", "norms"} & run.phase.trains else []
    tensors = {f"network.{name}": value for name, value in weights_of(network, parts).items()}
    for number, moments in optimiser.state_dict()["state"].items():
        for name, value in moments.items():
            if value is None:  # sgd without momentum
                continue
            tensors[f"optimiser.{number}.{name}"] = (
                value if isinstance(value, Tensor) else torch.tensor(value)
            )
    tensors |= {f"objective.{name}": value for name, value in objective.state().items()}
    for extra, module in extras.items():
        tensors |= {f"extra.{extra}.{name}": value for name, value in module.state_dict().items()}
    return tensors


def _go_on(
    network: AdaptedNetwork,
    optimiser: torch.optim.Optimizer,
    objective: Objective,
    extras: Mapping[str, nn.Module],
    tensors: Mapping[str, Tensor],
) -> None:
    """Put back what `_weights` gave."""
    put_weights(network, under(tensors, "network."))
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in under(tensors, "optimiser.").items():
        number, key = name.split(".", 1)
        moments.setdefault(int(number), {})[key] = value
    optimiser.load_state_dict({**optimiser.state_dict(), "state": moments})
    objective.load(under(tensors, "objective."))
    for extra, module in extras.items():
        module.load_state_dict(under(tensors, f"extra.{extra}."))
