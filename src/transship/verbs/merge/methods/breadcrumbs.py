"""Model Breadcrumbs: drop outliers and small entries."""

from __future__ import annotations

from dataclasses import dataclass

from transship.verbs.merge.methods._breadcrumbs import Masked


@dataclass(frozen=True, kw_only=True)
class Breadcrumbs(Masked):
    """Drop the largest and the smallest entries of each update, and add the rest.

    Davari and Belilovsky, "Model Breadcrumbs: Scaling Multi-Task Model Merging with Sparse Masks".
    """
