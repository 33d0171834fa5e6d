"""Stage 1: the phases of a method one after the other, logged on whole sets, and an embedder chosen."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from transship.verbs.adapt.train.loop import Run, Trainer
from transship.verbs.adapt.train.measure import stage_one_row
from transship.verbs.adapt.train.protocol import Phase


class StageOne:
    """Runs the phases; logs the start, every so many steps, and the end of each."""

    def __init__(self, trainer: Trainer, *, log_every: int = 16) -> None:
        self.trainer, self.log_every = trainer, log_every
        # without a source there is nothing to compare features and labels with
        self.logged = trainer.bench.source is not None

    def run(self, phases: Sequence[Phase]) -> None:
        """Train φ, from where the checkpoint stands."""
        if self.logged and not self.trainer.ledger.log:
            self._row("start", 0)
            self.trainer.snapshot("start")
        for number, phase in enumerate(phases):
            if not self.trainer.over(number):
                self._phase(number, phase)

    def _phase(self, number: int, phase: Phase) -> None:
        trainer = self.trainer
        trained = trainer.bench.network.train_only(phase.trains)
        rows = len(trainer.bench.train)
        run = Run(
            phase.name,
            number,
            phase.steps,
            min(phase.batch or rows, rows),
            1,
            phase.objective,
            phase.trains,
            phase.shared,
            [{"params": trained, "lr": phase.rate}],
            lambda step: 1.0,
            None,
        )
        if self.logged and phase.select and not trainer.resumes(number):
            trainer.ledger.best = {"start": dict(trainer.ledger.log[-1])}
            trainer.ledger.before = trainer.copy(["embedder"])

        def after(step: int) -> None:
            last = step + 1 == phase.steps
            if self.logged and (last or (step + 1) % self.log_every == 0):
                row = self._row(phase.name, step + 1)
                if phase.select:
                    self._consider(row)

        trainer.run(run, after, torch.optim.Adam)
        if phase.select and self.logged:
            self._settle(phase.name)
        if self.logged:
            trainer.snapshot(phase.name)

    def _row(self, phase: str, step: int) -> dict[str, Any]:
        row = stage_one_row(self.trainer.bench, phase, step)
        row["seconds"] -= self.trainer.began
        self.trainer.ledger.log.append(row)
        return row

    def _consider(self, row: Mapping[str, Any]) -> None:
        """Remember this embedder if a probe on it errs least on held-out rows; the later one of equals."""
        ledger = self.trainer.ledger
        if "row" not in ledger.best or row["probe_error"] <= ledger.best["row"]["probe_error"]:
            ledger.best["row"] = dict(row)
            ledger.kept = self.trainer.copy(["embedder"])

    def _settle(self, phase: str) -> None:
        """Take the best embedder, or that from before the phase: FLD did not fall, or a probe got worse."""
        ledger = self.trainer.ledger
        start, row = ledger.best["start"], ledger.best["row"]
        error, rows = start["probe_error"], len(self.trainer.bench.validation)
        noise = (error * (1.0 - error) / rows) ** 0.5
        fell, worse = row["fld"] < start["fld"], row["probe_error"] > error + noise
        self.trainer.put(ledger.kept if fell and not worse else ledger.before)
        if worse or not fell:
            why = f"a probe's held-out error rose from {error:.3f} to {row['probe_error']:.3f}"
            why = why if fell else f"FLD did not fall below {start['fld']:.3f} nats"
            ledger.notes.append(f"stage 1: {why}, so the embedder from before that phase is kept")
            row = {**start, "step": 0}
        ledger.log.append({**row, "phase": f"{phase} chosen"})
        ledger.best, ledger.kept, ledger.before = {}, {}, {}


__all__ = ["StageOne"]
