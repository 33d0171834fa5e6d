"""The training loop: one for all phases, through `accelerate`.

Batches are drawn by seed, phase and epoch. Several processes take slices of each batch and add their parts of
its gradient up; mixed precision is accelerate's. Nothing here knows what is minimised.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from transship import parallel
from transship.errors import NumericalError
from transship.numerics import derive_seed
from transship.verbs.adapt.bench import Bench
from transship.verbs.adapt.measure import stage_one_row
from transship.verbs.adapt.network import PARTS, Part
from transship.verbs.adapt.objectives import Objective
from transship.verbs.adapt.protocol import Phase
from transship.verbs.adapt.session import Session, load_optimiser, optimiser_tensors

SHOWN = 300  # training rows whose features the report draws
Watch = Callable[[str, int, int], None]
Score = Callable[[Tensor], float]


@dataclass(frozen=True)
class Budget:
    """Stage 2: how long and how fast.

    Attributes:
        steps: optimiser steps.
        batch: rows per micro-batch.
        accumulation: micro-batches per step.
        rate: of the body.
        embedder_factor: embedder and head learn so many times as fast.
        weight_decay: AdamW's.
        warmup: share of the steps in which the rate rises; afterwards it falls to zero in a line.
        clip: largest gradient norm.
        patience: validations without a better one before it stops; None runs to the end.
        select: keep the best validation's weights, or the last ones.
    """

    steps: int
    batch: int
    accumulation: int = 1
    rate: float = 2e-4
    embedder_factor: float = 10.0
    weight_decay: float = 0.01
    warmup: float = 0.1
    clip: float = 1.0
    patience: int | None = None
    select: bool = True


@dataclass
class Run:
    """One phase on its way."""

    name: str
    number: int
    steps: int
    batch: int
    accumulation: int
    objective: Objective
    trains: frozenset[Part]
    shared: bool
    groups: list[dict[str, Any]]
    schedule: Callable[[int], float]
    clip: float | None
    optimiser: torch.optim.Optimizer = field(init=False)


class Trainer:
    """Runs phases over a bench and remembers where it is.

    Attributes:
        log: rows of stage 1.
        history: rows of stage 2.
        notes: sentences for the user.
        snapshots: pooled φ(x) of some training rows before stage 1 and after each of its phases, for
            pictures.
    """

    def __init__(
        self,
        bench: Bench,
        accelerator: Any,
        session: Session,
        *,
        log_every: int = 16,
        watch: Watch | None = None,
    ) -> None:
        self.bench, self.accelerator, self.session = bench, accelerator, session
        self.log_every, self.watch = log_every, watch or (lambda name, done, total: None)
        self.log: list[dict[str, Any]] = []
        self.history: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.snapshots: dict[str, Tensor] = {}
        self._best: dict[str, Any] = {}
        self._kept: dict[str, Tensor] = {}
        self._before: dict[str, Tensor] = {}
        self._losses: list[float] = []
        # of several machines only the first one kept it
        self._resumed = parallel.agreed(session.load() if parallel.is_main() else None)
        self._start = time.process_time()

    # -- stage 1 -------------------------------------------------------------------------------------------

    def stage_one(self, phases: Sequence[Phase]) -> None:
        """Run the phases; log the start, every so many steps, and the end of each."""
        resumed = -1 if self._resumed is None else int(self._resumed[1]["number"])
        if resumed < 0 and self.bench.source is not None:
            self._row("start", 0)
            self._snapshot("start")
        for number, phase in enumerate(phases):
            if number >= resumed:
                self._phase(number, phase)

    def _phase(self, number: int, phase: Phase) -> None:
        trained = self.bench.network.train_only(phase.trains)
        rows = len(self.bench.train)
        groups, batch = [{"params": trained, "lr": phase.rate}], min(phase.batch or rows, rows)
        run = Run(
            phase.name,
            number,
            phase.steps,
            batch,
            1,
            phase.objective,
            phase.trains,
            phase.shared,
            groups,
            lambda step: 1.0,
            None,
        )
        logged = self.bench.source is not None
        if logged and phase.select and self._resumed is None:
            self._best, self._before = {"start": dict(self.log[-1])}, self._copy(["embedder"])

        def after(step: int) -> None:
            last = step + 1 == phase.steps
            if logged and (last or (step + 1) % self.log_every == 0):
                row = self._row(phase.name, step + 1)
                if phase.select:
                    self._consider(row)

        self._run(run, after, torch.optim.Adam)
        if phase.select and logged:
            self._settle(phase.name)
        if logged:
            self._snapshot(phase.name)

    def _snapshot(self, name: str) -> None:
        """Keep the features of a few rows, for the pictures of the report."""
        index = self.bench.draw(SHOWN, "shown")
        with torch.no_grad():
            self.snapshots[name] = self.bench.embedded(index).mean(1).float().cpu()

    def _row(self, phase: str, step: int) -> dict[str, Any]:
        row = stage_one_row(self.bench, phase, step)
        row["seconds"] -= self._start
        self.log.append(row)
        return row

    def _consider(self, row: Mapping[str, Any]) -> None:
        """Remember this embedder if a probe on it errs least on held-out rows; the later one of equals."""
        if "row" not in self._best or row["probe_error"] <= self._best["row"]["probe_error"]:
            self._best["row"] = dict(row)
            self._kept = self._copy(["embedder"])

    def _settle(self, phase: str) -> None:
        """Take the best embedder, or that from before the phase: FLD did not fall, or a probe got worse."""
        start, row = self._best["start"], self._best["row"]
        error, rows = start["probe_error"], len(self.bench.validation)
        noise = (error * (1.0 - error) / rows) ** 0.5
        fell, worse = row["fld"] < start["fld"], row["probe_error"] > error + noise
        self._put(self._kept if fell and not worse else self._before)
        if worse or not fell:
            why = f"a probe's held-out error rose from {error:.3f} to {row['probe_error']:.3f}"
            why = why if fell else f"FLD did not fall below {start['fld']:.3f} nats"
            self.notes.append(f"stage 1: {why}, so the embedder from before that phase is kept")
            row = {**start, "step": 0}
        self.log.append({**row, "phase": f"{phase} chosen"})
        self._best, self._kept, self._before = {}, {}, {}

    # -- stage 2 -------------------------------------------------------------------------------------------

    def stage_two(
        self, number: int, budget: Budget, parts: frozenset[Part], objective: Objective, score: Score
    ) -> None:
        """Train on the target; validate after every pass, or once if that chooses nothing; keep the best."""
        network, rows = self.bench.network, len(self.bench.train)
        network.train_only(parts)
        groups = []
        for part in PARTS:
            found = [p for p in getattr(network, part).parameters() if p.requires_grad]
            factor = 1.0 if part == "body" else budget.embedder_factor
            if found:
                groups.append({"params": found, "lr": budget.rate * factor})
        batch, chooses = min(budget.batch, rows), budget.select or budget.patience is not None
        epoch = max(1, rows // (batch * budget.accumulation))
        rising = max(1, round(budget.warmup * budget.steps))

        def schedule(step: int) -> float:
            if step < rising:
                return (step + 1) / rising
            return max(0.0, (budget.steps - step) / max(1, budget.steps - rising))

        run = Run(
            "stage 2",
            number,
            budget.steps,
            batch,
            budget.accumulation,
            objective,
            parts,
            True,
            groups,
            schedule,
            budget.clip,
        )

        def after(step: int) -> bool:
            if step + 1 < budget.steps and ((step + 1) % epoch or not chooses):
                return False
            return self._validated(step + 1, epoch, budget, score)

        if self.bench.train.base is not None and self._resumed is None:
            self._validated(0, epoch, budget, score)  # the base alone, which the network may never beat
        self._run(run, after, partial(torch.optim.AdamW, weight_decay=budget.weight_decay))
        if budget.select and self._kept:
            self._put(self._kept)
        self._best, self._kept = {}, {}

    def _validated(self, step: int, epoch: int, budget: Budget, score: Score) -> bool:
        """Add a row of history; return whether patience has run out."""
        outputs = self.bench.outputs(self.bench.validation)
        targets = self.bench.validation.targets
        scale = tuple(part.cpu() for part in self.bench.scale)
        loss = float(self.bench.loss.compute(outputs, targets, scale))
        value = score(outputs)
        self.history.append(
            {
                "epoch": -(-step // epoch),
                "step": step,
                "loss": self._mean_loss,
                "validation_loss": loss,
                "validation": value,
                "seconds": time.process_time() - self._start,
            }
        )
        self._losses = []
        if not self._best or (value, loss) < (self._best["value"], self._best["loss"]):
            self._best = {"value": value, "loss": loss, "epoch": len(self.history)}
            if budget.select:
                parts: list[Part] = [p for p in PARTS if any(x.requires_grad for x in self._parameters(p))]
                self._kept = self._copy(parts)
        waited = len(self.history) - int(self._best["epoch"])
        return budget.patience is not None and waited >= budget.patience

    # -- the loop ------------------------------------------------------------------------------------------

    def _run(self, run: Run, after: Callable[[int], Any], kind: Callable[..., torch.optim.Optimizer]) -> None:
        run.objective.begin(self.bench)
        extras = dict(run.objective.modules())
        if extras:
            rate = run.groups[-1]["lr"]
            run.groups.append({"params": [p for m in extras.values() for p in m.parameters()], "lr": rate})
        base = [group["lr"] for group in run.groups]
        fused = True if self.bench.device.type == "cpu" else None  # an eighth of a step less there
        run.optimiser = kind(run.groups, fused=fused)
        optimiser = self.accelerator.prepare(run.optimiser)
        first = self._resume(run, extras)
        parameters = [p for group in run.groups for p in group["params"]]
        if not first:
            self._losses = []
        for step in range(first, run.steps):
            for group, rate in zip(optimiser.param_groups, base, strict=True):
                group["lr"] = rate * run.schedule(step)
            self._losses.append(self._step(run, step, parameters, optimiser))
            stop = after(step)
            self.watch(run.name, step + 1, run.steps)
            if stop:
                break
            if self.session.due():
                self._checkpoint(run, step + 1, extras)
        parallel.wait()

    def _step(self, run: Run, step: int, parameters: list[nn.Parameter], optimiser: Any) -> float:
        total = 0.0
        for micro in range(run.accumulation):
            rows = self._rows(run, step, micro)
            own = parallel.share(rows) if run.shared else rows
            if not len(own):
                continue
            index = torch.from_numpy(own.copy())
            with self.accelerator.autocast():
                loss = run.objective.loss(self.bench, index, step, run.steps) * (len(own) / len(rows))
            if not bool(torch.isfinite(loss)):
                raise NumericalError(
                    f"the loss is {loss.item()} in step {step + 1} of {run.name}",
                    where="training",
                    fix="lower the learning rate, or train in float32",
                )
            self.accelerator.backward(loss / run.accumulation)
            total += float(loss.detach()) / run.accumulation
        if run.shared:
            parallel.add_gradients(parameters)
            total = sum(parallel.gather(total))
        if run.clip is not None:
            self.accelerator.clip_grad_norm_(parameters, run.clip)
        optimiser.step()
        optimiser.zero_grad()
        return total

    def _rows(self, run: Run, step: int, micro: int) -> Int[np.ndarray, " batch"]:
        """Return the rows of a micro-batch: a new order every epoch, the same in every process."""
        rows = len(self.bench.train)
        place = step * run.accumulation + micro
        per_epoch = max(1, rows // run.batch)
        order = np.random.default_rng(
            derive_seed(self.bench.seed, run.name, "epoch", place // per_epoch)
        ).permutation(rows)
        start = (place % per_epoch) * run.batch
        return order[start : start + run.batch]

    @property
    def _mean_loss(self) -> float:
        return float(np.mean(self._losses)) if self._losses else float("nan")

    # -- checkpoints ---------------------------------------------------------------------------------------

    def _parameters(self, part: Part) -> list[nn.Parameter]:
        return list(getattr(self.bench.network, part).parameters())

    def _copy(self, parts: Sequence[Part] | Sequence[str]) -> dict[str, Tensor]:
        network = self.bench.network
        return {
            f"{part}.{name}": value.detach().clone()
            for part in parts
            for name, value in getattr(network, part).named_parameters()
        }

    @torch.no_grad()
    def _put(self, tensors: Mapping[str, Tensor]) -> None:
        own = dict(self.bench.network.named_parameters())
        for name, value in tensors.items():
            own[name].copy_(value)

    def _checkpoint(self, run: Run, step: int, extras: Mapping[str, nn.Module]) -> None:
        if not parallel.is_main():
            return
        parts = ["embedder", "head", *(["body"] if "body" in run.trains else [])]
        tensors = {f"network.{name}": value for name, value in self._copy(parts).items()}
        tensors |= {f"kept.{name}": value for name, value in self._kept.items()}
        tensors |= {f"before.{name}": value for name, value in self._before.items()}
        tensors |= {f"snapshot.{name}": value for name, value in self.snapshots.items()}
        tensors |= optimiser_tensors(run.optimiser)
        tensors |= {f"objective.{name}": value for name, value in run.objective.state().items()}
        for extra, module in extras.items():
            tensors |= {f"extra.{extra}.{name}": value for name, value in module.state_dict().items()}
        about = {
            "number": run.number,
            "step": step,
            "log": self.log,
            "history": self.history,
            "notes": self.notes,
            "best": self._best,
            "losses": self._losses,
        }
        self.session.save(tensors, about)

    def _resume(self, run: Run, extras: Mapping[str, nn.Module]) -> int:
        """Put back the checkpoint if it belongs to this phase; return the step to go on from."""
        if self._resumed is None or int(self._resumed[1]["number"]) != run.number:
            return 0
        tensors, about = self._resumed
        self._resumed = None

        def under(prefix: str) -> dict[str, Tensor]:
            return {name[len(prefix) :]: v for name, v in tensors.items() if name.startswith(prefix)}

        self._put(under("network."))
        self._kept, self._before, self.snapshots = under("kept."), under("before."), under("snapshot.")
        load_optimiser(run.optimiser, tensors)
        run.objective.load(under("objective."))
        for extra, module in extras.items():
            module.load_state_dict(under(f"extra.{extra}."))
        self.log, self.history, self.notes = about["log"], about["history"], about["notes"]
        self._best, self._losses = about["best"], about["losses"]
        return int(about["step"])


__all__ = ["Budget", "Trainer", "Watch"]
