"""The training loop: one for all phases, through `accelerate`.

Batches are drawn by seed, phase and epoch. Several processes take slices of each batch and add their parts of
its gradient up; mixed precision is accelerate's. Nothing here knows what is minimised.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from transship import parallel
from transship.errors import NumericalError
from transship.numerics import derive_seed
from transship.progress import Progress, quiet
from transship.verbs.adapt.model.network import Part
from transship.verbs.adapt.train.learner import Bench
from transship.verbs.adapt.train.ledger import Ledger, under
from transship.verbs.adapt.train.objectives import Objective
from transship.verbs.adapt.train.session import Session, load_optimiser, optimiser_tensors

SHOWN = 300  # training rows whose features the report draws


@dataclass
class Run:
    """One phase on its way.

    Attributes:
        name: of the phase; batches are drawn by it.
        number: its place among all phases of a fit.
        steps: of the whole schedule.
        batch: rows per micro-batch.
        accumulation: micro-batches per step.
        objective: what is minimised.
        trains: which parts learn.
        shared: whether several processes share a batch.
        groups: parameters with their rates.
        schedule: from the step to a factor of the rates.
        clip: largest gradient norm.
    """

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
        bench: what is trained, on what.
        ledger: all that is remembered.
        watch: told (phase, step, steps) as the work goes on.
        began: the CPU seconds of this process when training began.
    """

    def __init__(self, bench: Bench, accelerator: Any, session: Session, *, watch: Progress = quiet) -> None:
        self.bench, self.accelerator, self.session = bench, accelerator, session
        self.watch = watch
        # of several machines only the first one kept it
        self._resumed = parallel.agreed(session.load() if parallel.is_main() else None)
        self.ledger = Ledger() if self._resumed is None else Ledger.restored(*self._resumed)
        self.began = time.process_time()

    @property
    def place(self) -> int:
        """The number of the phase within which the checkpoint was written; -1 without one to go on from."""
        return -1 if self._resumed is None else int(self._resumed[1]["number"])

    def over(self, number: int) -> bool:
        """Return whether the phase of that number was over when the checkpoint was written."""
        return number < self.place

    def resumes(self, number: int) -> bool:
        """Return whether the checkpoint was written within the phase of that number."""
        return number == self.place

    def run(self, run: Run, after: Callable[[int], Any], kind: Callable[..., torch.optim.Optimizer]) -> None:
        """Take the steps of a phase, from where the checkpoint stands; `after` may end it by saying True."""
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
            self.ledger.losses = []
        for step in range(first, run.steps):
            for group, rate in zip(optimiser.param_groups, base, strict=True):
                group["lr"] = rate * run.schedule(step)
            self.ledger.losses.append(self._step(run, step, parameters, optimiser))
            stop = after(step)
            self.watch(run.name, step + 1, run.steps)
            if stop:
                break
            if self.session.due():
                self._checkpoint(run, step + 1, extras)
        parallel.wait()

    def copy(self, parts: Sequence[Part]) -> dict[str, Tensor]:
        """Return the weights of some parts as they stand."""
        network = self.bench.network
        return {
            f"{part}.{name}": value.detach().clone()
            for part in parts
            for name, value in getattr(network, part).named_parameters()
        }

    @torch.no_grad()
    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Put such weights back."""
        own = dict(self.bench.network.named_parameters())
        for name, value in tensors.items():
            own[name].copy_(value)

    def snapshot(self, name: str) -> None:
        """Keep the features of a few rows, for the pictures of the report."""
        index = self.bench.draw(SHOWN, "shown")
        with torch.no_grad():
            self.ledger.snapshots[name] = self.bench.embedded(index).mean(1).float().cpu()

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

    def _checkpoint(self, run: Run, step: int, extras: Mapping[str, nn.Module]) -> None:
        if not parallel.is_main():
            return
        parts: list[Part] = ["embedder", "head", *(["body"] if "body" in run.trains else [])]  # type: ignore[list-item]
        tensors = {f"network.{name}": value for name, value in self.copy(parts).items()}
        tensors |= self.ledger.tensors()
        tensors |= optimiser_tensors(run.optimiser)
        tensors |= {f"objective.{name}": value for name, value in run.objective.state().items()}
        for extra, module in extras.items():
            tensors |= {f"extra.{extra}.{name}": value for name, value in module.state_dict().items()}
        self.session.save(tensors, {"number": run.number, "step": step, **self.ledger.facts()})

    def _resume(self, run: Run, extras: Mapping[str, nn.Module]) -> int:
        """Put back the checkpoint if it belongs to this phase; return the step to go on from."""
        if self._resumed is None or not self.resumes(run.number):
            return 0
        tensors, about = self._resumed
        self._resumed = None
        self.put(under(tensors, "network."))
        load_optimiser(run.optimiser, tensors)
        run.objective.load(under(tensors, "objective."))
        for extra, module in extras.items():
            module.load_state_dict(under(tensors, f"extra.{extra}."))
        return int(about["step"])


__all__ = ["Run", "Trainer"]
