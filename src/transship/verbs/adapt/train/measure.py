"""What stage 1 is measured by, on whole sets: W₁, spread, FLD, H(Z), held-out FLD, and a probe's error."""

import time
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from transship.numerics import derive_seed
from transship.verbs.adapt.source.model import Source
from transship.verbs.adapt.train.learner import Bench
from transship.verbs.adapt.train.losses import (
    conditional_entropy,
    entropy,
    soft_table,
    spread,
    table_loss,
    transition,
    transport_distance,
)

MOST, MOST_HELD_OUT = 1024, 512  # rows that stand for the whole sets in logs
MOST_TRANSPORT = 512  # of them in W₁, against all source features
COLLAPSED = 0.5  # spread under this share of the source's is worth a warning
_SMOOTH = 1e-3  # of the marginal in Λ, where held-out labels may meet an empty cell


def stage_one_row(bench: Bench, phase: str, step: int) -> dict[str, Any]:
    """Return one row of the stage-1 log for the embedder as it stands."""
    source = bench.known
    index = bench.draw(MOST, "log")
    some = torch.linspace(0, len(bench.validation) - 1, min(MOST_HELD_OUT, len(bench.validation))).long()
    train, held = bench.views(bench.train, index), bench.views(bench.validation, some)
    codes = bench.train.codes[index]
    assert train.source is not None
    assert held.source is not None
    table = soft_table(train.source.double(), codes, bench.classes)
    rows = train.pooled[torch.linspace(0, len(index) - 1, min(MOST_TRANSPORT, len(index))).long()]
    return {
        "phase": phase,
        "step": step,
        "w1": transport_distance(rows, source.features),
        "w1_source": source_distance(source, len(rows)),
        "spread": spread(train.pooled) / spread(source.features),
        "fld": float(conditional_entropy(table)),
        "entropy_z": float(entropy(table.sum(1))),
        "entropy_target": float(entropy(table.sum(0))),
        "mean_entropy": float(-(train.source * train.source.clamp_min(1e-12).log()).sum(1).mean()),
        "held_out_fld": held_out_distortion(table, held.source.double(), bench.validation.codes[some]),
        "probe_error": probe_error(
            train.features, codes, held.features, bench.validation.codes[some], bench.classes
        ),
        "seconds": time.process_time(),
    }


def held_out_distortion(
    table: Float[Tensor, "source classes"], source: Float[Tensor, "rows source"], codes: Int[Tensor, " rows"]
) -> float:
    """Return mean Σ_z p_s(z|u)·(−log Λ(z'|z)) on other rows than those of the table: FLD's own form there."""
    smooth = transition(table, _SMOOTH) * table.sum(1, keepdim=True).clamp_min(1e-12)
    return float(table_loss(source, codes, smooth))


_source_distances: dict[tuple[str, int], float] = {}


def source_distance(source: Source, count: int) -> float:
    """Return W₁ of `count` source features against the others: what alignment can reach."""
    key = (source.fingerprint, count)
    if key not in _source_distances or not source.fingerprint:
        drawn = np.random.default_rng(derive_seed(0, "source", count)).permutation(len(source.features))
        some = torch.from_numpy(drawn[: min(count, len(drawn) // 2)])
        rest = torch.from_numpy(drawn[min(count, len(drawn) // 2) :])
        _source_distances[key] = transport_distance(source.features[some], source.features[rest])
    return _source_distances[key]


def probe_error(
    features: Float[Tensor, "rows width"],
    codes: Int[Tensor, " rows"],
    held: Float[Tensor, "held width"],
    held_codes: Int[Tensor, " held"],
    classes: int,
) -> float:
    """Return the held-out error of a ridge probe on the frozen body's features.

    What a predictor could read.
    """
    mean = features.double().mean(0)
    x, z = features.double() - mean, held.double() - mean
    wanted = functional.one_hot(codes, classes).double()
    gram = x.T @ x
    ridge = 1e-2 * gram.diagonal().mean() + 1e-12
    weights = torch.linalg.solve(
        gram + ridge * torch.eye(len(gram), dtype=gram.dtype), x.T @ (wanted - wanted.mean(0))
    )
    made = z @ weights + wanted.mean(0)
    return float((made.argmax(1) != held_codes).double().mean())


__all__ = ["COLLAPSED", "held_out_distortion", "probe_error", "source_distance", "stage_one_row"]
