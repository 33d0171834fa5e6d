"""What a plan's tensors wait for: found out before anything is written, and only read afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transship.verbs.merge.maths.operands import Floats
from transship.verbs.merge.plan import MergePlan
from transship.verbs.merge.recipe.plan.steps import Step, scaled
from transship.verbs.merge.recipe.read.reference import ModelReference


@dataclass(frozen=True)
class WeightsFound:
    """The result of `weights: auto`.

    Attributes:
        factors: of each model's weight.
        loss: at these factors.
        start: the loss of the recipe as it was.
        trials: merges that were tried.
    """

    factors: tuple[float, ...]
    loss: float
    start: float
    trials: int


@dataclass(frozen=True, eq=False)
class FittedHead:
    """A task's last Linear, fitted to the merged features.

    Attributes:
        tensors: output tensor → its values.
        before: share of the inputs that the merged model with the task's own head answers as the task's own
            model does; NaN for heads that give values, not classes.
        after: the same with the fitted head, on the inputs that it was fitted on.
    """

    tensors: dict[str, Floats]
    before: float
    after: float


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything that is found out for a plan from weights and data.

    Attributes:
        survey: what the method knows of the whole model, or has learnt.
        weights: what `weights: auto` found; None where the recipe gives the weights.
        heads: those that are fitted to the merged model, by model.
        inner: the same for the recipes whose outputs are models of this one, by their names in it.
    """

    survey: Any = None
    weights: WeightsFound | None = None
    heads: Mapping[ModelReference, FittedHead] = field(default_factory=dict)
    inner: Mapping[str, Prepared] = field(default_factory=dict)

    def weighted(self, step: Step) -> Step:
        """Return a step with the weights that were found, or with its own."""
        return step if self.weights is None else scaled(step, self.weights.factors)

    def as_dict(self, plan: MergePlan) -> dict[str, Any]:
        """Return what the recipe left open: the weights that were searched for, and how far they brought the
        loss down; how often the merged model answers as each task's own one, with that one's head and with
        the fitted one.
        """
        heads = {
            str(reference): {"own": round(head.before, 4), plan.recipe.heads: round(head.after, 4)}
            for reference, head in self.heads.items()
        }
        agreement = {"agreement": heads} if heads else {}
        if self.weights is None:
            return agreement
        step = self.weighted(next(step for step in plan.steps if step.method is not None))
        weights = {
            str(operand.reference): round(float(weight), 6)
            for operand, weight in zip(step.inputs, step.values["weight"], strict=True)
        }
        losses = {"start": self.weights.start, "end": self.weights.loss, "trials": self.weights.trials}
        return {"weights": weights, "search": losses, **agreement}
