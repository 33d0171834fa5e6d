"""Move embeddings from one model's space into another's.

The public names are imported when they are first used: the command line reads the stores without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transship.doors import door

if TYPE_CHECKING:
    from transship.verbs.translate.apply import apply_map, plan_apply
    from transship.verbs.translate.embed import embed_texts
    from transship.verbs.translate.engines import LocalEngine, RayEngine, choose_engine
    from transship.verbs.translate.fit.anchors import choose_anchors, choose_rows
    from transship.verbs.translate.fit.api import check_map, fit_map, fit_pairs
    from transship.verbs.translate.fit.judgements import Judgements, ndcg
    from transship.verbs.translate.fit.pairs import VectorPairs, find_wrong_pairs
    from transship.verbs.translate.fit.quality import measure, out_of_sample, restore_variance
    from transship.verbs.translate.lazy import LazyIndex
    from transship.verbs.translate.maps.base import Translator
    from transship.verbs.translate.maps.saved import SavedMap, load_map, read_document, save_map
    from transship.verbs.translate.maps.vectors import fuse, neighbours, overlap, unit_rows
    from transship.verbs.translate.maps.wire import Agreement, Half, Wire
    from transship.verbs.translate.methods.affine import Affine
    from transship.verbs.translate.methods.cca import CCA
    from transship.verbs.translate.methods.irp import InverseRelativeProjection
    from transship.verbs.translate.methods.kernel import KernelRidge
    from transship.verbs.translate.methods.linear import Linear
    from transship.verbs.translate.methods.procrustes import Procrustes
    from transship.verbs.translate.methods.relative import RelativeRepresentation
    from transship.verbs.translate.methods.ridge import Ridge
    from transship.verbs.translate.settings import Columns, FitSettings, JudgedFiles
    from transship.verbs.translate.stitch import Stitch, Stitching, scale_probe, stitching_matrix
    from transship.verbs.translate.stores import open_source
else:
    __getattr__, __dir__ = door(__name__)

__all__ = [
    "CCA",
    "Affine",
    "Agreement",
    "Columns",
    "FitSettings",
    "Half",
    "InverseRelativeProjection",
    "JudgedFiles",
    "Judgements",
    "KernelRidge",
    "LazyIndex",
    "Linear",
    "LocalEngine",
    "Procrustes",
    "RayEngine",
    "RelativeRepresentation",
    "Ridge",
    "SavedMap",
    "Stitch",
    "Stitching",
    "Translator",
    "VectorPairs",
    "Wire",
    "apply_map",
    "check_map",
    "choose_anchors",
    "choose_engine",
    "choose_rows",
    "embed_texts",
    "find_wrong_pairs",
    "fit_map",
    "fit_pairs",
    "fuse",
    "load_map",
    "measure",
    "ndcg",
    "neighbours",
    "open_source",
    "out_of_sample",
    "overlap",
    "plan_apply",
    "read_document",
    "restore_variance",
    "save_map",
    "scale_probe",
    "stitching_matrix",
    "unit_rows",
]
