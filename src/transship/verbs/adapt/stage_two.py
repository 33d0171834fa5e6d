"""Stage 2: the target's own loss, in one way or in the best of several.

Where more than one way is open, each of the others first runs the early part of its schedule. Then the
default way runs to its end. Of the others only the one that led it by more than a standard error at that
early point is trained to its end as well, and it is taken if it leads by as much there. All begin from what
stage 1 left and see the same batches, so that the way which is taken is what it would have been if told.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from transship import parallel
from transship.numerics import derive_seed
from transship.verbs.adapt.heads import TransportHead
from transship.verbs.adapt.lora import add_lora, drop_lora, merge_lora
from transship.verbs.adapt.losses import soft_table, transition
from transship.verbs.adapt.network import PARTS, Part
from transship.verbs.adapt.protocol import AdaptMethod
from transship.verbs.adapt.training import Run, Trainer
from transship.verbs.adapt.ways import Way

RACE = 0.25  # share of the passes over the rows after which ways are compared first


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
        lora_rank: above 0, the body learns through LoRA factors.
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
    lora_rank: int = 0

    def epoch(self, rows: int) -> int:
        """Return the steps of one pass over the rows."""
        return max(1, rows // (min(self.batch, rows) * self.accumulation))

    def race(self, rows: int) -> int:
        """Return the steps of whole passes after which ways are compared first."""
        epoch = self.epoch(rows)
        return min(self.steps, epoch * max(1, round(RACE * self.steps / epoch)))

    def schedule(self, step: int) -> float:
        """Return the factor of the rates at a step."""
        rising = max(1, round(self.warmup * self.steps))
        if step < rising:
            return (step + 1) / rising
        return max(0.0, (self.steps - step) / max(1, self.steps - rising))


class Judge(Protocol):
    """What validation outputs are judged by."""

    @property
    def name(self) -> str:
        """The metric's name."""

    def score(self, outputs: Tensor) -> float:
        """Return the metric; the smaller the better."""

    def noise(self, outputs: Tensor) -> float:
        """Return its standard error."""


class StageTwo:
    """Trains the ways that are open, and keeps one.

    Attributes:
        trainer: the loop.
        method: what learns, and what it minimises.
        budget: how long and how fast.
        judge: of validation outputs.
        heads: from a way to a new head for it; None for the head that stage 1 had.
        first: the number of the first phase after stage 1.
        tell: takes lines for the user.
    """

    def __init__(
        self,
        trainer: Trainer,
        method: AdaptMethod,
        budget: Budget,
        judge: Judge,
        heads: Callable[[Way], nn.Module | None],
        *,
        first: int,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.trainer, self.method, self.budget, self.judge = trainer, method, budget, judge
        self.heads, self.first, self.tell = heads, first, tell
        self.bench, self.ledger, self.rows = trainer.bench, trainer.ledger, len(trainer.bench.train)
        self._plain, self._moved = trainer.bench.network.head, False

    def run(self, ways: list[Way]) -> Way:
        """Train; return the way that was taken."""
        default, others = ways[0], ways[1:]
        if others and self.trainer.place < self.first:  # a checkpoint of stage 2 has it
            self.ledger.start = self.trainer.copy(["embedder", "head"])
        for number, way in enumerate(others, self.first):
            if not self.trainer.over(number):
                self._early(way, number)
        number = self.first + len(others)
        if not self.trainer.over(number):
            self._whole(default, number, race=bool(others))
        taken = self._compared(default, others, number + 1) if others else default
        self.ledger.start, self.ledger.settled = {}, {}
        return taken

    def _compared(self, default: Way, others: list[Way], number: int) -> Way:
        """Return the default, or the way that led it early and leads it at the end."""
        race, own = self.ledger.race, self.ledger.race[str(default)]
        leader = min(others, key=lambda way: float(race[str(way)]["early"]))
        if not self.trainer.resumes(number):
            outputs = self._outputs()
            own |= {"validation": self.judge.score(outputs), "error": self.judge.noise(outputs)}
            if not parallel.agreed(race[str(leader)]["early"] < own["early"] - own["early_error"]):
                return default
            own["history"] = self.ledger.history
            self.ledger.settled = self.trainer.copy(PARTS)
        self._whole(leader, number)
        value = self.judge.score(self._outputs())
        race[str(leader)]["validation"] = value
        self.tell(
            f"stage 2: {leader} led {default} early; at the end validation {self.judge.name} {value:.4f} "
            f"against {own['validation']:.4f} ± {own['error']:.4f}"
        )
        history = own.pop("history")
        if parallel.agreed(value < own["validation"] - own["error"]):
            return leader
        self._give_head(default)
        self.trainer.put(self.ledger.settled)
        self.ledger.history = history
        return default

    # -- one way -------------------------------------------------------------------------------------------

    def _begin(self, way: Way) -> frozenset[Part]:
        """Put everything where stage 1 left it, with the way's head; return what learns."""
        network, bench = self.bench.network, self.bench
        network.head = self._plain
        self.trainer.put(self.ledger.start)
        if self._moved:
            body = bench.backbone.body().named_parameters()
            self.trainer.put({f"body.{name}": value for name, value in body})
        self._moved = True
        self._give_head(way)
        if isinstance(network.head, TransportHead):
            source, made = bench.known, bench.views(bench.train).source
            assert made is not None
            plan = transition(soft_table(made, bench.train.codes, bench.classes), 1e-2)
            network.head.start(source.weight, source.bias, plan)
        parts = self.method.trains - {"embedder"} if way.frozen else self.method.trains
        if self.budget.lora_rank and "body" in parts:
            add_lora(network.body, self.budget.lora_rank, derive_seed(bench.seed, "lora"))
        network.train_only(parts)
        return parts

    def _give_head(self, way: Way) -> None:
        head = self.heads(way)
        self.bench.network.head = self._plain if head is None else head.to(self.bench.device)

    def _early(self, way: Way, number: int) -> None:
        """Run the early part of a way, and remember how far it came."""
        race = self.budget.race(self.rows)
        run = self._run(self._begin(way), number, stop=race, shown=f"stage 2, {way}")
        self._train(run, lambda step: False)
        value = self.judge.score(self._outputs())
        self.ledger.race[str(way)] = {**way.told(), "early": value}
        drop_lora(self.bench.network.body)
        steps = f"{race} of {self.budget.steps} steps"
        self.tell(f"stage 2: {way}: validation {self.judge.name} {value:.4f} after {steps}")

    def _whole(self, way: Way, number: int, *, race: bool = False) -> None:
        """Run a way to its end; validate after every pass, or once if that chooses nothing; keep the best.

        In a `race` the figure that other ways are compared with early is remembered.
        """
        budget, epoch = self.budget, self.budget.epoch(self.rows)
        early = budget.race(self.rows) if race else 0
        chooses = budget.select or budget.patience is not None
        shown = None if race or number == self.first else f"stage 2 to the end, {way}"
        run = self._run(self._begin(way), number, shown=shown)
        if not self.trainer.resumes(number):
            self.ledger.history, self.ledger.best, self.ledger.kept = [], {}, {}
            if self.bench.train.base is not None:
                self._validated(0)  # the base alone, which the network may never beat

        def after(step: int) -> bool:
            done = step + 1
            if done not in (early, budget.steps) and (done % epoch or not chooses):
                return False
            outputs, ended = self._validated(done)
            if race and (done == early or (ended and done < early)):
                told = {**way.told(), "early": self.ledger.history[-1]["validation"]}
                self.ledger.race[str(way)] = {**told, "early_error": self.judge.noise(outputs)}
            return ended

        self._train(run, after)
        if budget.select and self.ledger.kept:
            self.trainer.put(self.ledger.kept)
        merge_lora(self.bench.network.body)
        self.ledger.best, self.ledger.kept = {}, {}

    def _run(self, parts: frozenset[Part], number: int, **more: Any) -> Run:
        budget, groups = self.budget, []
        for part in PARTS:
            found = [p for p in self._parameters(part) if p.requires_grad]
            factor = 1.0 if part == "body" else budget.embedder_factor
            if found:
                groups.append({"params": found, "lr": budget.rate * factor})
        return Run(
            "stage 2",
            number,
            budget.steps,
            min(budget.batch, self.rows),
            budget.accumulation,
            self.method.objective(),
            parts,
            True,
            groups,
            budget.schedule,
            budget.clip,
            **more,
        )

    def _train(self, run: Run, after: Callable[[int], bool]) -> None:
        self.trainer.run(run, after, partial(torch.optim.AdamW, weight_decay=self.budget.weight_decay))

    def _validated(self, step: int) -> tuple[Tensor, bool]:
        """Add a row of history; return the outputs, and whether patience has run out."""
        bench, ledger, budget = self.bench, self.ledger, self.budget
        outputs = self._outputs()
        scale = tuple(part.cpu() for part in bench.scale)
        loss = float(bench.loss.compute(outputs, bench.validation.targets, scale))
        value = self.judge.score(outputs)
        ledger.history.append(
            {
                "epoch": -(-step // budget.epoch(self.rows)),
                "step": step,
                "loss": float(np.mean(ledger.losses)) if ledger.losses else float("nan"),
                "validation_loss": loss,
                "validation": value,
                "seconds": time.process_time() - self.trainer.began,
            }
        )
        ledger.losses = []
        if not ledger.best or (value, loss) < (ledger.best["value"], ledger.best["loss"]):
            ledger.best = {"value": value, "loss": loss, "epoch": len(ledger.history)}
            if budget.select:
                learn = [p for p in PARTS if any(x.requires_grad for x in self._parameters(p))]
                ledger.kept = self.trainer.copy(learn)
        waited = len(ledger.history) - int(ledger.best["epoch"])
        return outputs, budget.patience is not None and waited >= budget.patience

    def _outputs(self) -> Tensor:
        return self.bench.outputs(self.bench.validation)

    def _parameters(self, part: Part) -> list[nn.Parameter]:
        return list(getattr(self.bench.network, part).parameters())


__all__ = ["Budget", "Judge", "StageTwo"]
