"""A fit from raw rows to an adapted model: check, open the source, stage 1, stage 2."""

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transship.errors import TransshipWarning
from transship.progress import Bars, Progress
from transship.verbs.adapt import parts
from transship.verbs.adapt.adapted import Adapted
from transship.verbs.adapt.advice import advice
from transship.verbs.adapt.model.heads import HeadShape, Predictor, silence
from transship.verbs.adapt.plan import Problem
from transship.verbs.adapt.rows.splitting import Split
from transship.verbs.adapt.settings import Settings
from transship.verbs.adapt.source.model import Source
from transship.verbs.adapt.train.learner import Bench
from transship.verbs.adapt.train.loop import Trainer
from transship.verbs.adapt.train.measure import COLLAPSED
from transship.verbs.adapt.train.session import Session
from transship.verbs.adapt.train.stage_one import StageOne
from transship.verbs.adapt.train.stage_two import Budget, StageTwo


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
    problem = Problem.read(X, y, settings)
    found = parts.opened(problem)
    problem = problem.on_base(compare=compare)
    for one in problem.raw:
        metric = problem.metric.name
        tell(f"raw baseline {one.name}: validation {metric} {one.validation:.4f} in {one.seconds:.1f} s")
    fit = _Fit(problem, found, _watcher(settings, seen))
    fit.stage_one()
    fit.stage_two()
    return fit.finish(), problem.split


class _Fit:
    """One fit: what it is made of, and how far it is."""

    def __init__(self, problem: Problem, found: parts.Opened, watch: Progress) -> None:
        self.problem, self.seconds = problem, dict[str, float]()
        self.phases = [phase for phase in problem.method.phases() if phase.steps]
        settings, method = problem.settings, problem.method
        self.backbone, backbone, self.shape = found.backbone, found.backbone, found.shape
        with self._timed("proxy"):
            source = parts.source_of(settings, found, watch)
        accelerator = parts.accelerator_of(settings)
        # label transport begins where stage 1 ends, so stage 1 has a linear head
        head_shape = self._head_shape("pooled" if settings.predictor == "pooled" else "linear", source)
        network = parts.network_of(backbone, self.shape, head_shape, method, settings.seed)
        network.embedder.look_at(problem.train.inputs)
        network.to(accelerator.device)
        if problem.base is not None:
            silence(network.head)
        self.bench = _bench(problem, network, backbone, source, accelerator.device)
        work = None if settings.work is None else Path(settings.work)
        self.session = Session(work, self._key(), every=settings.checkpoint_seconds)
        self.trainer = Trainer(self.bench, accelerator, self.session, watch=watch)
        self.budget = _budget(settings, len(problem.train))
        self.adapted = Adapted(
            problem.inputs,
            problem.targets,
            network,
            head_shape,
            source,
            {"metric": problem.metric.name},
            backbone=backbone,
            base=problem.base,
        )

    def stage_one(self) -> None:
        """Train φ by the method's phases."""
        with self._timed("stage1"):
            StageOne(self.trainer, log_every=self.problem.settings.log_every).run(self.phases)

    def stage_two(self) -> None:
        """Train what the method trains on the targets, under the head of the settings."""
        problem, network = self.problem, self.bench.network
        settings = problem.settings
        head = None
        if settings.predictor == "transport":
            self.adapted.head_shape = self._head_shape("transport", self.bench.source)
            head = parts.head_of(self.adapted.head_shape, settings.seed)
        stage = StageTwo(
            self.trainer,
            problem.method,
            self.budget,
            _Judge(self.adapted, problem.held_truth),
            head,
            number=len(self.phases),
            frozen=settings.freeze_embedder,
        )
        with self._timed("stage2"):
            stage.run()
        for parameter in network.parameters():
            parameter.requires_grad_(False)
        if self.bench.source is not None:
            self.trainer.snapshot("stage 2")

    def finish(self) -> Adapted:
        """Measure on the rows held out, and return the model with all that is known of it."""
        ledger = self.trainer.ledger
        notes = [*ledger.notes, *_collapse(ledger.log)]
        for note in notes:
            warnings.warn(note, TransshipWarning, stacklevel=3)
        adapted, problem = self.adapted, self.problem
        adapted.seconds, adapted.snapshots = self.seconds, ledger.snapshots
        validation = adapted.evaluate(problem.split.held_inputs, problem.split.held_targets)
        raw = [
            {"name": one.name, "validation": one.validation, "seconds": one.seconds} for one in problem.raw
        ]
        metric, method = problem.metric.name, problem.settings.method
        adapted.about = self._about(notes) | {
            "validation": validation,
            "baselines": raw,
            "advice": advice(validation[metric], len(problem.held), metric, raw, method),
        }
        self.session.clear()
        return adapted

    def _head_shape(self, predictor: Predictor, source: Source | None) -> HeadShape:
        return parts.head_shape_of(self.problem, predictor, self.backbone, self.shape, source)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        started = time.process_time()
        yield
        self.seconds[what] = time.process_time() - started

    def _key(self) -> str:
        recorded = {
            "settings": self.problem.settings.recorded(),
            "data": self.problem.data_hash,
            "backbone": self.backbone.fingerprint,
        }
        return hashlib.sha256(json.dumps(recorded, sort_keys=True).encode()).hexdigest()

    def _about(self, notes: list[str]) -> dict[str, Any]:
        problem, settings, ledger = self.problem, self.problem.settings, self.trainer.ledger
        return {
            "metric": problem.metric.name,
            "loss": problem.loss.name,
            "task": problem.targets.task,
            "backbone": self.backbone.name,
            "backbone_hash": self.backbone.fingerprint,
            "method": settings.method,
            "settings": settings.recorded(),
            "budget": vars(self.budget),
            "rows": {"train": len(problem.split.inputs), "validation": len(problem.split.held_inputs)},
            "data": problem.data_hash,
            "stage1": ledger.log,
            "history": ledger.history,
            "notes": notes,
            "seed": settings.seed,
        }


@dataclass(frozen=True, eq=False)
class _Judge:
    """The metric on the validation rows."""

    adapted: Adapted
    truth: Any

    def score(self, outputs: Tensor) -> float:
        return self.adapted.score(outputs.numpy(), self.truth)


def _bench(problem: Problem, network: Any, backbone: Any, source: Any, device: Any) -> Bench:
    targets = problem.targets
    mean, std = (torch.from_numpy(part).to(device) for part in (targets.mean, targets.std))
    return Bench(
        network,
        problem.train,
        problem.held,
        targets.code_count,
        problem.loss,
        (mean, std),
        backbone,
        source,
        problem.settings.seed,
        device,
    )


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
        settings.lora_rank,
    )


def _watcher(settings: Settings, seen: Any) -> Progress:
    bars: dict[str, Bars] = {}

    def watch(what: str, done: int, total: int) -> None:
        if settings.verbose:
            if what not in bars:
                bars[what] = Bars(unit="items" if what == "proxy" else "steps")
                bars[what](what, 0, total)
            bars[what](what, done, total)
        if seen is not None:
            seen(what, done, total)

    return watch


def _collapse(log: list[dict[str, Any]]) -> list[str]:
    if log and log[-1]["spread"] < COLLAPSED:
        return [
            f"stage 1: target features spread only {log[-1]['spread']:.2f} times as far as the source's: "
            "a small W₁ is partly a collapse onto the source's centre"
        ]
    return []


__all__ = ["adapt", "batch_rows"]
