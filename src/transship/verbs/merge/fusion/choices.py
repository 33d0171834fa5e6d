"""What a user chooses once, when a fusion starts: method, heads, kept inputs, strength; checked together."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transship.errors import OptionError
from transship.finish import Finish
from transship.registry import method_name, parse_fields
from transship.verbs.merge.protocol import ContinualMethod, continual_method, parameters_of
from transship.verbs.merge.tasks.heads import FINISHED, LABELLED, HeadKind, HeadSettings, head_kinds

# The strength that `auto` recommends. Where inputs are kept and heads refitted, the average at the length of
# the updates is worth as much as OPCM, depends on no order, and lets models leave again. Where heads are
# fitted once, every later move costs more than strength brings.
RECOMMENDED = "average"
STRENGTH: dict[bool, float | str] = {True: "norm", False: 1.0}
# Steps of a finish for each task that is in, and how many tasks a step takes in turn: all of eight tasks in
# each step learn no more than two, at four times the cost.
STEPS_PER_TASK, TASKS_PER_STEP = 200, 2
HELD_OUT = 0.1


@dataclass(frozen=True, eq=False)
class Choices:
    """A fusion's settings.

    Attributes:
        method_name: as the registry has it.
        method: with its parameters.
        heads: kinds of head; predictions and saved models use the first.
        head_settings: how heads are fitted.
        keep_inputs: how many inputs of each task may be kept; None for all.
        strength: a number, `norm` or `validation`.
        evaluate: whether accuracies and moved features are measured after every step.
        seed: of every random choice.
        batch_size: inputs per forward pass.
        finish: `none`, `weights` or `weights:STEPS`.
    """

    method_name: str
    method: ContinualMethod
    heads: tuple[HeadKind, ...]
    head_settings: HeadSettings
    keep_inputs: int | None
    strength: float | str
    evaluate: bool
    seed: int
    batch_size: int
    finish: str = "none"

    @property
    def start(self) -> HeadKind:
        """The kind of head that a finish starts from, and the first one without a finish."""
        return next(kind for kind in self.heads if kind != FINISHED)

    @property
    def answering(self) -> tuple[HeadKind, ...]:
        """The kinds that predictions use: the first that a task has of them, else its own head."""
        return (FINISHED, self.start) if FINISHED in self.heads else (self.start,)

    def finishing(self, tasks: int) -> Finish:
        """Return how merged backbone and heads of so many tasks are finished."""
        asked = Finish.parse(self.finish, seed=self.seed)
        steps = asked.steps if ":" in self.finish or not asked.steps else STEPS_PER_TASK * tasks
        return dataclasses.replace(asked, steps=steps, lessons=TASKS_PER_STEP, held_out=HELD_OUT)

    @property
    def options(self) -> dict[str, Any]:
        """The method's parameters."""
        return {name: getattr(self.method, name) for name in parameters_of(type(self.method), "fusion")}

    def as_dict(self) -> dict[str, Any]:
        """Return the arguments that `choose` takes, as plain data."""
        return {
            "method": self.method_name,
            "options": self.options,
            "heads": [kind for kind in self.heads if kind != FINISHED],
            "head_options": dataclasses.asdict(self.head_settings),
            "keep_inputs": self.keep_inputs,
            "strength": self.strength,
            "evaluate": self.evaluate,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "finish": self.finish,
        }


def choose(
    method: str | ContinualMethod,
    *,
    options: Mapping[str, Any] | None,
    heads: str | Sequence[str],
    head_options: Mapping[str, Any] | HeadSettings | None,
    keep_inputs: int | None,
    strength: float | str,
    evaluate: bool,
    seed: int,
    batch_size: int,
    finish: str = "auto",
) -> Choices:
    """Return the settings, or say in one sentence what does not fit together."""
    if keep_inputs is not None and keep_inputs < 0:
        raise OptionError(f"{keep_inputs} inputs", where="--keep-inputs", fix="give 0 or more")
    kept = keep_inputs is None or keep_inputs > 0
    if isinstance(method, str):
        name = RECOMMENDED if method == "auto" else method
        chosen = continual_method(name, options)
    else:
        name, chosen = method_name(type(method)), method
    if finish == "auto":
        finish = "none"  # some hundred times the cost of a merge: who wants it asks for it
    _check_finish(finish, kept=kept)
    kinds = head_kinds(heads, kept=kept)
    if finish != "none":
        kinds = (FINISHED, *kinds)
    if strength == "auto":
        strength = STRENGTH[kept and method == "auto"]
    if not kept:
        _need_none_kept(name, chosen, bool(LABELLED & set(kinds)), strength)
    return Choices(
        name,
        chosen,
        kinds,
        _settings(head_options),
        keep_inputs,
        _strength(strength),
        evaluate,
        seed,
        batch_size,
        finish,
    )


def _need_none_kept(name: str, method: ContinualMethod, labelled: bool, strength: float | str) -> None:
    """Refuse what reads earlier tasks when nothing of them may be kept."""
    needs = [
        (method.replay, f"{name} reads inputs of the task before each new one", "another --method"),
        (labelled, "heads are tuned on rows of an earlier task", "--heads carried-once"),
        (strength == "validation", "a strength is validated on inputs of all tasks", "--strength norm"),
    ]
    for needed, what, instead in needs:
        if needed:
            raise OptionError(
                f"{what}, and none are kept",
                where="--keep-inputs",
                fix=f"allow some, for example --keep-inputs 256, or choose {instead}",
            )


def _check_finish(finish: str, *, kept: bool) -> None:
    """Refuse a finish that is none, or has nothing to learn from."""
    moves = Finish.parse(finish).moves
    if moves not in ("none", "weights"):
        raise OptionError(
            f"the strengths of one merged vector say nothing of its tasks, so '{moves}' moves too little",
            where="--finish",
            fix="choose weights or none",
        )
    if moves == "weights" and not kept:
        raise OptionError(
            "a finish learns what every task's own model says of inputs, and none are kept",
            where="--finish",
            fix="allow some, for example --keep-inputs 256, or choose none",
        )


def _strength(given: float | str) -> float | str:
    if given in ("norm", "validation"):
        return given
    try:
        number = float(given)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise OptionError(
            f"'{given}' is no strength", where="--strength", fix="give a number, auto, norm or validation"
        )
    return number


def _settings(given: Mapping[str, Any] | HeadSettings | None) -> HeadSettings:
    if isinstance(given, HeadSettings):
        return given
    return HeadSettings(**parse_fields(HeadSettings, given or {}, where="--head-option"))
