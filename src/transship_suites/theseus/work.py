"""Many transports of one plan: what was prepared for one method serves the next."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from transship.registry import build_method
from transship.verbs.transport import (
    Moved,
    Opening,
    Plan,
    Prepared,
    Request,
    Result,
    Settings,
    make_plan,
    prepare,
)
from transship.verbs.transport import apply as apply_method
from transship.verbs.transport.account import Choice
from transship.verbs.transport.auto import choose_method
from transship.verbs.transport.finishing import finish_with_control
from transship.verbs.transport.move import move
from transship.verbs.transport.protocol import TransportMethod
from transship.verbs.transport.rows import Draws, draw_kept
from transship.verbs.transport.runner import choose_strength, fit_head
from transship.verbs.transport.teacher import Teacher, teach
from transship.verbs.transport.weights import Kinship, kinship


def by_default(
    source: Any, tuned: Any, target: Any, data: Any, settings: Settings
) -> tuple[Result, Result | None]:
    """Return what `transport` gives without a method, and its finish's control where it finishes."""
    plan = make_plan(Request(source=source, tuned=tuned, target=target, data=data, settings=settings))
    result, prepared = choose_method(plan)
    return finish_with_control(plan, prepared, result)


@dataclass
class Work:
    """A planned transport, and what was prepared so far.

    Attributes:
        plan: the plan.
        prepared: what the last method read, and those before it.
    """

    plan: Plan
    prepared: Prepared | None = None

    @classmethod
    def open(
        cls, source: Any, tuned: Any, target: Any, data: Any, opening: Opening, settings: Settings
    ) -> Work:
        """Plan a transport of any method."""
        method = build_method("transport", "theseus")
        models = {"source": source, "tuned": tuned, "target": target, "method": method}
        return cls(make_plan(Request(data=data, opening=opening, settings=settings, **models)))

    @property
    def draws(self) -> Draws:
        return self.plan.draws

    @property
    def settings(self) -> Settings:
        return self.plan.settings

    def with_settings(self, **changed: Any) -> Work:
        """Return the same work with other settings that draw and match alike."""
        settings = dataclasses.replace(self.plan.settings, **changed)
        return Work(dataclasses.replace(self.plan, settings=settings), self.prepared)

    def ready(self, method: TransportMethod) -> Prepared:
        self.prepared = prepare(self.plan, method, known=self.prepared)
        return self.prepared

    def run(self, method: str | TransportMethod, *, keep: Any = None) -> Result:
        chosen: TransportMethod = build_method("transport", method) if isinstance(method, str) else method
        return apply_method(self._keeping(keep), self.ready(chosen), chosen)

    def _keeping(self, keep: Any) -> Plan:
        settings = self.plan.settings
        if keep is None:
            return self.plan
        kept = draw_kept(keep, settings.head_inputs, settings.batch_size, settings.seed)
        return dataclasses.replace(self.plan, kept=kept)

    def finish(self, result: Result, finish: str, *, keep: Any = None) -> tuple[Result, Result]:
        """Return what was moved last after a finish, and the finish's control."""
        assert self.prepared is not None
        plan = self.with_settings(finish=finish)._keeping(keep)
        finished, control = finish_with_control(plan, self.prepared, result)
        assert control is not None, "a finish of no steps has no control"
        return finished, control

    def with_head(self, result: Result, method: TransportMethod) -> Result:
        prepared = self.ready(method)
        head = fit_head(self.plan, prepared, method.needs.penalty, result.moved, result.strength)
        return dataclasses.replace(result, head=head)

    def move(self, method: TransportMethod) -> Moved:
        """Return the update that a method makes for the target."""
        return move(self.plan, self.ready(method).statistics, method)

    def strength(self, moved: Moved, *, carried: bool) -> Choice:
        assert self.prepared is not None
        return choose_strength(self.plan, self.prepared, moved, carried=carried)

    def kinship(self) -> Kinship:
        """Return how alike the two bases' weights are."""
        return kinship(self.plan.source.model, self.plan.target.model)

    @property
    def teacher(self) -> Teacher:
        """What the fine-tuned source says about the calibration inputs."""
        if self.prepared is not None and isinstance(self.prepared.teacher, Teacher):
            return self.prepared.teacher
        return self._teach(self.plan.draws.calibration)

    def taught(self, inputs: Sequence[Any]) -> Tensor:
        """Return the fine-tuned source's outputs."""
        return self._teach(inputs).outputs

    def _teach(self, inputs: Sequence[Any]) -> Teacher:
        with self.plan.running_tuned() as readout:
            teacher = teach(readout, inputs, self.plan.settings.batch_size)
        assert isinstance(teacher, Teacher)
        return teacher
