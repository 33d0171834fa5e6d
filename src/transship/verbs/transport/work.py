"""The order of work: open, match, draw, prepare, move, choose a strength. Formulas are in the methods."""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from transship.activations import Matching
from transship.activations.readout import Readout, Task
from transship.checkpoints.card import Input
from transship.progress import Progress
from transship.registry import build_method
from transship.verbs.transport.calibrate import Draws, draw, draw_kept
from transship.verbs.transport.heads import CarriedHead, carry_head
from transship.verbs.transport.judge import PATIENCE, Choice, Judge, choose_strength, require_outputs, teach
from transship.verbs.transport.labels import validation_labels
from transship.verbs.transport.methods.carry import Carry
from transship.verbs.transport.methods.identity import Identity
from transship.verbs.transport.models import (
    Opening,
    Participant,
    match_participants,
    open_participants,
    shares_outputs,
    source_update,
)
from transship.verbs.transport.moved import Moved, Prepared
from transship.verbs.transport.mover import Mover
from transship.verbs.transport.plan import check_request
from transship.verbs.transport.prepare import Calibration, Teacher, body_of, collect_for, key_of, own_options
from transship.verbs.transport.protocol import TransportMethod
from transship.verbs.transport.result import Candidate, Result
from transship.verbs.transport.settings import Settings
from transship.verbs.transport.token_judge import TokenJudge, TokenTeacher
from transship.verbs.transport.weights import Kinship, SourceUpdate, kinship, shifted


@dataclass(eq=False)
class Work:
    """A planned transport: models open, sites matched, inputs drawn; statistics are made when asked for."""

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
    _token_teachers: dict[int, TokenTeacher] = field(default_factory=dict)
    _untouched: dict[bool, float] = field(default_factory=dict)
    _kinship: Kinship | None = None

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
        named = {"classes": settings.classes, "templates": settings.templates}
        participants = open_participants(source, tuned, target, opening, **named)
        update, relative = source_update(*participants)
        matching = match_participants(participants[0], participants[2], settings.depth)
        draws = draw(
            data,
            batches=settings.batches,
            batch_size=settings.batch_size,
            shots=settings.shots,
            head_inputs=settings.head_inputs,
            seed=settings.seed,
        )
        made = cls(*participants, update, relative, matching, draws, settings, None, progress)
        made.folder = None if prepared is None else Path(prepared) / key_of(made)[:16]
        return made

    # -- what is prepared ------------------------------------------------------------------------------------

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
            if self._teacher.task == "tokens":
                said = self.token_teacher(self.draws.calibration)
                self._teacher = dataclasses.replace(self._teacher, tokens=said)
        return self._teacher

    def token_teacher(self, inputs: Sequence[Any]) -> TokenTeacher:
        """Return what the fine-tuned source says about every token of some inputs; read once."""
        if id(inputs) not in self._token_teachers:
            with self.running_tuned() as readout:
                made = TokenTeacher.of(readout, inputs, self.settings.batch_size)
            self._token_teachers[id(inputs)] = made
        return self._token_teachers[id(inputs)]

    @property
    def said(self) -> Readout:
        """A readout that knows what the fine-tuned source's outputs are; to run it, use `running_tuned`."""
        return Readout(self.source.model if self.tuned.loaded is None else self.tuned.loaded)

    @property
    def task(self) -> Task:
        """What the fine-tuned source's outputs are."""
        return self.said.task

    def taught(self, inputs: Sequence[Any]) -> Tensor:
        """Return the fine-tuned source's outputs on other inputs; read once."""
        if id(inputs) not in self._teachers:
            with self.running_tuned() as readout:
                said = teach(readout, inputs, self.settings.batch_size)
            self._teachers[id(inputs)] = require_outputs(said)
        return self._teachers[id(inputs)]

    def prepare(self, method: TransportMethod) -> Prepared:
        """Return the statistics that a method needs, made once."""
        inner = body_of(method)
        own = self.matching_of(inner) is not self.matching  # identity alone may stand on another one
        needs = dataclasses.replace(inner.requirements, head=False, hidden=0.0)
        key = (needs, json.dumps(own_options(inner)), own)
        if key not in self._prepared:
            self._prepared[key] = collect_for(self, inner, self.calibration)
        return self._prepared[key]

    def matching_of(self, method: TransportMethod) -> Matching:
        """Return which sites a method moves between.

        Between relatives of other depth, `identity` moves every block's update to its near copy alone;
        `--depth nearest` and `skip` are obeyed.
        """
        deeper = any(there != here for there, here in self.matching.depths.values())
        if not (deeper and isinstance(method, Identity) and self.settings.depth == "interpolate"):
            return self.matching
        found = self.kinship()
        return found.matched(self.matching, self.source.model.sites) if found.related else self.matching

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
        return self.said.shares_outputs(Readout(self.target.model))

    def judge(self, *, carried: bool) -> tuple[Judge | TokenJudge, str]:
        """Return what scores a strength, and how: by validation labels, or by agreement on calibration
        inputs.
        """
        readout, own = Readout(self.target.model), self.own_head() and not carried
        if self.task in ("tokens", "language"):
            said = self.token_teacher(self.draws.calibration)
            return TokenJudge(readout, said, own, batch_size=self.settings.batch_size), "agreement"
        teacher = self.teacher
        outputs = require_outputs(teacher)
        labels = self.labels()
        if isinstance(labels, Tensor):
            assert self.draws.validation is not None
            fit = None if own else (self.draws.calibration, outputs)
            return Judge(readout, self.draws.validation, labels, teacher.task, own, fit), "validation"
        return Judge(readout, self.draws.calibration, outputs, teacher.task, own), "agreement"

    def labels(self) -> Tensor | str | None:
        """Return the labels that choose a strength, or why those of the data cannot; None without any."""
        if not self.settings.validation or self.settings.strength != "auto":
            return None
        return validation_labels(self.draws, self.said)

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
            progress=self.progress,
        )
        if 0.0 in dict(choice.curve):
            self._untouched[carried] = dict(choice.curve)[0.0]
        return choice

    def run(self, method: str | TransportMethod = "auto", *, keep: Any = None) -> Result:
        """Move with one method, or with the best of several."""
        if isinstance(method, str) and method != "auto":
            method = build_method("transport", method)
        check_request(self, method, keep)
        if isinstance(method, str):
            from transship.verbs.transport.auto import choose_method

            return choose_method(self, keep)
        moved, choice = self.move_and_choose(method)
        head = self.head(method, moved, choice, keep) if isinstance(method, Carry) else None
        return self.result(method, moved, choice, head)

    def move_and_choose(self, method: TransportMethod) -> tuple[Moved, Choice]:
        """Return the moved update and its strength; in parts, where path steps are asked for."""
        if self.settings.path_steps > 1 and not (isinstance(method, Carry) and method.body == "none"):
            from transship.verbs.transport.path import move_along_path

            return move_along_path(self, method)
        moved = self.move(method)
        return moved, self.strength(moved, carried=isinstance(method, Carry))

    def head(self, method: Carry, moved: Moved, choice: Choice, keep: Any = None) -> CarriedHead:
        """Fit the head on the transported target."""
        readout = Readout(self.target.model)
        kept = None
        if keep is not None:
            settings = self.settings
            kept = draw_kept(keep, settings.head_inputs, settings.batch_size, settings.seed)
        known = self.taught(self.draws.head) if self.task in ("classes", "values") else None
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

    def kinship(self) -> Kinship:
        """Return how alike the two base models' weights are; compared once."""
        if self._kinship is None:
            self._kinship = kinship(self.source.model, self.target.model)
        return self._kinship

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
                and getattr(self.settings, field.name) != ()
            },
            "roles": dataclasses.asdict(self.settings.roles),
            "strength": choice.strength,
        }
        inputs = [
            Input(role, one.name, one.fingerprint())
            for role, one in (("source", self.source), ("tuned", self.tuned), ("target", self.target))
        ]
        inputs.append(Input("data", self.draws.name, self.draws.fingerprint))
        notes = [*notes, *self._asides(moved, choice, head)]
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

    def _asides(self, moved: Moved, choice: Choice, head: CarriedHead | None) -> Iterator[str]:
        """What a user should be told beside the figures."""
        labels = self.labels()
        if isinstance(labels, str) and choice.curve:
            yield f"the labels of {self.draws.name} chose nothing: {labels}"
        if self.update.adapter and (head is not None or not moved.factors):
            why = "of its new head" if head is not None else "what was moved has no low rank"
            yield f"the adapter becomes a whole model, because {why}"

    def forget(self) -> None:
        """Remove the saved statistics."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
