"""Pure tensor maths: Moments, maps fitted from them, transport between point sets, similarity and metrics."""

from transship.geometry.costs import Cost, cost_matrix
from transship.geometry.fits import (
    Canonical,
    affine,
    cca,
    linear,
    output_matching,
    procrustes,
    pseudo_inverse,
    tikhonov,
)
from transship.geometry.maps import LinearMap
from transship.geometry.metrics import (
    accuracy,
    balanced_accuracy,
    cosine,
    ndcg_at,
    pearson,
    recall_at,
    reciprocal_rank,
    relative_error,
    spearman,
    top_k,
    twin_recall,
)
from transship.geometry.moments import Moments, load_moments, save_moments
from transship.geometry.ridge import LeaveOneOut, gcv, ridge, ridge_loo, ridge_of
from transship.geometry.similarity import CkaAccumulator, alignment_residual, cka, procrustes_distance
from transship.geometry.sinkhorn import (
    Divergence,
    ExactTransport,
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
    "Divergence",
    "ExactTransport",
    "LeaveOneOut",
    "LinearMap",
    "Moments",
    "Polar",
    "Transport",
    "accuracy",
    "affine",
    "alignment_residual",
    "balanced_accuracy",
    "cca",
    "cka",
    "cosine",
    "cost_matrix",
    "gcv",
    "linear",
    "load_moments",
    "ndcg_at",
    "output_matching",
    "pearson",
    "polar",
    "procrustes",
    "procrustes_distance",
    "pseudo_inverse",
    "recall_at",
    "reciprocal_rank",
    "relative_error",
    "ridge",
    "ridge_loo",
    "ridge_of",
    "save_moments",
    "sinkhorn",
    "sinkhorn_cost",
    "sinkhorn_divergence",
    "spearman",
    "tikhonov",
    "top_k",
    "twin_recall",
    "wasserstein_exact",
]
