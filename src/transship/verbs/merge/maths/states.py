"""Vectors over a model's tensors, and states of such vectors that add up."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

# name of a backbone tensor → values: weights, or a change of weights
Vector = dict[str, Tensor]
# group → name → tensor; one file per group on disk, of a size that does not grow with the models
State = dict[str, Vector]


def numbers(**values: float) -> Vector:
    """Return a group of plain numbers for a State, in double precision."""
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


def norm(vector: Mapping[str, Tensor]) -> float:
    """Return the Euclidean norm over the whole model."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in vector.values()))


def combined(state: State, other: State, factor: float = 1.0) -> State:
    """Return state + factor · other, group by group; a model leaves with the factor −1."""
    return {
        group: {name: tensor + factor * other[group][name] for name, tensor in vector.items()}
        for group, vector in state.items()
        if group in other
    }
