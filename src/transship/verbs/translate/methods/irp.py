"""Inverse relative projection: through the angles to the anchors, and back."""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils.validation import check_array
from torch import Tensor

from transship.errors import OptionError, TransshipWarning
from transship.types import Array
from transship.verbs.translate.maps.anchoring import (
    angular_distances,
    invert_anchors,
    subspace_indices,
    tikhonov_anchors,
)
from transship.verbs.translate.maps.base import Translator, beside, by_blocks, to_tensor, unit
from transship.verbs.translate.maps.vectors import anchors_hash
from transship.verbs.translate.maps.wire import Agreement, Half

# a pseudo-inverse of k random rows in d dimensions is worst at k ≈ d; lists that end between these shares
# of d are cut to the lower one (farthest points are nested, so a cut list is the list of a larger δ)
DANGER_ZONE = (0.5, 2.0)
CONDITION_LIMIT = 100.0
# rank and condition number of what was inverted, per subspace
Known = list[tuple[int, float]]
# the decoding half of one target by the lists it is made of, for the next source that is mapped there
Inverses = dict[bytes, tuple[Tensor, Known]]


@dataclass(frozen=True)
class AnchorSide:
    """One space as IRP sees it: unit anchor rows about their mean, and the mean length divided out."""

    anchors: Tensor
    mean: Tensor
    scale: float

    @classmethod
    def of(cls, rows: Tensor) -> AnchorSide:
        rows = rows.double()
        centred = rows - rows.mean(0)
        return cls(unit(centred), rows.mean(0), float(centred.norm(dim=1).mean()))


@dataclass(kw_only=True, eq=False, repr=False)
class InverseRelativeProjection(Translator):
    """Translate through the angles to shared anchors, and back by the inverse of the target's anchors.

    y = μ_y + s_y · mean_i x̂ S_xⁱᵀ (S_yⁱᵀ)⁺ with x̂ = (x − μ_x)/‖x − μ_x‖, Eqs. (1)–(5) of Maiorca, Moschella,
    Fumero, Locatello and Rodolà, "Latent Space Translation via Inverse Relative Projection"; S are unit
    anchor rows about their mean, s_y their mean length before. The paper does not say in which space anchors
    are pruned, nor what happens near k = dimension, where the inverse is at its worst: both are parameters.

    With `completion` (Sec. 3.3) the canonical basis becomes the source's anchors and its images T_i the
    target's, so that Eq. (2) reads y = x̂ (T_iᵀ)⁺; for independent anchors this is S_x⁺ S_y, least squares on
    the pruned anchors. With `regularize` nothing is pruned: y = x̂ A_xᵀ A_y (A_yᵀA_y + λI)⁻¹, rescaled.

    Attributes:
        delta: δ of Eq. (4): pruning stops when the farthest anchor left is nearer than this in 1 − |cos|.
        subspaces: ω of Eq. (5): how many pruned sets are averaged.
        prune_on: the space whose angles prune; both takes the larger |cos| of the two.
        n_anchors: most anchors per subspace; auto keeps clear of k ≈ dimension, none leaves it to δ.
        regularize: λ as a multiple of the mean eigenvalue (1 is good); none is the paper's pruning.
        completion: whether the completed anchors of Sec. 3.3 are used.
        inverse: whether the way back is fitted too, which doubles the cost.
        seed: draws the start of every subspace.
    """

    paper: ClassVar[str] = "Maiorca et al., Latent Space Translation via Inverse Relative Projection"
    place_in_auto: ClassVar[int | None] = 4

    delta: float = 0.8
    subspaces: int = 16
    prune_on: Literal["target", "source", "both"] = "target"
    n_anchors: int | Literal["auto"] | None = "auto"
    regularize: float | None = None
    completion: bool = False
    inverse: bool = True
    seed: int = 0

    def preferred(self, given: Container[str], *, one_way: bool) -> Self:
        """Return the map with λ = 1 unless pruning was chosen: better at every number of anchors measured."""
        if self.regularize is None and self.delta == 0.8:
            self.set_params(regularize=1.0)
        return self

    def _fit(self, source: Tensor, target: Tensor) -> None:
        self._fit_sides(AnchorSide.of(source), AnchorSide.of(target), Inverses())

    def fit_each(self, sources: Iterable[Any], target: Any) -> Iterator[Self]:
        """Yield the map of each source onto one target, whose own inverses are computed once."""
        far, inverses = None, Inverses()
        for source in sources:
            copy = clone(self)
            rows, targets = copy._pairs(source, target)
            far = far or AnchorSide.of(targets)
            copy._fit_sides(AnchorSide.of(rows), far, inverses)
            copy.n_anchors_, copy.anchors_hash_ = len(rows), ""
            yield copy

    def _fit_sides(self, near: AnchorSide, far: AnchorSide, inverses: Inverses) -> None:
        lists = self._lists(near.anchors, far.anchors, min(near.anchors.shape[1], far.anchors.shape[1]))
        matrix, known, factor = self._matrix(near, far, lists, inverses)
        self.matrix_, self.gain_ = matrix.numpy(), factor * far.scale
        if self.inverse:
            back, _, factor = self._matrix(far, near, lists, Inverses())
            self.inverse_matrix_, self.inverse_gain_ = back.numpy(), factor * near.scale
        self.source_mean_, self.target_mean_ = near.mean.numpy(), far.mean.numpy()
        self.source_scale_, self.target_scale_ = near.scale, far.scale
        self.lists_ = lists
        self.ranks_, self.conditions_ = [rank for rank, _ in known], [condition for _, condition in known]
        if max(self.conditions_) > CONDITION_LIMIT:
            warnings.warn(
                f"the condition number of a subspace is {max(self.conditions_):.0f}, which amplifies noise; "
                "raise delta, or set n_anchors='auto' or regularize=1.0",
                TransshipWarning,
                stacklevel=3,
            )

    def _lists(self, near: Tensor, far: Tensor, width: int) -> list[Array]:
        """Return the anchors of every subspace; with `regularize` there is nothing to prune."""
        if self.subspaces < 1 or not 0.0 <= self.delta <= 1.0:
            raise OptionError("delta lies in 0..1 and subspaces is 1 or more", where="irp", fix="change them")
        if self.regularize is not None:
            return []
        sides = {"source": [near], "target": [far], "both": [near, far]}[self.prune_on]
        distances = angular_distances(sides[0])
        for side in sides[1:]:
            torch.minimum(distances, angular_distances(side), out=distances)
        most = self.n_anchors if isinstance(self.n_anchors, int) else None
        lists = subspace_indices(
            distances, subspaces=self.subspaces, delta=self.delta, most=most, seed=self.seed
        )
        return [self._guard(indices, width) for indices in lists] if self.n_anchors == "auto" else lists

    @staticmethod
    def _guard(indices: Array, width: int) -> Array:
        low, high = (share * width for share in DANGER_ZONE)
        return indices[: max(1, int(low))] if low < len(indices) < high else indices

    def _matrix(
        self, near: AnchorSide, far: AnchorSide, lists: list[Array], inverses: Inverses
    ) -> tuple[Tensor, Known, float]:
        """Return T [source, target] with ŷ = x̂ T, what was inverted, and the factor that restores length.

        T = mean_i S_xⁱᵀ (S_yⁱᵀ)⁺ = A_xᵀ D, where D holds the mean of the inverses, each row at its anchor's
        place: one product for all subspaces.
        """
        if self.completion and self.regularize is None:
            parts = [
                _completed(near.anchors[rows], far.anchors[rows]) for rows in map(torch.from_numpy, lists)
            ]
            total = torch.stack([part for part, _ in parts]).mean(0)
            return total, [known for _, known in parts], 1.0
        key = b"|".join(indices.tobytes() for indices in lists)
        if key not in inverses:
            inverses[key] = (
                _average(far.anchors, lists)
                if self.regularize is None
                else _regularised(far.anchors, self.regularize)
            )
        decoder, known = inverses[key]
        factor = 1.0 if self.regularize is None else _shrinkage(far.anchors, decoder)
        return near.anchors.T @ decoder, known, factor

    # -- one machine ---------------------------------------------------------------------------------------

    def _forward(self, rows: Tensor) -> Tensor:
        return _scaled(rows, self.matrix_, self.source_mean_, self.target_mean_, self.gain_)

    def _backward(self, rows: Tensor) -> Tensor:
        if not hasattr(self, "inverse_matrix_"):
            raise ValueError("the way back was not fitted; fit with inverse=True")
        return _scaled(rows, self.inverse_matrix_, self.target_mean_, self.source_mean_, self.inverse_gain_)

    def fold_affine(self) -> tuple[Array, Array]:
        """Return (W, b) with y ≈ x W + b: the same centred directions, one length factor for all rows.

        W = (s_y/s_x) T and b = μ_y − μ_x W. The length factor 1/‖x − μ_x‖ of a row is replaced by its
        mean, so this equals `transform` only for rows at the anchors' mean distance from their mean.
        """
        weight = (self.gain_ / self.source_scale_) * self.matrix_
        return weight, self.target_mean_ - self.source_mean_ @ weight

    def fold_exact(self) -> Array:
        """Return [T | μ_x], [source, target + 1]: one product gives direction and what the length needs.

        ‖x − μ_x‖² = ‖x‖² − 2 x·μ_x + ‖μ_x‖², so the last column is all that the exact scale of a row asks for
        beside its own length. `transform` computes this.
        """
        return np.hstack([self.matrix_, self.source_mean_[:, None]])

    def fold_output(self, matrix: Array, centre: Array) -> None:
        """Follow the map by y ↦ centre + (y − centre) · matrix (used to restore variance)."""
        self.matrix_ = self.matrix_ @ matrix
        self.target_mean_ = centre + (self.target_mean_ - centre) @ matrix

    # -- two machines --------------------------------------------------------------------------------------

    def agree(self, anchors: Any, ids: Sequence[Any], other_width: int) -> Agreement:
        """Prune on this machine's anchors and return what the other machine must know.

        With `prune_on="source"` the encoding machine calls it, with "target" the decoding one.
        """
        if self.prune_on == "both" and self.regularize is None:
            raise OptionError(
                "pruning on both spaces needs both on one machine",
                where="prune_on",
                fix="choose source or target, or set regularize",
            )
        rows = to_tensor(check_array(anchors))
        side = AnchorSide.of(rows)
        lists = self._lists(side.anchors, side.anchors, min(rows.shape[1], other_width))
        return Agreement(
            "irp",
            {"regularize": self.regularize, "completion": self.completion},
            anchors_hash(ids),
            len(rows),
            tuple(tuple(map(int, indices)) for indices in lists),
        )

    def fit_encoder(self, anchors: Any, ids: Sequence[Any], agreement: Agreement) -> Half:
        """Return the half that turns source rows into numbers per anchor, from the source's anchors only."""
        agreement.check_ids(ids, "fit_encoder")
        side = AnchorSide.of(to_tensor(check_array(anchors)))
        used, lists = torch.from_numpy(agreement.used), [np.asarray(indices) for indices in agreement.lists]
        matrix = side.anchors[used]
        if agreement.parameters["completion"] and agreement.lists:
            matrix = _average(side.anchors, lists)[0][used]
        return Half(
            "encoder",
            agreement,
            {"mean": side.mean.numpy(), "matrix": matrix.T.contiguous().numpy()},
            unit_rows=True,
        )

    def fit_decoder(self, anchors: Any, ids: Sequence[Any], agreement: Agreement) -> Half:
        """Return the half that turns numbers per anchor into target rows, from the target's anchors only."""
        agreement.check_ids(ids, "fit_decoder")
        side = AnchorSide.of(to_tensor(check_array(anchors)))
        strength, factor = agreement.parameters["regularize"], 1.0
        used, lists = torch.from_numpy(agreement.used), [np.asarray(indices) for indices in agreement.lists]
        if strength is not None:
            matrix, _ = _regularised(side.anchors, strength)
            factor = _shrinkage(side.anchors, matrix)
        elif agreement.parameters["completion"]:
            matrix = side.anchors[used]
        else:
            matrix = _average(side.anchors, lists)[0][used]
        scaled = matrix * (factor * side.scale)
        return Half("decoder", agreement, {"mean": side.mean.numpy(), "matrix": scaled.numpy()})


def _average(anchors: Tensor, lists: Sequence[Array]) -> tuple[Tensor, Known]:
    """Return the mean over subspaces of (Sᵀ)⁺, each row at its anchor's place: [anchors, width]."""
    total, known = torch.zeros_like(anchors), []
    for index in map(torch.from_numpy, lists):
        inverse = invert_anchors(anchors[index])
        total[index] += inverse.matrix
        known.append((inverse.rank, inverse.condition))
    return total / len(lists), known


def _regularised(anchors: Tensor, strength: float) -> tuple[Tensor, Known]:
    inverse = tikhonov_anchors(anchors, strength)
    return inverse.matrix, [(inverse.rank, inverse.condition)]


def _completed(near: Tensor, far: Tensor) -> tuple[Tensor, tuple[int, float]]:
    """Return (Tᵀ)⁺ of the completed anchors T = S_xᵀ (S_yᵀ)⁺, for independent rows S_x⁺ S_y."""
    inverse, outward = invert_anchors(near), invert_anchors(far)
    known = inverse.rank, inverse.condition
    if inverse.rank == outward.rank == len(near):
        return inverse.matrix.T @ far, known
    return torch.linalg.pinv((near.T @ outward.matrix).T, rtol=1e-8), known


def _shrinkage(anchors: Tensor, inverse: Tensor) -> float:
    """Return what a regularised inverse takes from the mean length: known from the decoding side alone."""
    length = float((anchors @ (anchors.T @ inverse)).norm(dim=1).mean())
    return 1.0 / length if length > 0 else 1.0


def _scaled(rows: Tensor, matrix: Array, mean_in: Array, mean_out: Array, gain: float) -> Tensor:
    """Return mean_out + gain (x − μ) T / ‖x − μ‖ in one product per block, as `fold_exact` says.

    The product of the mean with T is subtracted afterwards, so the rows themselves are never copied.
    """
    exact = np.hstack([matrix, mean_in[:, None]])
    folded, shift, offset = beside(rows, exact, mean_in @ matrix, mean_out)
    square = float(mean_in @ mean_in)

    def product(block: Tensor, out: Tensor) -> None:
        both = block @ folded
        squared = block.square().sum(1) - 2.0 * both[:, -1] + square
        length = squared.clamp_min(torch.finfo(squared.dtype).tiny).sqrt()
        torch.addcmul(offset, both[:, :-1] - shift, (gain / length)[:, None], out=out)

    return by_blocks(rows, matrix.shape[1], product)
