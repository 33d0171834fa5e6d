"""The order of work: open, match, draw, prepare, move, choose a strength. Formulas are in the methods."""

import contextlib
import dataclasses
import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from transship.activations import Matching, match_sites
from transship.activations.readout import Readout
from transship.checkpoints.card import Input
from transship.registry import build_method
from transship.verbs.transport.calibrate import Draws, draw
from transship.verbs.transport.heads import CarriedHead, carry_head
from transship.verbs.transport.judge import PATIENCE, Choice, Judge, choose_strength, require_outputs, teach
from transship.verbs.transport.kinship import Kinship, kinship
from transship.verbs.transport.methods.carry import Carry
from transship.verbs.transport.methods.gradfix import Gradfix
from transship.verbs.transport.methods.transfusion import Transfusion
from transship.verbs.transport.moved import Moved, Prepared
from transship.verbs.transport.mover import Mover
from transship.verbs.transport.participants import (
    Opening,
    Participant,
    open_participant,
    shares_outputs,
    source_update,
)
from transship.verbs.transport.prepare import Calibration, Progress, Teacher, changed_pairs, prepare
from transship.verbs.transport.protocol import TransportMethod
from transship.verbs.transport.result import Candidate, Result
from transship.verbs.transport.settings import Settings
from transship.verbs.transport.shifted import shifted
from transship.verbs.transport.source_update import SourceUpdate

_LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class Work:
    """A planned transport: models open, sites matched, inputs drawn. Statistics are made when a method
    asks.
    """

    source: Participant
    tuned: Participant
    target: Participant
    update: SourceUpdate
    relative: float
    matching: Matching
    draws: Draws
    settings: Settings
    folder: Path | None = None
    progress: Progress | None = None
    notes: list[str] = field(default_factory=list)
    _prepared: dict[Any, Prepared] = field(default_factory=dict)
    _teacher: Teacher | None = None
    _teachers: dict[int, Tensor] = field(default_factory=dict)
    _untouched: dict[bool, float] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        source: Any,
        tuned: Any,
        target: Any,
        data: Any,
        opening: Opening,
        settings: Settings,
        *,
        prepared: str | Path | None = None,
        progress: Progress | None = None,
    ) -> "Work":
        """Open the models, check that they belong together, match their sites and draw the inputs."""
        participants = (
            open_participant(source, opening),
            open_participant(tuned, opening, adapter=True),
            open_participant(target, opening),
        )
        update, relative = source_update(*participants)
        matching = match_sites(participants[0].model, participants[2].model, depth=settings.depth)
        draws = draw(
            data,
            batches=settings.batches,
            batch_size=settings.batch_size,
            shots=settings.shots,
            head_inputs=settings.head_inputs,
            seed=settings.seed,
        )
        made = cls(*participants, update, relative, matching, draws, settings, None, progress)
        made.folder = None if prepared is None else Path(prepared) / made.key()[:16]
        return made

    # -- what is prepared ------------------------------------------------------------------------------------

    def key(self) -> str:
        """Return a hash of all that the statistics depend on."""
        parts = [
            self.source.fingerprint(),
            self.tuned.fingerprint()
            if self.tuned.loaded is not None or self.tuned.checkpoint is not None
            else "",
            self.target.fingerprint(),
            self.draws.fingerprint,
            *(
                getattr(self.settings, name)
                for name in ("batches", "batch_size", "shots", "depth", "align", "seed")
            ),
            self.settings.tokens_per_input,
            next(self.target.model.model.parameters()).dtype,
        ]
        return hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).hexdigest()

    @property
    def calibration(self) -> Calibration:
        """The calibration inputs and how they are read."""
        return Calibration(
            self.draws.calibration,
            self.settings.batch_size,
            self.settings.align,
            self.settings.tokens_per_input,
            self.settings.seed,
            self.folder,
        )

    @contextlib.contextmanager
    def running_tuned(self) -> Iterator[Readout]:
        """Yield a readout of the fine-tuned source; an adapter runs on its base while the block runs."""
        if self.tuned.loaded is not None:
            yield Readout(self.tuned.loaded)
            return
        names = [name for name, _ in self.source.model.model.named_parameters()]
        changes = {name: self.update.dense(name) for name in names if name in self.update}
        with shifted(self.source.model.model, changes):
            yield Readout(self.source.model)

    @property
    def teacher(self) -> Teacher:
        """What the fine-tuned source says about the calibration inputs."""
        if self._teacher is None:
            with self.running_tuned() as readout:
                self._teacher = teach(readout, self.draws.calibration, self.settings.batch_size)
        return self._teacher

    def taught(self, inputs: Sequence[Any]) -> Tensor:
        """Return the fine-tuned source's outputs on other inputs; read once."""
        if id(inputs) not in self._teachers:
            with self.running_tuned() as readout:
                self._teachers[id(inputs)] = require_outputs(
                    teach(readout, inputs, self.settings.batch_size), "a strength found by itself"
                )
        return self._teachers[id(inputs)]

    def prepare(self, method: TransportMethod) -> Prepared:
        """Return the statistics that a method needs, made once."""
        needs = method.requirements
        inner = method.inner() if isinstance(method, Carry) and method.body != "none" else method
        vote = inner.vote if isinstance(inner, Gradfix) else "mean"
        rebasin = (
            {"residual": inner.residual, "sweeps": inner.sweeps} if isinstance(inner, Transfusion) else None
        )
        key = (dataclasses.replace(needs, head=False, hidden=0.0), vote, json.dumps(rebasin))
        if key not in self._prepared:
            matching = self.matching if needs.permutations else changed_pairs(self.matching, self.update)
            self._prepared[key] = prepare(
                self.source.model,
                self.target.model,
                matching,
                self.calibration,
                needs,
                teacher=self.teacher if needs.gradients or needs.descent else None,
                vote=vote,
                rebasin=rebasin,
                progress=self.progress,
            )
        return self._prepared[key]

    # -- one method ------------------------------------------------------------------------------------------

    def move(
        self, method: TransportMethod, prepared: Prepared | None = None, update: SourceUpdate | None = None
    ) -> Moved:
        """Return the update that a method makes for the target."""
        if isinstance(method, Carry):
            if method.body == "none":
                return Moved()
            method = method.inner()
        prepared = self.prepare(method) if prepared is None else prepared
        return Mover(
            self.source.model,
            self.target.model,
            update or self.update,
            prepared,
            method,
            roles=self.settings.roles,
            shares_outputs=shares_outputs(self.source, self.target),
            seed=self.settings.seed,
        ).run()

    def own_head(self) -> bool:
        """Return whether the target's own head answers in the fine-tune's terms."""
        with self.running_tuned() as readout:
            return readout.shares_outputs(Readout(self.target.model))

    def judge(self, *, carried: bool) -> tuple[Judge, str]:
        """Return what scores a strength, and how: by validation labels, or by agreement on calibration
        inputs.
        """
        teacher = self.teacher
        outputs = require_outputs(teacher, "a strength found by itself")
        readout = Readout(self.target.model)
        own = self.own_head() and not carried
        if self.settings.validation and self._labels_fit(teacher):
            assert self.draws.validation is not None
            assert self.draws.labels is not None
            fit = None if own else (self.draws.calibration, outputs)
            judge = Judge(readout, self.draws.validation, self.draws.labels, teacher.task, own, fit)
            return judge, "validation"
        return Judge(readout, self.draws.calibration, outputs, teacher.task, own), "agreement"

    def _labels_fit(self, teacher: Teacher) -> bool:
        """Whether the data's labels are the fine-tune's own outputs."""
        if self.draws.validation is None or self.draws.labels is None or teacher.outputs is None:
            return False
        if teacher.task == "values":
            return self.draws.labels.dtype.is_floating_point
        return teacher.task == "classes" and len(self.draws.label_names) == teacher.outputs.shape[1]

    def strength(self, moved: Moved, *, carried: bool) -> Choice:
        """Return the strength: as given, or the best of the grid."""
        if self.settings.strength != "auto":
            return Choice(float(self.settings.strength), (), "given")
        if not moved.dense:
            return Choice(1.0, (), "given")
        return self.search(moved, carried=carried, grid=self.settings.grid, patience=PATIENCE)

    def search(
        self, moved: Moved, *, carried: bool, grid: Sequence[float], patience: int | None = None
    ) -> Choice:
        """Return the best strength of a grid; what the untouched target scores is measured once."""
        judge, by = self.judge(carried=carried)
        choice = choose_strength(
            judge,
            moved.dense,
            by=by,
            grid=grid,
            patience=len(grid) if patience is None else patience,
            untouched=self._untouched.get(carried),
        )
        if 0.0 in dict(choice.curve):
            self._untouched[carried] = dict(choice.curve)[0.0]
        return choice

    def run(self, method: str | TransportMethod = "auto", *, keep: Any = None) -> Result:
        """Move with one method, or with the best of several."""
        if isinstance(method, str):
            if method == "auto":
                return self._auto(keep)
            method = build_method("transport", method)
        assert isinstance(method, TransportMethod)
        carried = isinstance(method, Carry)
        if self.settings.path_steps > 1:
            from transship.verbs.transport.path import move_along_path

            moved, choice = move_along_path(self, method)
        else:
            moved = self.move(method)
            choice = self.strength(moved, carried=carried)
        head = self.head(method, moved, choice, keep) if isinstance(method, Carry) else None
        return self.result(method, moved, choice, head)

    def head(self, method: Carry, moved: Moved, choice: Choice, keep: Any = None) -> CarriedHead:
        """Fit the head on the transported target."""
        readout = Readout(self.target.model)
        kept = None
        if keep is not None:
            kept = draw(
                keep,
                batches=max(1, self.settings.head_inputs // self.settings.batch_size),
                batch_size=self.settings.batch_size,
                seed=self.settings.seed,
            ).calibration
        known = None
        with self.running_tuned() as tuned:
            if tuned.task in ("classes", "values"):
                known = self.taught(self.draws.head)
        with self.running_tuned() as tuned, shifted(self.target.model.model, moved.dense, choice.strength):
            return carry_head(
                readout,
                tuned,
                self.draws.head,
                method,
                keep=kept,
                intercept=readout.head is None or readout.head.bias is not None,
                batch_size=self.settings.batch_size,
                outputs=known,
            )

    def _auto(self, keep: Any) -> Result:
        from transship.verbs.transport.auto import choose_method

        return choose_method(self, keep)

    def kinship(self) -> Kinship:
        """Return how alike the two base models' weights are."""
        return kinship(self.source.model, self.target.model)

    def result(
        self,
        method: TransportMethod,
        moved: Moved,
        choice: Choice,
        head: CarriedHead | None,
        candidates: Sequence[Candidate] = (),
        notes: Sequence[str] = (),
    ) -> Result:
        """Put everything together."""
        parameters = {
            **{field.name: getattr(method, field.name) for field in dataclasses.fields(method)},  # type: ignore[arg-type]
            **{
                field.name: getattr(self.settings, field.name)
                for field in dataclasses.fields(self.settings)
                if field.name not in ("roles", "grid", "strength")
            },
            "roles": dataclasses.asdict(self.settings.roles),
            "strength": choice.strength,
        }
        inputs = [
            Input(role, one.name, one.fingerprint())
            for role, one in (("source", self.source), ("tuned", self.tuned), ("target", self.target))
            if one.loaded is not None or one.checkpoint is not None
        ]
        inputs.append(Input("data", self.draws.name, self.draws.fingerprint))
        metrics = {} if not choice.curve else {choice.by: choice.score}
        if 0.0 in dict(choice.curve):
            metrics[f"{choice.by}, untouched target"] = dict(choice.curve)[0.0]
        return Result(
            self.source,
            self.tuned,
            self.target,
            method.name,
            parameters,
            moved,
            choice,
            head,
            candidates,
            metrics,
            self.update.adapter and bool(moved.factors),
            [*self.notes, *notes],
            inputs,
        )

    def forget(self) -> None:
        """Remove the saved statistics."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
