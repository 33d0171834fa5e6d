"""What all translators share: scikit-learn's conventions, kinds of arrays, both directions, saving."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from transship.registry import Method, method_name
from transship.types import Array
from transship.verbs.translate.vectors import anchors_hash, by_blocks, like, to_tensor, unit, working


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
        """Bytes of the fitted arrays."""
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
        X, y = (rows.detach().cpu() if isinstance(rows, Tensor) else rows for rows in (X, y))  # noqa: N806
        X, y = (rows.float() if _is_half(rows) else rows for rows in (X, y))  # noqa: N806
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


def _is_half(rows: Any) -> bool:
    if isinstance(rows, Tensor):
        return rows.dtype in (torch.float16, torch.bfloat16)
    return False


def affine_rows(rows: Tensor, matrix: Array, bias: Array) -> Tensor:
    """Return rows · matrix + bias, [rows, source] → [rows, target], block by block."""
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
    weight = torch.from_numpy(matrix).to(device=rows.device, dtype=dtype)
    offset = torch.from_numpy(bias).to(device=rows.device, dtype=dtype)
    return by_blocks(rows, weight.shape[1], lambda block, out: torch.addmm(offset, block, weight, out=out))
