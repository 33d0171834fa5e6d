"""The terms of Theorem 7 on held-out data: err_τ ≤ err_s + FA + E[FLD + TF], each with its estimator.

After Tran et al., "Rethinking Cross-Modal Fine-Tuning", Theorem 7 and Appendix B. What the theorem knows and
data does not (D_s and D_τ given a feature) is estimated, and every estimate is named beside its number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from transship.errors import DataError, OptionError
from transship.numerics import derive_seed
from transship.verbs.adapt.bound.coupling import (
    distortions,
    divergence,
    entropy,
    least_distortions,
    table_distortion,
)

Array = npt.NDArray[Any]
MOST_POINTS, MOST_NORMS = 1000, 128
_CAVEATS = (
    "D_τ(z'|u) is estimated from label frequencies among near features: with one label per input it would be "
    "one-hot, FLD(u) would be 0, TF the target error itself, and the inequality true for any model.",
    "TF is Eq. (48), KL(D_τ‖p_τ): its kernel does not sum to one in general, so it is a lower bound of the "
    "paper's Eq. (47).",
    "FLD is Eq. (21), the paper's upper bound of E[FLD(u)]; beside it stand the greedy coupling, at most one "
    "bit above the least one, and a lower bound.",
    "Step B of the proof takes p_s for D_s, also at features of the target, where nobody labelled anything.",
    "FA is taken between token means, and the source loss reads token sequences: the distance of means is no "
    "metric on sequences. The measured gradient norm stands beside the nominal ω.",
    "W₁ of samples is above that of the distributions: two samples of the source itself are as far apart as "
    "stated.",
)


_ON_BASE = (
    "A raw model stands under the network: p_τ reads the raw values beside u = φ(x), which the theorem's "
    "p_τ(z'|u) does not."
)


class Fitted(Protocol):
    """What of an adapted model the bound reads."""

    source_: Any
    classes_: Any

    def embedded(self, inputs: Any) -> Any: ...
    def source_probabilities(self, inputs: Any) -> Any: ...
    def source_gradient_norms(self, inputs: Any, labels: Any = None) -> Any: ...
    def target_codes(self, targets: Any) -> Any: ...
    def predict_proba(self, inputs: Any) -> Any: ...


@dataclass(frozen=True)
class Bound:
    """Theorem 7 with numbers, in nats.

    Attributes:
        err_source: cross-entropy of the source head on held-out proxy data.
        alignment: FA = ω · W₁.
        distortion: FLD, Eq. (21) on the whole set.
        fitting: TF, Eq. (48).
        err_target: cross-entropy of the adapted model on these rows.
        omega: the nominal Lipschitz constant.
        lipschitz: the 99 % quantile of measured gradient norms, source and target.
        lipschitz_largest: the largest of them.
        distance: W₁ between the features of these rows and the source's.
        distance_source: W₁ between two halves of the source's features, of the same sizes.
        distortion_greedy: E[FLD(u)] by greedy couplings of p_s(·|u) and the estimate of D_τ(·|u).
        distortion_least: a lower bound of E[FLD(u)].
        entropy_target: H(Z') of these rows.
        rows: how many.
        neighbours: of the estimate of D_τ.
        estimators: how each term was found.
        caveats: what to keep in mind.
    """

    err_source: float
    alignment: float
    distortion: float
    fitting: float
    err_target: float
    omega: float
    lipschitz: float
    lipschitz_largest: float
    distance: float
    distance_source: float
    distortion_greedy: float
    distortion_least: float
    entropy_target: float
    rows: int
    neighbours: int
    estimators: Mapping[str, str] = field(default_factory=dict)
    caveats: tuple[str, ...] = _CAVEATS

    @property
    def total(self) -> float:
        """The right-hand side with the nominal ω: err_s + FA + FLD + TF."""
        return self.err_source + self.alignment + self.distortion + self.fitting

    @property
    def total_measured(self) -> float:
        """The right-hand side with the measured gradient norm in place of ω."""
        return self.err_source + self.lipschitz * self.distance + self.distortion + self.fitting

    @property
    def total_greedy(self) -> float:
        """The right-hand side with the greedy couplings in place of Eq. (21): a tighter sum."""
        return self.err_source + self.alignment + self.distortion_greedy + self.fitting

    @property
    def holds(self) -> bool:
        """Whether the target error is at most the sum with the nominal ω."""
        return self.err_target <= self.total

    @property
    def gap(self) -> float:
        """How far the sum lies above the target error, as a share of the sum."""
        return (self.total - self.err_target) / self.total if self.total > 0 else float("nan")

    def bars(self) -> dict[str, float]:
        """Return the stacked terms in the order of the paper's Fig. 5."""
        return {
            "source error": self.err_source,
            "feature alignment": self.alignment,
            "feature-label distortion": self.distortion,
            "target fitting": self.fitting,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values, sums and verdict included."""
        sums = {
            "total": self.total,
            "total_measured": self.total_measured,
            "total_greedy": self.total_greedy,
            "holds": self.holds,
            "gap": self.gap,
        }
        return {**asdict(self), **sums, "caveats": list(self.caveats), "estimators": dict(self.estimators)}


def measure_bound(
    model: Fitted, inputs: Any, targets: Any, *, seed: int = 0, neighbours: int | None = None
) -> Bound:
    """Return the terms of Theorem 7 for an adapted classifier on rows that it has not seen.

    Args:
        model: a fitted classifier with a source.
        inputs: held-out rows; at most a thousand are drawn.
        targets: their labels.
        seed: of what is drawn.
        neighbours: how many rows estimate D_τ(z'|u); √rows by default.
    """
    source = model.source_
    if source is None:
        raise OptionError(
            "this method has no source head, and the bound compares with one",
            where="bound",
            fix="fit with recraft, fa, fa-warm, orca, pare or mona",
        )
    if getattr(model, "classes_", None) is None:
        raise OptionError(
            "the bound is of cross-entropies", where="bound", fix="use it with classification models"
        )
    chosen = _chosen(len(inputs), MOST_POINTS, derive_seed(seed, "bound rows"))
    rows, codes = _taken(inputs, chosen), np.asarray(model.target_codes(_taken(targets, chosen)))
    features, given = np.asarray(model.embedded(rows)), np.asarray(model.source_probabilities(rows))
    predicted = np.asarray(model.predict_proba(rows), dtype=np.float64)
    few = _taken(rows, _chosen(len(chosen), MOST_NORMS, derive_seed(seed, "bound norms")))
    norms = np.concatenate([np.asarray(source.norms), np.asarray(model.source_gradient_norms(few))])
    found = bound_of(
        err_source=float(source.error),
        omega=float(source.omega),
        norms=norms,
        source_features=np.asarray(source.features),
        features=features,
        given=given,
        predicted=predicted,
        codes=codes,
        seed=seed,
        neighbours=neighbours,
    )
    based = getattr(getattr(model, "adapted_", None), "base", None) is not None
    return replace(found, caveats=(*found.caveats, _ON_BASE)) if based else found


def bound_of(
    *,
    err_source: float,
    omega: float,
    norms: Array,
    source_features: Array,
    features: Array,
    given: Array,
    predicted: Array,
    codes: Array,
    seed: int = 0,
    neighbours: int | None = None,
) -> Bound:
    """Return the terms from arrays.

    Args:
        err_source: cross-entropy of the source on held-out data.
        omega: its nominal Lipschitz constant.
        norms: measured gradient norms.
        source_features: [items, width].
        features: of the target's rows [rows, width].
        given: p_s(z|u) [rows, source labels].
        predicted: p_τ(z'|u) [rows, labels].
        codes: the labels [rows].
        seed: of what is drawn.
        neighbours: of the estimate of D_τ.
    """
    rows, classes = predicted.shape
    if rows < 3:
        raise DataError(f"{rows} rows cannot estimate D_τ", where="bound", fix="give three or more")
    near = min(rows - 1, neighbours or max(2, round(rows**0.5)))
    conditional = label_frequencies(features, codes, classes, near)
    distance, ground = _distances(features, source_features, derive_seed(seed, "bound source"))
    wanted = np.maximum(predicted[np.arange(rows), codes], 1e-12)
    shares = np.bincount(codes, minlength=classes) / rows
    return Bound(
        err_source=err_source,
        alignment=omega * distance,
        distortion=table_distortion(given, codes, classes),
        fitting=float(divergence(conditional, np.maximum(predicted, 1e-12)).mean()),
        err_target=float(-np.log(wanted).mean()),
        omega=omega,
        lipschitz=float(np.quantile(norms, 0.99)),
        lipschitz_largest=float(norms.max()),
        distance=distance,
        distance_source=ground,
        distortion_greedy=float(distortions(given, conditional).mean()),
        distortion_least=float(least_distortions(given, conditional).mean()),
        entropy_target=float(entropy(shares)),
        rows=rows,
        neighbours=near,
        estimators={
            "err_source": "cross-entropy of the recalibrated source head on held-out proxy items",
            "alignment": f"nominal ω times exact W₁ of token means, {rows} rows against equally many items",
            "distortion": "H(Z'|Z) of the soft table of all rows, Eq. (21)",
            "distortion_greedy": "greedy coupling of p_s(·|u) with the estimate of D_τ(·|u), per row",
            "fitting": f"KL of label frequencies among {near} nearest features from p_τ, Eq. (48)",
            "err_target": "cross-entropy of the adapted model on the same rows",
            "lipschitz": "99 % quantile of per-sample gradient norms at source and target features",
        },
    )


def label_frequencies(features: Array, codes: Array, classes: int, neighbours: int) -> Array:
    """Return D̂_τ(z'|u) [rows, labels]: each row and its nearest others count, so no row is one-hot by itself.

    The row's own label counts once and one more pseudo-count is spread as the labels of the whole set are.
    """
    import torch

    points = torch.as_tensor(np.asarray(features, dtype=np.float32))
    found = torch.cdist(points, points).topk(neighbours + 1, largest=False).indices.numpy()
    hits = np.asarray(codes)[found][:, :, None] == np.arange(classes)
    shares = np.bincount(codes, minlength=classes) / len(codes)
    return np.asarray((hits.sum(1) + shares) / (neighbours + 2))


def _distances(features: Array, source: Array, seed: int) -> tuple[float, float]:
    """Return exact W₁ of the rows to as many source items, and of those items to as many others."""
    import torch

    from transship.geometry import wasserstein_exact

    order = np.random.default_rng(seed).permutation(len(source))
    size = min(len(features), len(source) // 2)
    one, other = source[order[:size]], source[order[size : 2 * size]]
    drawn = _chosen(len(features), size, derive_seed(seed, "rows"))
    parts = [torch.as_tensor(np.asarray(part, dtype=np.float64)) for part in (features[drawn], one, other)]
    return (
        float(wasserstein_exact(parts[0], parts[1]).value),
        float(wasserstein_exact(parts[1], parts[2]).value),
    )


def _chosen(total: int, most: int, seed: int) -> Array:
    if total <= most:
        return np.arange(total)
    return np.sort(np.random.default_rng(seed).permutation(total)[:most])


def _taken(values: Any, rows: Array) -> Any:
    return values[rows] if hasattr(values, "shape") else [values[row] for row in rows]
