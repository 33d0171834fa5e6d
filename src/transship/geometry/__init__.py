"""Pure tensor maths: Moments, maps fitted from them, transport between point sets, similarity and metrics."""

from transship.geometry.costs import Cost, cost_matrix
from transship.geometry.fits import (
    Canonical,
    affine,
    cca,
    linear,
    procrustes,
    tikhonov,
)
from transship.geometry.maps import LinearMap
from transship.geometry.metrics import (
    accuracy,
    pearson,
    spearman,
    twin_recall,
)
from transship.geometry.moments import Moments, load_moments, save_moments
from transship.geometry.ridge import LeaveOneOut, gcv, ridge, ridge_loo, ridge_of
from transship.geometry.similarity import CkaAccumulator, cka
from transship.geometry.sinkhorn import (
    Transport,
    sinkhorn,
    sinkhorn_cost,
    sinkhorn_divergence,
    wasserstein_exact,
)
from transship.geometry.spectral import Polar, polar

__all__ = [
    "Canonical",
    "CkaAccumulator",
    "Cost",
    "LeaveOneOut",
    "LinearMap",
    "Moments",
    "Polar",
    "Transport",
    "accuracy",
    "affine",
    "cca",
    "cka",
    "cost_matrix",
    "gcv",
    "linear",
    "load_moments",
    "pearson",
    "polar",
    "procrustes",
    "ridge",
    "ridge_loo",
    "ridge_of",
    "save_moments",
    "sinkhorn",
    "sinkhorn_cost",
    "sinkhorn_divergence",
    "spearman",
    "tikhonov",
    "twin_recall",
    "wasserstein_exact",
]
