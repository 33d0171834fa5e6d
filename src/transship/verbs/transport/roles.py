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

from dataclasses import dataclass, fields
from typing import Any, Literal

from transship.errors import OptionError
from transship.registry import unknown

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
