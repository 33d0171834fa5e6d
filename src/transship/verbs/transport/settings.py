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
from dataclasses import dataclass, fields
from typing import Any, Literal

from transship.errors import OptionError
from transship.fields import setting, unknown
from transship.types import Align, Depth

# 0 first: a transport that helps nobody leaves the target alone
GRID: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
TEMPLATES: tuple[str, ...] = ("a photo of a {}.",)
MoveOrKeep = Literal["move", "keep"]


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
    tokens: MoveOrKeep = "move"
    positions: MoveOrKeep = "move"
    special: MoveOrKeep = "move"
    patches: MoveOrKeep = "move"
    relative: MoveOrKeep = "move"
    head: MoveOrKeep = "move"

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
    """Everything that a transport can be told, apart from its models, data and method.

    Attributes:
        strength: the factor on the update: a number, or `auto`, which tries several.
        batches: number of batches of inputs that maps are fitted on.
        batch_size: inputs in a batch.
        shots: fit maps on this many labelled inputs of each class, instead of batches.
        path_steps: move the update in this many parts, and fit the maps again between them.
        head_inputs: number of inputs that a carried head is fitted on.
        depth: how blocks correspond where the models have different depths.
        align: how the tokens of both models correspond.
        tokens_per_input: use this many tokens of an input at most, or all (0); by default the widths decide.
        roles: what happens to norms, embeddings and heads.
        grid: strengths that `auto` tries.
        validation: whether labels may choose the strength; otherwise agreement with the fine-tuned source
            does.
        classes: names of CLIP's classes: every model then gets a zero-shot head through its own text tower.
        templates: a sentence about a class, with {} for its name; may be given several times.
        budget: for `--method auto`: minutes that comparing and the finish may take. What there is no time for
            is left out.
        finish: a short training without labels, on the answers of the fine-tuned source: none, tensor, row or
            weights, with :STEPS for its length. auto: weights where the method is auto.
        keep_weight: weight of the inputs of --keep in a finish; those of the task have 1.
        seed: fixes every random choice.
    """

    strength: float | str = "auto"
    batches: int = 10
    batch_size: int = 32
    shots: int | None = None
    path_steps: int = 1
    head_inputs: int = 1000
    depth: Depth = "interpolate"
    align: Align = "auto"
    tokens_per_input: int | None = None
    roles: Roles = setting(Roles, absent=True)
    grid: tuple[float, ...] = setting(GRID, absent=True)
    validation: bool = setting(
        True, negative="--unlabelled", help="Choose the strength without labels, even if DATA has some."
    )
    classes: tuple[str, ...] = setting((), absent=True)
    templates: tuple[str, ...] = setting((), flags=("--template",), metavar="TEXT")
    budget: float | None = setting(None, metavar="MINUTES")
    finish: str = setting("auto", metavar="KIND[:STEPS]")
    keep_weight: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        strength = self.strength
        if isinstance(strength, str) and strength != "auto":
            raise OptionError(f"'{strength}' is no strength", where="--strength", fix="give a number or auto")
        if not isinstance(strength, str) and not math.isfinite(strength):
            raise OptionError(f"the strength is {strength}", where="--strength", fix="give a finite number")
        for name, what, least, fix in (
            ("tokens_per_input", "tokens per input", 0, "give 0 for all"),
            ("head_inputs", "inputs", 1, "give 1 or more"),
            ("path_steps", "path steps", 1, "give 1 or more"),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise OptionError(f"{value} {what}", where=f"--{name.replace('_', '-')}", fix=fix)
        if self.budget is not None and not 0 < self.budget < math.inf:
            raise OptionError(f"{self.budget:g} minutes", where="--budget", fix="give a number above 0")
        if self.classes or self.templates:
            self._check_classes()

    @property
    def phrases(self) -> tuple[str, ...]:
        """What is said of a class: the templates, or the usual one."""
        return tuple(self.templates) or TEMPLATES

    def _check_classes(self) -> None:
        if len(set(self.classes)) < max(2, len(self.classes)):
            raise OptionError(
                "a zero-shot head needs two names or more, each once",
                where="--classes",
                fix="give one name per line",
            )
        for phrase in self.phrases:
            if "{}" not in phrase:
                raise OptionError(
                    f"'{phrase}' has no {{}} for the class's name",
                    where="--template",
                    fix=f"write it like '{TEMPLATES[0]}'",
                )


@dataclass(frozen=True, kw_only=True)
class Opening:
    """How models are opened.

    Attributes:
        device: where models run: cpu, cuda, cuda:1, mps; auto is a GPU of CUDA where there is one.
        device_map: how they are spread over devices instead; see `load_model`.
        dtype: the dtype they run in.
        trust_remote_code: run code that a model's repository carries.
        allow_pickle: read .bin files too.
        preprocess: for modules: raw inputs → the model's arguments.
    """

    device: str = "auto"
    device_map: Any = None
    dtype: str | None = None
    trust_remote_code: bool = False
    allow_pickle: bool = False
    preprocess: Any = None
