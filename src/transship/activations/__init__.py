"""Weights at work: models that run, their sites, and Moments of two models over the same inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transship.doors import door

if TYPE_CHECKING:
    from transship.activations.batches import longest
    from transship.activations.collected import CollectedMoments, collect
    from transship.activations.comparison import (
        Comparison,
        Residual,
        StackComparison,
        compare,
        comparing_bytes,
    )
    from transship.activations.finding import checkpoint_sites, find_sites
    from transship.activations.functional import FunctionalModel
    from transship.activations.layout import Alignment, RowOperator, TokenLayout
    from transship.activations.match import Matching, SitePair, Unmatched, block_weights, match_sites
    from transship.activations.models import Batch, LoadedModel, load_model, parameter_names
    from transship.activations.page import comparison_page
    from transship.activations.places import body_of, with_place
    from transship.activations.plan import Entry, Skipped
    from transship.activations.readout import Reading, Readout, features, iter_features
    from transship.activations.sites import (
        Part,
        Site,
        read_bias,
        read_weight,
        write_bias,
        write_weight,
    )
    from transship.activations.tokens import ALIGNMENTS, align_tokens
else:
    __getattr__, __dir__ = door(__name__)

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
    "body_of",
    "checkpoint_sites",
    "collect",
    "compare",
    "comparing_bytes",
    "comparison_page",
    "features",
    "find_sites",
    "iter_features",
    "load_model",
    "longest",
    "match_sites",
    "parameter_names",
    "read_bias",
    "read_weight",
    "with_place",
    "write_bias",
    "write_weight",
]
