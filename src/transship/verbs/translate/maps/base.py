"""What all translators share: scikit-learn's conventions, kinds of arrays, both directions; linear maps.

Rows come as numpy arrays or torch tensors of any float dtype, and go as they came.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from transship.geometry import LinearMap, Moments
from transship.numerics import chunks
from transship.registry import Method, method_name
from transship.types import Array
from transship.verbs.translate.maps.vectors import anchors_hash

# rows of one block of a streamed product: large enough for a fast product, small enough to stay in cache
BLOCK = 8192
# a feature whose standard deviation is below this share of the root mean square one is rounding only
DEAD = 1e-3


def to_tensor(rows: Any) -> Tensor:
    """Return `rows` as a floating tensor without a copy where that is possible.

    float64 stays; float32, float16 and bfloat16 stay; integers and everything else become float64.
    """
    if isinstance(rows, Tensor):
        return rows.detach() if rows.is_floating_point() else rows.detach().double()
    array = np.asarray(rows)
    if array.dtype not in (np.float64, np.float32, np.float16):
        array = array.astype(np.float64)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()  # torch views neither read-only nor reversed memory
    return torch.from_numpy(array)


def working(rows: Tensor) -> Tensor:
    """Return `rows` in the dtype the arithmetic runs in: float64 for float64, float32 for the rest."""
    return rows if rows.dtype == torch.float64 else rows.float()


def beside(rows: Tensor, *arrays: Array) -> list[Tensor]:
    """Return arrays as tensors where `rows` are, in the dtype the arithmetic runs in."""
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
    return [torch.from_numpy(array).to(rows.device, dtype) for array in arrays]


def like(result: Tensor, given: Any) -> Any:
    """Return `result` as the kind (numpy, or torch on its device) and float dtype of `given`."""
    if isinstance(given, Tensor):
        dtype = given.dtype if given.is_floating_point() else torch.float64
        return result.to(device=given.device, dtype=dtype)
    array = result.cpu().numpy()
    kind = getattr(given, "dtype", np.dtype(np.float64))
    return array.astype(kind, copy=False) if np.issubdtype(kind, np.floating) else array


def by_blocks(rows: Tensor, width: int, product: Callable[[Tensor, Tensor], object]) -> Tensor:
    """Return the rows that `product(block, out)` writes, so that no intermediate is larger than one block.

    Shapes: rows [rows, source] → [rows, width]; the result has the working dtype of `rows`.
    """
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
    result = torch.empty((rows.shape[0], width), dtype=dtype, device=rows.device)
    for part in chunks(rows.shape[0], BLOCK):
        product(rows[part].to(dtype), result[part])
    return result


def unit(rows: Tensor) -> Tensor:
    """Return the rows with length 1; a row of zeros stays zero."""
    return torch.nn.functional.normalize(rows, dim=1, eps=torch.finfo(rows.dtype).tiny)


class Translator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, Method):  # type: ignore[misc]
    """A map from one embedding space into another, fitted on paired rows (the anchors).

    Parameters are dataclass fields, so scikit-learn (`clone`, `get_params`) and the registry read the same
    ones. Rows may be numpy arrays or torch tensors of any float dtype and come back as they went in. Fits run
    in float64 (products of float32 rows in float32, summed in float64); `transform` runs in float64 for
    float64 rows and in float32 for all others.
    """

    # the place among what `fit --method auto` compares, simplest first; None: tried only when asked for
    place_in_auto: ClassVar[int | None] = None
    # whether `leave_one_out` is a closed form; otherwise quality is forecast by folds
    closed_form: ClassVar[bool] = False
    # whether rows come out in the target's space; otherwise in one that both sides share
    into_target: ClassVar[bool] = True
    # whether the map bends, and so learns more from many anchors than any linear one
    bends: ClassVar[bool] = False
    # float64 matrices [anchors, anchors] that a fit holds at its worst, and the most anchors it can bear
    anchor_squares: ClassVar[int] = 0
    most_anchors: ClassVar[int | None] = None

    def fit(self, X: Any, y: Any, ids: Sequence[Any] | None = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Fit on paired rows: X [anchors, source], y [anchors, target]; `ids` names the anchors."""
        source, target = self._pairs(X, y)
        self._fit(source, target)
        self.n_anchors_ = int(source.shape[0])
        self.anchors_hash_ = anchors_hash(ids) if ids is not None else ""
        return self

    def fit_each(self, sources: Iterable[Any], target: Any) -> Iterator[Self]:
        """Yield, for each source of the same items, a copy of this map fitted from it onto the one target.

        The same as fitting each by itself; methods share what only the target decides.
        """
        for source in sources:
            yield clone(self).fit(source, target)

    def transform(self, X: Any) -> Any:  # noqa: N803
        """Return the rows of X [rows, source] in the target space [rows, target]."""
        check_is_fitted(self)
        rows = self._rows(X)
        return like(self._forward(rows), X if isinstance(X, Tensor) else rows.numpy())

    def inverse_transform(self, X: Any) -> Any:  # noqa: N803
        """Return rows of the target space in the source space, by the map fitted in that direction."""
        check_is_fitted(self)
        rows = to_tensor(X)
        if rows.ndim != 2 or rows.shape[1] != self._n_features_out:
            raise ValueError(f"X has shape {tuple(rows.shape)}, expected [rows, {self._n_features_out}]")
        return like(self._backward(rows), X)

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        """Return the mean cosine between the translated rows of X and their partners y."""
        translated = working(to_tensor(self.transform(X)))
        target = to_tensor(y).to(translated)
        return float((unit(translated) * unit(target.reshape(translated.shape))).sum(1).mean())

    def direction(self, X: Any) -> Any:  # noqa: N803
        """Return translated rows without the target's mean, as a query may want it."""
        check_is_fitted(self)
        rows = self._rows(X)
        moved = self._forward(rows)
        moved -= torch.from_numpy(self.target_mean_).to(moved)
        return like(moved, X if isinstance(X, Tensor) else rows.numpy())

    def preferred(self, given: Container[str], *, one_way: bool) -> Self:
        """Return the map with what `fit` takes in place of the paper's defaults, `given` names apart.

        With `one_way` nobody will ask for the way back.
        """
        return self

    def settled(self) -> Self:
        """Return an unfitted copy that keeps the settings which this fit has chosen at a cost."""
        copy: Self = clone(self)
        return copy

    def as_affine(self) -> tuple[Array, Array] | None:
        """Return (W, b) of a map that is y = x W + b; None for all others."""
        return None

    @property
    def array_bytes(self) -> int:
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))

    @property
    def row_bytes(self) -> int:
        """Bytes of one row on its way: read, translated, scaled."""
        return 4 * (2 * int(self.n_features_in_) + 3 * int(self.n_features_out_))

    @property
    def _n_features_out(self) -> int:
        return int(self.n_features_out_)

    @property
    def map_name(self) -> str:
        """The `--method` name: the name of the file that defines the class."""
        return method_name(type(self))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    # -- for subclasses ------------------------------------------------------------------------------------

    def _fit(self, source: Tensor, target: Tensor) -> None:
        """Set the fitted attributes from validated rows."""
        raise TypeError(f"{type(self).__name__} defines no fit")

    def _forward(self, rows: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} defines no transform")

    def _backward(self, rows: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} defines no inverse_transform")

    def _pairs(self, X: Any, y: Any, *, reset: bool = True) -> tuple[Tensor, Tensor]:  # noqa: N803
        """Validate paired rows and note their widths."""
        X, y = (working(to_tensor(rows).cpu()) if isinstance(rows, Tensor) else rows for rows in (X, y))  # noqa: N806
        source, target = validate_data(
            self,
            X,
            y,
            multi_output=True,
            y_numeric=True,
            dtype=[np.float64, np.float32],
            reset=reset,
            ensure_min_samples=2,
        )
        target = np.asarray(target)
        if target.dtype not in (np.float32, np.float64):
            target = target.astype(np.float64)
        pair = to_tensor(source), to_tensor(target.reshape(len(target), -1))
        if reset:
            self.n_features_out_ = int(pair[1].shape[1])
        return pair

    def _rows(self, X: Any) -> Tensor:  # noqa: N803
        """Validate rows to translate: their width is the one that was fitted."""
        if isinstance(X, Tensor) and X.is_floating_point():
            if X.ndim != 2 or X.shape[1] != self.n_features_in_:
                raise ValueError(
                    f"X has shape {tuple(X.shape)}, but {type(self).__name__} is expecting "
                    f"{self.n_features_in_} features as input"
                )
            if not bool(torch.isfinite(X.sum(dim=1)).all()) and not bool(torch.isfinite(X).all()):
                raise ValueError("Input X contains NaN or infinity.")
            return X.detach()
        return to_tensor(validate_data(self, X, reset=False, dtype=[np.float64, np.float32, np.float16]))


class LinearTranslator(Translator):
    """y = x · coef_ + intercept_, fitted from Moments of the anchors; the way back is fitted by itself.

    A target feature that is constant over the anchors (all-MiniLM-L6-v2 has three) comes out as its mean: no
    map is fitted onto it. A constant source feature gets no weight.
    """

    def _fit(self, source: Tensor, target: Tensor) -> None:
        self.fit_moments(Moments.of(source, target, name=self.map_name))

    def fit_moments(self, moments: Moments) -> Self:
        """Fit from the Moments of paired rows, which may have been streamed or gathered on many machines."""
        moments.check()
        self._keep(self._fit_live(moments), self._fit_live(moments.swapped()), moments)
        return self

    def partial_fit(self, X: Any, y: Any) -> Self:  # noqa: N803 - scikit-learn's name
        """Add paired rows to those seen before and fit anew; equals one fit on all rows (1e-8)."""
        first = not hasattr(self, "moments_")
        source, target = self._pairs(X, y, reset=first)
        if first:
            self.moments_ = Moments.zeros(source.shape[1], target.shape[1], name=self.map_name)
        self.moments_.update(source, target)
        if self.moments_.count >= 2:
            self.fit_moments(self.moments_)
        return self

    def _solve(self, moments: Moments) -> LinearMap:
        raise TypeError(f"{type(self).__name__} defines no solution")

    def _fit_live(self, moments: Moments) -> LinearMap:
        """Solve on the features that vary; put the constant ones back as zero columns and rows."""
        live_a, live_b = (live_features(part) for part in (moments, moments.swapped()))
        if bool(live_a.all()) and bool(live_b.all()):
            return self._solve(moments)
        solved = self._solve(_restrict(moments, live_a, live_b))
        matrix = torch.zeros(moments.width_a, moments.width_b, dtype=torch.float64)
        rows, columns = torch.nonzero(live_a)[:, 0], torch.nonzero(live_b)[:, 0]
        matrix[rows[:, None], columns] = solved.matrix.double()
        near: Tensor | None = moments.sum_a / moments.count
        far = moments.sum_b / moments.count
        if solved.source_mean is None and solved.target_mean is None:
            # a map without means: a constant target feature still has to come out as its mean
            near, far = None, torch.where(live_b, 0.0, far)
        return dataclasses.replace(solved, matrix=matrix, source_mean=near, target_mean=far)

    def _keep(self, forward: LinearMap, backward: LinearMap, moments: Moments) -> None:
        """Set the fitted attributes from the maps of both directions."""
        self.coef_, self.intercept_ = _weights(forward)
        self.inverse_coef_, self.inverse_intercept_ = _weights(backward)
        self.rank_, self.tolerance_ = int(forward.rank), float(forward.tolerance)
        self.details_ = {name: float(value) for name, value in forward.details.items()}
        self.n_features_in_, self.n_features_out_ = moments.width_a, moments.width_b
        self.source_mean_ = (moments.sum_a / moments.count).numpy()
        self.target_mean_ = (moments.sum_b / moments.count).numpy()
        self.n_anchors_ = int(moments.count)
        self.anchors_hash_ = ""

    def _forward(self, rows: Tensor) -> Tensor:
        return affine_rows(rows, self.coef_, self.intercept_)

    def _backward(self, rows: Tensor) -> Tensor:
        return affine_rows(rows, self.inverse_coef_, self.inverse_intercept_)

    def as_affine(self) -> tuple[Array, Array]:
        """Return (W, b) with y = x W + b."""
        return self.coef_, self.intercept_

    def fold_output(self, matrix: Array, centre: Array) -> None:
        """Follow the map by y ↦ centre + (y − centre) · matrix (used to restore variance)."""
        self.coef_ = self.coef_ @ matrix
        self.intercept_ = centre + (self.intercept_ - centre) @ matrix


def _weights(fitted: LinearMap) -> tuple[Array, Array]:
    matrix = np.ascontiguousarray(fitted.matrix.double().numpy())
    bias = fitted.bias
    return matrix, np.zeros(matrix.shape[1]) if bias is None else bias.double().numpy()


def live_features(moments: Moments) -> Tensor:
    """Return which features of side a vary over the rows."""
    mean = moments.sum_a / moments.count
    variance = (moments.square_a / moments.count - mean.square()).clamp_min(0.0)
    # the difference of squares is known to the rounding of the squares only
    rounding = 8.0 * moments.precision * moments.square_a / moments.count
    live = variance > torch.maximum(rounding, DEAD**2 * variance.mean())
    return live if bool(live.any()) else torch.ones_like(live)


def _restrict(moments: Moments, live_a: Tensor, live_b: Tensor) -> Moments:
    def square(part: Tensor | None, rows: Tensor, columns: Tensor) -> Tensor | None:
        return None if part is None else part[rows][:, columns]

    return Moments(
        moments.count,
        moments.sum_a[live_a],
        moments.sum_b[live_b],
        moments.square_a[live_a],
        moments.square_b[live_b],
        square(moments.aa, live_a, live_a),
        square(moments.bb, live_b, live_b),
        square(moments.ab, live_a, live_b),
        moments.exact,
        moments.marks,
        name=moments.name,
    )


def affine_rows(rows: Tensor, matrix: Array, bias: Array) -> Tensor:
    """Return rows · matrix + bias, [rows, source] → [rows, target], block by block."""
    weight, offset = beside(rows, matrix, bias)
    return by_blocks(rows, weight.shape[1], lambda block, out: torch.addmm(offset, block, weight, out=out))
