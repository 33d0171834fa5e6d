"""Kernel ridge regression with a Gaussian kernel: it beats linear maps from some 1000 anchors on."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from sklearn.utils.validation import check_array
from torch import Tensor

from transship.errors import NumericalError
from transship.geometry import Moments, ridge, ridge_loo
from transship.numerics import derive_seed
from transship.types import Array
from transship.verbs.translate.maps.base import Translator, beside, by_blocks, like, to_tensor, unit
from transship.verbs.translate.maps.vectors import anchors_hash
from transship.verbs.translate.maps.wire import Agreement, Half, rbf, smoother_decoder

# settings compared by leave-one-out: width factors g of γ = g/s², and λ, which matters less
WIDTHS = (0.25, 0.5, 1.0)
PENALTIES = (0.001, 0.01, 0.03, 0.1, 0.3)
# neighbours that a setting should get right, where there are rows and features enough to speak of any
NEIGHBOURS, FEWEST_ROWS, LEAST_WIDTH = 10, 50, 8
# what two machines agree on, and what settings start from, when nothing can be tuned
UNTUNED = (0.5, 0.03)
# rows that settings are tuned on; the final fit uses all of them
TUNING_ROWS = 2000


@dataclass(kw_only=True, eq=False, repr=False)
class KernelRidge(Translator):
    """Map by kernel ridge regression: y = k(x, L) A + b with a Gaussian kernel on the anchors L.

    k(x, l) = exp(−γ‖x − l‖²), γ = gamma/s² with s² the anchors' mean squared distance from their mean; b is
    unpenalised. γ and λ are chosen by exact leave-one-out (closed form, bordered system): by how many of each
    anchor's ten neighbours its prediction finds, since the least squared error asks for too narrow a kernel
    (up to 0.02 of recall lost). With `landmarks`
    fewer than the anchors the Nyström features k(x, L) K_LL^−½ take their place, whose Moments add up; nearly
    all anchors should be landmarks, since few of them fall back to what ridge gives.

    Attributes:
        gamma: the kernel's width factor g, or auto for leave-one-out.
        alpha: λ, or auto for leave-one-out.
        landmarks: how many anchors carry the kernel; none takes all.
        inverse: whether the way back is fitted too, which doubles the cost.
        seed: draws the landmarks and the rows that settings are tuned on.
    """

    paper: ClassVar[str] = (
        "Saunders, Gammerman and Vovk, Ridge regression learning algorithm in dual variables"
    )
    place_in_auto: ClassVar[int | None] = 3
    closed_form: ClassVar[bool] = True
    bends: ClassVar[bool] = True
    anchor_squares: ClassVar[int] = 9
    most_anchors: ClassVar[int | None] = 12_000

    gamma: float | Literal["auto"] = "auto"
    alpha: float | Literal["auto"] = "auto"
    landmarks: int | None = None
    inverse: bool = True
    seed: int = 0

    def _fit(self, source: Tensor, target: Tensor) -> None:
        forward = self._one_way(source.double(), target.double())
        self.centre_, self.support_ = forward["centre"], forward["support"]
        self.weights_, self.bias_ = forward["weights"], forward["bias"]
        self.rbf_gamma_, self.penalty_ = forward["rbf_gamma"], forward["penalty"]
        self.width_factor_ = forward["width_factor"]
        self.target_mean_ = target.double().mean(0).numpy()
        self.inverse_: dict[str, Any] = (
            self._one_way(target.double(), source.double()) if self.inverse else {}
        )

    def preferred(self, given: Container[str], *, one_way: bool) -> Self:
        """Return the map without its way back, which costs as much again, where nobody asks for it."""
        if one_way and "inverse" not in given:
            self.set_params(inverse=False)
        return self

    @property
    def row_bytes(self) -> int:
        """Bytes of one row on its way, its distances to the anchors among them."""
        return super().row_bytes + 8 * len(self.support_)

    def settled(self) -> Self:
        """Return an unfitted copy with the width and λ that were chosen."""
        copy = super().settled()
        copy.set_params(gamma=self.width_factor_, alpha=self.penalty_)
        return copy

    def _one_way(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        centre = x.mean(0)
        rows = x - centre
        spread = float(rows.square().sum(1).mean()) or 1.0
        width, penalty = self._settings(rows, y, spread)
        gamma = width / spread
        if self.landmarks is None or self.landmarks >= len(rows):
            support, (weights, bias) = rows, _solve(rbf(rows, rows, gamma), y, penalty)
        else:
            rng = np.random.default_rng(derive_seed(self.seed, "landmarks"))
            index = np.sort(rng.choice(len(rows), max(1, self.landmarks), replace=False))
            support = rows[torch.from_numpy(index)]
            weights, bias = _nystroem(rows, y, support, gamma, penalty)
        return {
            "centre": centre.numpy(),
            "support": support.numpy(),
            "weights": weights.contiguous().numpy(),
            "bias": bias.numpy(),
            "rbf_gamma": gamma,
            "width_factor": width,
            "penalty": penalty,
        }

    def _settings(self, rows: Tensor, y: Tensor, spread: float) -> tuple[float, float]:
        """Return g and λ: as given, or those of least leave-one-out error on some of the rows."""
        widths = WIDTHS if self.gamma == "auto" else (float(self.gamma),)
        penalties = PENALTIES if self.alpha == "auto" else (float(self.alpha),)
        if len(widths) * len(penalties) == 1:
            return widths[0], penalties[0]
        if len(rows) > TUNING_ROWS:
            rng = np.random.default_rng(derive_seed(self.seed, "tuning rows"))
            index = torch.from_numpy(np.sort(rng.choice(len(rows), TUNING_ROWS, replace=False)))
            rows, y = rows[index], y[index]
        # float32: a choice between settings needs no more digits
        rows, y = rows.float(), y.float()
        judge = _judge(y)
        first = UNTUNED[1] if UNTUNED[1] in penalties else penalties[0]
        kernels = {width: rbf(rows, rows, width / spread) for width in widths}
        scores = {(width, first): judge(kernels[width], first) for width in widths}
        best = min(scores, key=lambda setting: scores[setting])[0]
        scores |= {(best, other): judge(kernels[best], other) for other in penalties if other != first}
        return min(scores, key=lambda setting: scores[setting])

    def leave_one_out(self, X: Any, y: Any) -> Any:  # noqa: N803 - scikit-learn's name
        """Return for each anchor the prediction of the map fitted on the others, kernel width and λ kept."""
        source, target = (part.double() for part in self._pairs(X, y, reset=False))
        rows = source - torch.from_numpy(self.centre_)
        if len(self.support_) == len(rows):
            return like(_left_out(rbf(rows, rows, self.rbf_gamma_), target, self.penalty_), y)
        features = _features(rows, torch.from_numpy(self.support_), self.rbf_gamma_)
        return like(ridge_loo(features, target, [self.penalty_]).predictions, y)

    def _forward(self, rows: Tensor) -> Tensor:
        return _apply(rows, self.centre_, self.support_, self.weights_, self.bias_, self.rbf_gamma_)

    def _backward(self, rows: Tensor) -> Tensor:
        if not self.inverse_:
            raise ValueError("the way back was not fitted; fit with inverse=True")
        back = self.inverse_
        return _apply(rows, back["centre"], back["support"], back["weights"], back["bias"], back["rbf_gamma"])

    def fold_output(self, matrix: Array, centre: Array) -> None:
        """Follow the map by y ↦ centre + (y − centre) · matrix (used to restore variance)."""
        self.weights_ = self.weights_ @ matrix
        self.bias_ = centre + (self.bias_ - centre) @ matrix

    # -- two machines --------------------------------------------------------------------------------------

    def agree(self, anchors: Any, ids: Sequence[Any], other_width: int = 0) -> Agreement:
        """Return what both machines must know: the anchors, g and λ (0.5 and 0.03 unless given)."""
        gamma = UNTUNED[0] if self.gamma == "auto" else float(self.gamma)
        alpha = UNTUNED[1] if self.alpha == "auto" else float(self.alpha)
        return Agreement(
            "kernel", {"gamma": gamma, "alpha": alpha}, anchors_hash(ids), len(check_array(anchors))
        )

    def fit_encoder(self, anchors: Any, ids: Sequence[Any], agreement: Agreement) -> Half:
        """Return the half that turns source rows into weights per anchor; they sum to one."""
        agreement.check_ids(ids, "fit_encoder")
        rows = to_tensor(check_array(anchors)).double()
        mean = rows.mean(0)
        rows = rows - mean
        gamma = agreement.parameters["gamma"] / (float(rows.square().sum(1).mean()) or 1.0)
        identity = torch.eye(len(rows), dtype=torch.float64)
        weights, offset = _solve(rbf(rows, rows, gamma), identity, agreement.parameters["alpha"])
        arrays = {"mean": mean, "landmarks": rows, "matrix": weights, "offset": offset}
        return Half("encoder", agreement, {name: part.numpy() for name, part in arrays.items()}, gamma=gamma)

    def fit_decoder(self, anchors: Any, ids: Sequence[Any], agreement: Agreement) -> Half:
        """Return the half that turns weights per anchor into target rows: r (Y − μ) + μ, no inverse."""
        return smoother_decoder(anchors, ids, agreement)


def _judge(y: Tensor) -> Callable[[Tensor, float], tuple[float, float]]:
    """Return what is to be small of a setting, from its leave-one-out predictions: recall lost, then error.

    Few rows or features have no neighbourhood to speak of: there only the squared error counts.
    """
    ranked = len(y) >= FEWEST_ROWS and y.shape[1] >= LEAST_WIDTH
    own = torch.arange(len(y))

    def nearest(rows: Tensor) -> Tensor:
        scores = unit(y) @ unit(rows).T
        scores[own, own] = -torch.inf
        return torch.zeros(scores.shape, dtype=torch.bool).scatter_(1, scores.topk(NEIGHBOURS)[1], True)

    expected = nearest(y) if ranked else None

    def judge(kernel: Tensor, penalty: float) -> tuple[float, float]:
        try:
            predicted = _left_out(kernel, y, penalty)
        except NumericalError:
            return (np.inf, np.inf)
        error = float((predicted - y).square().mean())
        lost = -int((nearest(predicted) & expected).sum()) if expected is not None else 0
        return (lost, error)

    return judge


def _apply(rows: Tensor, centre: Array, support: Array, weights: Array, bias: Array, gamma: float) -> Tensor:
    middle, landmarks, matrix, offset = beside(rows, centre, support, weights, bias)

    def product(block: Tensor, out: Tensor) -> None:
        torch.addmm(offset, rbf(block - middle, landmarks, gamma), matrix, out=out)

    return by_blocks(rows, matrix.shape[1], product)


def _root(support: Tensor, gamma: float) -> Tensor:
    """Return K_LL^−½ over the directions that the landmarks show."""
    values, vectors = torch.linalg.eigh(rbf(support, support, gamma))
    kept = values > 1e-10 * values[-1]
    root: Tensor = (vectors[:, kept] / values[kept].sqrt()) @ vectors[:, kept].T
    return root


def _features(rows: Tensor, support: Tensor, gamma: float) -> Tensor:
    return rbf(rows, support, gamma) @ _root(support, gamma)


def _nystroem(
    rows: Tensor, y: Tensor, support: Tensor, gamma: float, penalty: float
) -> tuple[Tensor, Tensor]:
    """Return A and b of y = k(x, L) A + b from ridge on Nyström features, whose Moments are streamed."""
    root = _root(support, gamma)
    moments = Moments.zeros(len(support), y.shape[1], parts=("aa", "ab"), name="kernel")
    for start in range(0, len(rows), 4096):
        moments.update(rbf(rows[start : start + 4096], support, gamma) @ root, y[start : start + 4096])
    fitted = ridge(moments, penalty, relative=False)
    bias = fitted.bias
    return root @ fitted.matrix, bias if bias is not None else y.mean(0)


# -- the bordered system -----------------------------------------------------------------------------------
# [K + λI, 1; 1ᵀ, 0] [A; b] = [Y; 0]. With M = (K + λI)⁻¹ and s = 1ᵀM1 its inverse has the block
# P = M − M 1 1ᵀ M / s, so A = P Y, b = 1ᵀ M Y / s, and the error at a row left out is A_i / P_ii.


def _solve(kernel: Tensor, y: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Return A [anchors, target] and b [target] for one λ."""
    factor = _factor(kernel, penalty)
    ones = torch.ones(len(kernel), 1, dtype=kernel.dtype)
    both = torch.cholesky_solve(torch.hstack([y, ones]), factor)
    smooth, flat = both[:, :-1], both[:, -1:]
    bias = smooth.sum(0) / flat.sum()
    return smooth - flat * bias, bias


def _left_out(kernel: Tensor, y: Tensor, penalty: float) -> Tensor:
    """Return the leave-one-out predictions [anchors, target] for one λ: y_i − A_i / P_ii."""
    factor = _factor(kernel, penalty)
    ones = torch.ones(len(kernel), 1, dtype=kernel.dtype)
    inverse = torch.cholesky_inverse(factor)
    flat = inverse @ ones
    diagonal = inverse.diagonal()[:, None] - flat.square() / flat.sum()
    smooth = inverse @ y
    weights = smooth - flat * (smooth.sum(0) / flat.sum())
    return y - weights / diagonal


def _factor(kernel: Tensor, penalty: float) -> Tensor:
    loaded = kernel + penalty * torch.eye(len(kernel), dtype=kernel.dtype)
    factor, failed = torch.linalg.cholesky_ex(loaded)
    if int(failed):
        raise NumericalError(
            f"the kernel matrix of {len(kernel)} anchors is singular at λ = {penalty:g}",
            where="kernel",
            fix="raise alpha, or remove anchors that occur twice",
        )
    cholesky: Tensor = factor
    return cholesky
