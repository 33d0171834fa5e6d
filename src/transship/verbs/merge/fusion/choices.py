"""What a user chooses once, when a fusion starts: method, heads, kept inputs, strength; checked together."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transship.errors import OptionError
from transship.registry import method_name, parse_fields
from transship.verbs.merge.protocol import ContinualMethod, continual_method, parameters_of
from transship.verbs.merge.tasks.heads import LABELLED, HeadKind, HeadSettings, head_kinds

# The strength that `auto` recommends. Where inputs are kept and heads refitted, the average at the length of
# the updates is worth as much as OPCM, depends on no order, and lets models leave again. Where heads are
# fitted once, every later move costs more than strength brings.
RECOMMENDED = "average"
STRENGTH: dict[bool, float | str] = {True: "norm", False: 1.0}


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

    @property
    def options(self) -> dict[str, Any]:
        """The method's parameters."""
        return {name: getattr(self.method, name) for name in parameters_of(type(self.method), "fusion")}

    def as_dict(self) -> dict[str, Any]:
        """Return the arguments that `choose` takes, as plain data."""
        return {
            "method": self.method_name,
            "options": self.options,
            "heads": list(self.heads),
            "head_options": dataclasses.asdict(self.head_settings),
            "keep_inputs": self.keep_inputs,
            "strength": self.strength,
            "evaluate": self.evaluate,
            "seed": self.seed,
            "batch_size": self.batch_size,
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
    kinds = head_kinds(heads, kept=kept)
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
