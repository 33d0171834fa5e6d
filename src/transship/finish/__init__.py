"""Teach a student on unlabelled inputs what a model that knows says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transship.doors import door

if TYPE_CHECKING:
    from transship.finish.cost import FinishCost, estimate
    from transship.finish.learn import Finished, finish
    from transship.finish.lessons import (
        Lesson,
        divergence,
        divergence_of_likely,
        most_likely,
        neighbours,
        squared_error,
    )
    from transship.finish.movables import Factored, Movable, Strengths, Weights, fresh_factors
    from transship.finish.outputs import kept_outputs
    from transship.finish.settings import Finish
else:
    __getattr__, __dir__ = door(__name__)

__all__ = [
    "Factored",
    "Finish",
    "FinishCost",
    "Finished",
    "Lesson",
    "Movable",
    "Strengths",
    "Weights",
    "divergence",
    "divergence_of_likely",
    "estimate",
    "finish",
    "fresh_factors",
    "kept_outputs",
    "most_likely",
    "neighbours",
    "squared_error",
]
