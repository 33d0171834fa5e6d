"""The terms of Theorem 7 on held-out data: err_τ ≤ err_s + FA + E[FLD + TF], each with its estimator.

After Tran et al., "Rethinking Cross-Modal Fine-Tuning", Theorem 7 and Appendix B. What the theorem knows and
data does not (D_s and D_τ given a feature) is estimated, and every estimate is named beside its number.

FLD at a feature u (Definition 5) is the least E_z H[Λ(·|z)] over kernels Λ that carry D_s(z|u) to D_τ(z'|u).
With the joint J(z, z') = D_s(z|u) Λ(z'|z) it is min H(J) − H(D_s(·|u)): a coupling of least entropy. The
entropy is concave, so a vertex of the couplings attains the minimum; finding it is NP-hard in general, and
the greedy coupling is within one bit.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from transship.errors import DataError, OptionError
from transship.geometry import wasserstein_exact
from transship.numerics import derive_seed
from transship.types import Array
from transship.verbs.adapt.adapted import Adapted

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
    adapted: Adapted, inputs: Any, targets: Any, *, seed: int = 0, neighbours: int | None = None
) -> Bound:
    """Return the terms of Theorem 7 for an adapted classifier on rows that it has not seen.

    Args:
        adapted: a classifier with a source.
        inputs: held-out rows; at most a thousand are drawn.
        targets: their labels.
        seed: of what is drawn.
        neighbours: how many rows estimate D_τ(z'|u); √rows by default.
    """
    source = adapted.source
    if source is None:
        raise OptionError(
            "this method has no source head, and the bound compares with one",
            where="bound",
            fix="fit with recraft, fa, fa-warm, orca, pare or mona",
        )
    if adapted.targets.classes is None:
        raise OptionError(
            "the bound is of cross-entropies", where="bound", fix="use it with classification models"
        )
    chosen = _drawn(len(inputs), MOST_POINTS, derive_seed(seed, "bound rows"))
    rows = _rows(inputs, chosen)
    few = _rows(rows, _drawn(len(chosen), MOST_NORMS, derive_seed(seed, "bound norms")))
    scores = adapted.targets.scores(adapted.outputs(rows))
    terms = bound_of(
        err_source=source.error,
        omega=source.omega,
        norms=np.concatenate([source.norms.numpy(), adapted.source_gradient_norms(few)]),
        source_features=source.features.numpy(),
        features=adapted.embedded(rows),
        given=adapted.source_probabilities(rows),
        predicted=np.asarray(scores, dtype=np.float64),
        codes=adapted.targets.label_codes(_rows(targets, chosen)),
        seed=seed,
        neighbours=neighbours,
    )
    return terms if adapted.base is None else replace(terms, caveats=(*terms.caveats, _ON_BASE))


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
        estimators=_estimators(rows, near),
    )


def _estimators(rows: int, near: int) -> dict[str, str]:
    return {
        "err_source": "cross-entropy of the recalibrated source head on held-out proxy items",
        "alignment": f"nominal ω times exact W₁ of token means, {rows} rows against equally many items",
        "distortion": "H(Z'|Z) of the soft table of all rows, Eq. (21)",
        "distortion_greedy": "greedy coupling of p_s(·|u) with the estimate of D_τ(·|u), per row",
        "fitting": f"KL of label frequencies among {near} nearest features from p_τ, Eq. (48)",
        "err_target": "cross-entropy of the adapted model on the same rows",
        "lipschitz": "99 % quantile of per-sample gradient norms at source and target features",
    }


def label_frequencies(features: Array, codes: Array, classes: int, neighbours: int) -> Array:
    """Return D̂_τ(z'|u) [rows, labels]: each row and its nearest others count, so no row is one-hot by itself.

    The row's own label counts once and one more pseudo-count is spread as the labels of the whole set are.
    """
    points = torch.as_tensor(np.asarray(features, dtype=np.float32))
    nearest = torch.cdist(points, points).topk(neighbours + 1, largest=False).indices.numpy()
    hits = np.asarray(codes)[nearest][:, :, None] == np.arange(classes)
    shares = np.bincount(codes, minlength=classes) / len(codes)
    return np.asarray((hits.sum(1) + shares) / (neighbours + 2))


def _distances(features: Array, source: Array, seed: int) -> tuple[float, float]:
    """Return exact W₁ of the rows to as many source items, and of those items to as many others."""
    order = np.random.default_rng(seed).permutation(len(source))
    size = min(len(features), len(source) // 2)
    first, other = source[order[:size]], source[order[size : 2 * size]]
    drawn = _drawn(len(features), size, derive_seed(seed, "rows"))
    parts = [torch.as_tensor(np.asarray(part, dtype=np.float64)) for part in (features[drawn], first, other)]
    return (
        float(wasserstein_exact(parts[0], parts[1])),
        float(wasserstein_exact(parts[1], parts[2])),
    )


def _drawn(total: int, most: int, seed: int) -> Array:
    if total <= most:
        return np.arange(total)
    return np.sort(np.random.default_rng(seed).permutation(total)[:most])


def _rows(values: Any, rows: Array) -> Any:
    return values[rows] if hasattr(values, "shape") else [values[row] for row in rows]


def entropy(probabilities: Any, axis: int = -1) -> Array:
    """Return −Σ p log p in nats along an axis, with 0 log 0 = 0."""
    shares = np.asarray(probabilities, dtype=np.float64)
    logs = np.log(np.where(shares > 0, shares, 1.0))
    return np.asarray(-(shares * logs).sum(axis))


def greedy_couplings(first: Any, second: Any) -> Array:
    """Return, for every row, the joint table that matches the two largest remaining masses again and again.

    Args:
        first: distributions [rows, n].
        second: distributions [rows, m].

    Returns:
        Tables [rows, n, m] whose sums are the two distributions; their entropy exceeds the least by at most
        one bit (log 2 nats).
    """
    left, right = np.array(first, dtype=np.float64), np.array(second, dtype=np.float64)
    rows, n = left.shape
    m = right.shape[1]
    table, each = np.zeros((rows, n, m)), np.arange(rows)
    for _ in range(n + m - 1):  # every match uses up one of the two masses
        i, j = left.argmax(1), right.argmax(1)
        moved = np.minimum(left[each, i], right[each, j])
        table[each, i, j] += moved
        left[each, i] -= moved
        right[each, j] -= moved
    return table


def distortions(source: Any, target: Any) -> Array:
    """Return FLD(u) for every row by the greedy coupling: H(coupling) − H(D_s(·|u)) in nats, at least 0."""
    left = np.asarray(source, dtype=np.float64)
    excess = entropy(greedy_couplings(left, target).reshape(len(left), -1)) - entropy(left)
    return np.asarray(np.maximum(excess, 0.0))


def least_distortions(source: Any, target: Any) -> Array:
    """Return a lower bound of FLD(u) that needs no coupling: max(0, H(D_τ(·|u)) − H(D_s(·|u)))."""
    return np.asarray(np.maximum(entropy(target) - entropy(source), 0.0))


def table_distortion(source: Any, codes: Any, classes: int) -> float:
    """Return Eq. (21), H(Z'|Z) of the whole set, from the soft table J = mean of p_s(z|u) · 1[z' = label]."""
    given = np.asarray(source, dtype=np.float64)
    table = given.T @ (np.asarray(codes)[:, None] == np.arange(classes)) / len(given)
    return float(entropy(table.ravel()) - entropy(table.sum(1)))


def divergence(first: Any, second: Any) -> Array:
    """Return KL(first‖second) in nats for every row."""
    p, q = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    logs = np.log(np.where(p > 0, p, 1.0)) - np.log(np.maximum(q, 1e-300))
    return np.asarray(np.where(p > 0, p * logs, 0.0).sum(-1))
