"""What happens to the parts of a model that are no plain linear map: one explicit choice per role.

| role | the choice | what the paper (or its released code) does | kept instead: theseus-width loses |
|---|---|---|---|
| norm gains | `vector`: Tᵀδγ; `diagonal`: diag(Tᵀ diag(δγ) T); `keep` | `vector` | nothing |
| norm shifts | Tᵀδβ, with the gains | the same | – |
| token embeddings | `move`: δE_B[v] = δE_A[v] T for strings in both vocabularies; `keep` | keep | – |
| positions, token types | `move`: resampled, then T; `keep` | keep | 3 to 4 points |
| class, register and mask tokens | `move`: δ T; `keep` | keep | nothing |
| patch embedding | `move`: kernels resampled by pseudo-inverse, then T; `keep` | keep | 2 to 4 points |
| relative attention bias | `move`: heads mixed as the query map mixes them; `keep` | keep | – |
| head | `move`: δW T where both heads speak of the same classes; `keep` | keep | – |

T is the map of the residual stream that enters the first block. The default moves everything that can be
moved, so that one model gets its own update back and a permuted twin the permuted one; `PAPER` is the
paper's choice.
"""

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from transship.activations.match import Depth
from transship.activations.tokens import Align
from transship.errors import OptionError
from transship.registry import unknown

# 0 first: a transport that helps nobody leaves the target alone
GRID: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
TEMPLATES: tuple[str, ...] = ("a photo of a {}.",)
Choice = Literal["move", "keep"]


@dataclass(frozen=True, kw_only=True)
class Roles:
    """One choice per role; see the module's table.

    Attributes:
        norms: vector, diagonal or keep.
        tokens: of the token embedding, and of an untied language head.
        positions: of position and token-type embeddings.
        special: of class, register and mask tokens.
        patches: of the patch embedding.
        relative: of relative attention biases.
        head: of the task head.
    """

    norms: Literal["vector", "diagonal", "keep"] = "vector"
    tokens: Choice = "move"
    positions: Choice = "move"
    special: Choice = "move"
    patches: Choice = "move"
    relative: Choice = "move"
    head: Choice = "move"

    @classmethod
    def parse(cls, given: "Roles | str | dict[str, str]") -> "Roles":
        """Return the choices of `all`, `paper`, or a mapping of roles to choices on top of `all`."""
        if isinstance(given, Roles):
            return given
        if isinstance(given, str):
            if given not in ("all", "paper"):
                raise unknown(given, ("all", "paper"), kind="set of roles", where="roles")
            return PAPER if given == "paper" else cls()
        known = {field.name for field in fields(cls)}
        choices: dict[str, Any] = {}
        for role, choice in given.items():
            if role not in known:
                raise unknown(role, known, kind="role", where="roles")
            allowed = ("vector", "diagonal", "keep") if role == "norms" else ("move", "keep")
            if choice not in allowed:
                raise OptionError(
                    f"'{choice}' is no choice", where=f"roles: {role}", fix=f"give {' or '.join(allowed)}"
                )
            choices[role] = choice
        return cls(**choices)


PAPER = Roles(tokens="keep", positions="keep", special="keep", patches="keep", relative="keep", head="keep")


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
