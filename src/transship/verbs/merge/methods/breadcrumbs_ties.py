"""Model Breadcrumbs: drop outliers and small entries, with sign election."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.merge.methods.breadcrumbs import Breadcrumbs


@dataclass(frozen=True, kw_only=True)
class BreadcrumbsTies(Breadcrumbs):
    """Drop the largest and the smallest entries of each update, and merge those of the elected sign.

    Davari and Belilovsky, "Model Breadcrumbs: Scaling Multi-Task Model Merging with Sparse Masks", with
    TIES' election.
    """

    elect: ClassVar[bool] = True
