"""RECRAFT."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from jaxtyping import Float
from torch import Tensor

from transship.verbs.adapt.methods.fa import FeatureAlignment, alignment, places_along
from transship.verbs.adapt.train.losses import LabelTable
from transship.verbs.adapt.train.problem import PAPER, AdaptMethod, Index, LearningProblem, Objective, Phase


@dataclass(frozen=True, kw_only=True)
class RecraftMethod(AdaptMethod):
    """Minimise feature alignment and feature-label distortion over the embedder, then fit the target.

    Stage 1: FA (ω·W₁, Eq. 14), then FLD (H[Z'|Z], Eq. 20) with the source frozen, as in Algorithm 1; or both
    in one sum, Eq. (22). The embedder of the FLD phase is the one on which a held-out probe errs
    least, and that of FA when FLD does not fall or the probe gets worse. Stage 2: the target loss, Eq. (24).

    Attributes:
        objective_order: `sequence` is Algorithm 1, `sum` is Eq. (22).
        fa_steps: steps of alignment (the paper's epochs: one step each).
        fa_rate: Adam's learning rate of the alignment.
        fa_batch: target rows against all source features.
        fld_steps: steps of FLD; the paper's 2 to 4 epochs assume tens of thousands of samples.
        fld_rate: Adam's learning rate of FLD.
        fld_batch: rows per step of FLD.
        keep: how much of ω·W₁ stays in the loss while FLD is minimised.
        select: choose the embedder of the FLD phase on held-out rows; otherwise it is the last one.
    """

    paper: ClassVar[str] = PAPER
    needs_source: ClassVar[bool] = True
    uses_omega: ClassVar[bool] = True
    objective_order: Literal["sequence", "sum"] = "sequence"
    fa_steps: int = 60
    fa_rate: float = 3e-3
    fa_batch: int = 128
    fld_steps: int = 48
    fld_rate: float = 1e-3
    fld_batch: int = 32
    keep: float = 0.0
    select: bool = True

    def phases(self) -> Sequence[Phase]:
        if self.objective_order == "sum":
            both = partial(LabelDistortion, alignment=1.0)
            steps = self.fa_steps + self.fld_steps
            return [Phase("fa+fld", steps, self.fld_rate, self.fld_batch, both, select=self.select)]
        distortion = partial(LabelDistortion, alignment=self.keep)
        return [
            alignment(self.fa_steps, self.fa_rate, self.fa_batch),
            Phase("fld", self.fld_steps, self.fld_rate, self.fld_batch, distortion, select=self.select),
        ]

    def path(self, points: int) -> Sequence[tuple[dict[str, Any], str]]:
        """Return FA, and then FLD without a choice among its embedders, that end earlier."""
        first, second = self.fa_steps, self.fld_steps
        places = places_along(points, first, second, apart=self.objective_order == "sequence")
        return [
            ({"fa_steps": min(place, first), "fld_steps": max(0, place - first), "select": False}, name)
            for place, name in places
        ]


class LabelDistortion(Objective):
    """H[Z'|Z] by the soft joint table, Eqs. (18)–(21); with `alignment` beside it, Eq. (22).

    The source (body and head) is frozen; the gradient flows through it into φ.
    """

    def __init__(
        self, problem: LearningProblem, *, alignment: float = 0.0, decay: float = 0.8, most: int = 2048
    ) -> None:
        super().__init__(problem)
        self.table = LabelTable(problem.train.codes, problem.classes, decay=decay, most=most)
        index = problem.draw(most, "table")
        self.table.fill(problem.views(problem.train, index).source, index)
        self.beside = FeatureAlignment(problem, alignment) if alignment > 0 else None

    def loss(self, index: Index, step: int, steps: int) -> Float[Tensor, ""]:
        """Return the batch's share of FLD, with ω·W₁ beside it where asked for."""
        tokens = self.problem.embedded(index)
        loss = self.table.loss(self.problem.source_probabilities(tokens).float().cpu(), index)
        return loss if self.beside is None else loss + self.beside.of(tokens).to(loss.device)

    def state(self) -> dict[str, Tensor]:
        beside = {} if self.beside is None else self.beside.state()
        return self.table.state() | {f"beside.{name}": value for name, value in beside.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        self.table.load(state)
        if self.beside is not None:
            self.beside.load({name.removeprefix("beside."): value for name, value in state.items()})
