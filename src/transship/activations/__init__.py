"""Weights at work: models that run, their sites, and Moments of two models over the same inputs."""

from transship.activations.collect import collect
from transship.activations.collected import CollectedMoments, Entry, Skipped
from transship.activations.compare import Comparison, Residual, StackComparison, compare
from transship.activations.features import features, iter_features
from transship.activations.functional import FunctionalModel
from transship.activations.match import Matching, SitePair, Unmatched, block_weights, match_sites
from transship.activations.models import Batch, LoadedModel, load_model
from transship.activations.names import parameter_names
from transship.activations.readout import Reading, Readout
from transship.activations.sites import (
    Part,
    Site,
    find_sites,
    fuse,
    fused_groups,
    read_bias,
    read_weight,
    split_fused,
    write_bias,
    write_weight,
)
from transship.activations.tokens import ALIGNMENTS, Alignment, RowOperator, TokenLayout, align_tokens

__all__ = [
    "ALIGNMENTS",
    "Alignment",
    "Batch",
    "CollectedMoments",
    "Comparison",
    "Entry",
    "FunctionalModel",
    "LoadedModel",
    "Matching",
    "Part",
    "Reading",
    "Readout",
    "Residual",
    "RowOperator",
    "Site",
    "SitePair",
    "Skipped",
    "StackComparison",
    "TokenLayout",
    "Unmatched",
    "align_tokens",
    "block_weights",
    "collect",
    "compare",
    "features",
    "find_sites",
    "fuse",
    "fused_groups",
    "iter_features",
    "load_model",
    "match_sites",
    "parameter_names",
    "read_bias",
    "read_weight",
    "split_fused",
    "write_bias",
    "write_weight",
]
