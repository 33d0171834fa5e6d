"""Stage 2: the target's own loss."""

import time
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from transship.numerics import derive_seed
from transship.verbs.adapt.model.heads import TransportHead
from transship.verbs.adapt.model.lora import add_lora, merge_lora
from transship.verbs.adapt.model.network import PARTS, Part
from transship.verbs.adapt.train.loop import Run, Trainer
from transship.verbs.adapt.train.losses import soft_table, transition
from transship.verbs.adapt.train.protocol import AdaptMethod


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

    def schedule(self, step: int) -> float:
        """Return the factor of the rates at a step."""
        rising = max(1, round(self.warmup * self.steps))
        if step < rising:
            return (step + 1) / rising
        return max(0.0, (self.steps - step) / max(1, self.steps - rising))


class Judge(Protocol):
    """What validation outputs are judged by."""

    def score(self, outputs: Tensor) -> float:
        """Return the metric; the smaller the better."""


class StageTwo:
    """Trains what the method and the settings leave to learn, and keeps the best validation's weights.

    Attributes:
        trainer: the loop.
        method: what learns, and what it minimises.
        budget: how long and how fast.
        judge: of validation outputs.
        head: a new head, or None for the one that stage 1 had.
        number: of the phase, the first one after stage 1.
        frozen: whether φ stays as stage 1 made it.
    """

    def __init__(
        self,
        trainer: Trainer,
        method: AdaptMethod,
        budget: Budget,
        judge: Judge,
        head: nn.Module | None,
        *,
        number: int,
        frozen: bool = False,
    ) -> None:
        self.trainer, self.method, self.budget, self.judge = trainer, method, budget, judge
        self.head, self.number, self.frozen = head, number, frozen
        self.bench, self.ledger, self.rows = trainer.bench, trainer.ledger, len(trainer.bench.train)

    def run(self) -> None:
        """Train; validate after every pass, or once if that chooses nothing; keep the best."""
        budget, epoch = self.budget, self.budget.epoch(self.rows)
        chooses = budget.select or budget.patience is not None
        run = self._run(self._begin(), self.number)
        if not self.trainer.resumes(self.number):
            self.ledger.history, self.ledger.best, self.ledger.kept = [], {}, {}
            if self.bench.train.base is not None:
                self._validated(0)  # the base alone, which the network may never beat

        def after(step: int) -> bool:
            done = step + 1
            if done != budget.steps and (done % epoch or not chooses):
                return False
            return self._validated(done)

        self.trainer.run(run, after, partial(torch.optim.AdamW, weight_decay=budget.weight_decay))
        if budget.select and self.ledger.kept:
            self.trainer.put(self.ledger.kept)
        merge_lora(self.bench.network.body)
        self.ledger.best, self.ledger.kept = {}, {}

    def _begin(self) -> frozenset[Part]:
        """Put the head in its place; return what learns."""
        network, bench = self.bench.network, self.bench
        if self.head is not None:
            network.head = self.head.to(bench.device)
        if isinstance(network.head, TransportHead):
            source, probabilities = bench.known, bench.views(bench.train).source
            assert probabilities is not None
            plan = transition(soft_table(probabilities, bench.train.codes, bench.classes), 1e-2)
            network.head.start(source.weight, source.bias, plan)
        parts = self.method.trains - {"embedder"} if self.frozen else self.method.trains
        if self.budget.lora_rank and "body" in parts:
            add_lora(network.body, self.budget.lora_rank, derive_seed(bench.seed, "lora"))
        network.train_only(parts)
        return parts

    def _run(self, parts: frozenset[Part], number: int) -> Run:
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
        )

    def _validated(self, step: int) -> bool:
        """Add a row of history; return whether patience has run out."""
        bench, ledger, budget = self.bench, self.ledger, self.budget
        outputs = bench.outputs(bench.validation)
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
        return budget.patience is not None and waited >= budget.patience

    def _parameters(self, part: Part) -> list[nn.Parameter]:
        return list(getattr(self.bench.network, part).parameters())


__all__ = ["Budget", "Judge", "StageTwo"]
