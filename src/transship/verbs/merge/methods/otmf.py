"""OTMF on a list of models: the continual method, folded over them in the given order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from transship.errors import OptionError
from transship.verbs.merge.methods._learned import LearnedMethod, Occasion, fold

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Otmf(LearnedMethod):
    """Mix updates one after another under masks that align the features with both models by transport.

    Pan et al., "Merging without Forgetting", Algorithm 1, over the models in the recipe's order; `merge start
    --method otmf` is the same for models that arrive over time. The order matters.

    Attributes:
        alpha: the share of what was merged before; `running` takes (t − 1)/t.
        iterations: of both masks together, for each model after the first.
        learning_rate: of the two Adam optimisers.
        granularity: one mask number per `entry` (the paper), per `row` or per `tensor`.
        loss: `sinkhorn` compares batches as sets; `paired` compares each input's two features.
        epsilon: the blur, as a share of the mean cost.
        batch_size: inputs per iteration.
    """

    paper: ClassVar[str] = "Pan et al., 2025"
    copies: ClassVar[tuple[float, float]] = (12.0, 0.0)

    alpha: float | Literal["running"] = 0.8
    iterations: int = 100
    learning_rate: float = 0.01
    granularity: Literal["entry", "row", "tensor"] = "entry"
    loss: Literal["sinkhorn", "paired"] = "sinkhorn"
    epsilon: float = 0.05
    batch_size: int = 64

    def __post_init__(self) -> None:
        """Refuse shares outside [0, 1]."""
        if self.alpha != "running" and not 0 <= self.alpha <= 1:
            raise OptionError(f"alpha is {self.alpha}", where="otmf", fix="choose it from 0 to 1")

    def learn(self, occasion: Occasion) -> dict[str, Tensor]:
        """Return the merged vector after the last model."""
        from transship.verbs.merge.fusion.methods import otmf

        method = otmf.Otmf(
            alpha=self.alpha,
            iterations=self.iterations,
            learning_rate=self.learning_rate,
            granularity=self.granularity,
            loss=self.loss,
            epsilon=self.epsilon,
            batch_size=self.batch_size,
        )
        return fold(method, occasion)
