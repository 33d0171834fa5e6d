"""Everything that a transport can be told beside its models, data and method."""

import math
from dataclasses import dataclass, field

from transship.activations.match import Depth
from transship.activations.tokens import Align
from transship.errors import OptionError
from transship.verbs.transport.judge import GRID
from transship.verbs.transport.roles import Roles
from transship.verbs.transport.zero_shot import TEMPLATES


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that a transport can be told beside its models, data and method.

    Attributes:
        strength: a number, or `auto`.
        batches: B calibration batches of `batch_size` unlabelled inputs.
        batch_size: inputs per batch.
        shots: K labelled examples per class instead of batches.
        head_inputs: inputs that a carried head is fitted on.
        path_steps: the update is moved in so many parts, maps re-estimated between.
        depth: what stands for a target block: interpolate, nearest or skip.
        align: how tokens correspond.
        tokens_per_input: at most so many tokens per input; None chooses by the widths, 0 takes all.
        roles: what happens to norms, embeddings and heads.
        grid: strengths that `auto` tries.
        validation: whether labels may choose the strength; otherwise agreement with the fine-tuned source
            does.
        classes: names of CLIP's classes: every model then gets a zero-shot head through its own text tower.
        templates: what is said of a class, with {} for its name.
        seed: fixes every random choice.
    """

    strength: float | str = "auto"
    batches: int = 10
    batch_size: int = 32
    shots: int | None = None
    head_inputs: int = 1000
    path_steps: int = 1
    depth: Depth = "interpolate"
    align: Align = "auto"
    tokens_per_input: int | None = None
    roles: Roles = field(default_factory=Roles)
    grid: tuple[float, ...] = GRID
    validation: bool = True
    classes: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.strength, str) and self.strength != "auto":
            raise OptionError(
                f"'{self.strength}' is no strength", where="--strength", fix="give a number or auto"
            )
        if not isinstance(self.strength, str) and not math.isfinite(self.strength):
            raise OptionError(
                f"the strength is {self.strength}", where="--strength", fix="give a finite number"
            )
        if self.tokens_per_input is not None and self.tokens_per_input < 0:
            raise OptionError(
                f"{self.tokens_per_input} tokens per input", where="--tokens-per-input", fix="give 0 for all"
            )
        if self.head_inputs < 1:
            raise OptionError(f"{self.head_inputs} inputs", where="--head-inputs", fix="give 1 or more")
        if self.path_steps < 1:
            raise OptionError(f"{self.path_steps} path steps", where="--path-steps", fix="give 1 or more")
        if self.classes or self.templates:
            self._check_classes()

    def _check_classes(self) -> None:
        names, templates = tuple(self.classes), tuple(self.templates) or TEMPLATES
        if len(set(names)) < max(2, len(names)):
            raise OptionError(
                "a zero-shot head needs two names or more, each once",
                where="--classes",
                fix="give one name per line",
            )
        for template in templates:
            if "{}" not in template:
                raise OptionError(
                    f"'{template}' has no {{}} for the class's name",
                    where="--template",
                    fix=f"write it like '{TEMPLATES[0]}'",
                )
        object.__setattr__(self, "classes", names)
        object.__setattr__(self, "templates", templates)
