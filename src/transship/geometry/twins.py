"""Rows that occur twice: they carry one row's worth of evidence, and none about each other.

A row is known again by two random projections of it, which need 8 bytes where the row has thousands. Rows of
one input differ by rounding when it is padded to different lengths, so projections count as equal that
differ by less than `NEAR` of their spread and `ROUNDING` of their size.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

PROJECTIONS = 2
NEAR, ROUNDING = 1e-5, 1e-6


def prints(rows: Float[Tensor, "rows width"]) -> Float[Tensor, "rows projections"]:
    """Return what a row is known again by: the same two projections wherever rows have this width."""
    drawn = torch.Generator().manual_seed(0)
    directions = torch.randn(rows.shape[1], PROJECTIONS, generator=drawn)
    return (rows @ directions.to(rows)).float().cpu()


def groups(marks: Float[Tensor, "rows projections"]) -> Int[Tensor, " rows"]:
    """Return the number of the group that each row belongs to, from 0; rows of one group are equal."""
    near = NEAR * marks.std(0, correction=0) + ROUNDING * marks.square().mean(0).sqrt()
    labels = torch.arange(len(marks))
    while True:
        before = labels
        for column in marks.T:
            # equal rows are neighbours in the order of one projection, but for a third row of chance between
            order = column.argsort(stable=True)
            apart = (marks[order].diff(dim=0).abs() > near).any(1)
            runs = torch.cat([apart.new_zeros(min(1, len(marks))), apart]).cumsum(0)
            least = labels.scatter_reduce(0, runs, labels[order], "amin", include_self=False)
            labels = labels.scatter(0, order, least[runs])
        labels = labels[labels]
        if torch.equal(labels, before):
            inverse: Tensor = torch.unique(labels, return_inverse=True)[1]
            return inverse


def distinct(marks: Float[Tensor, "rows projections"]) -> int:
    """Return how many different rows there are."""
    return int(groups(marks).max()) + 1 if len(marks) else 0
