"""Relative representation: the shared space of angles to the anchors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from transship.verbs.translate.maps.anchoring import invert_anchors
from transship.verbs.translate.maps.base import Translator, beside, by_blocks, to_tensor, unit, working
from transship.verbs.translate.maps.vectors import anchors_hash


@dataclass(kw_only=True, eq=False, repr=False)
class RelativeRepresentation(Translator):
    """Represent rows by their cosines with the anchors: a space that encoders of any width share.

    r = x̂ A_xᵀ, Eq. (1), with anchors A and rows x about the anchors' mean and of unit length; it is the same
    for a rotated, scaled or shifted space. `fit(anchors)` needs one space only; two encoders fitted on the
    same anchors give rows that can be compared. `inverse_transform` decodes into the fitted space, Eq. (2).

    Attributes:
        centre: whether the anchors' mean is removed first.
    """

    paper: ClassVar[str] = (
        "Moschella et al., Relative representations enable zero-shot latent space communication"
    )
    into_target: ClassVar[bool] = False

    centre: bool = True

    def fit(self, X: Any, y: Any = None, ids: Sequence[Any] | None = None) -> RelativeRepresentation:  # noqa: N803
        """Fit on the anchors X [anchors, source]; y is ignored."""
        if isinstance(X, Tensor):
            X = X.detach().cpu().numpy() if X.dtype != torch.bfloat16 else X.detach().cpu().float().numpy()  # noqa: N806
        rows = to_tensor(validate_data(self, X, dtype=[np.float64, np.float32])).double()
        self.mean_ = (
            rows.mean(0) if self.centre else torch.zeros(rows.shape[1], dtype=torch.float64)
        ).numpy()
        centred = rows - torch.from_numpy(self.mean_)
        self.anchors_ = unit(centred).numpy()
        self.scale_ = float(centred.norm(dim=1).mean())
        self.n_anchors_ = self.n_features_out_ = len(rows)
        self.anchors_hash_ = anchors_hash(ids) if ids is not None else ""
        return self

    def score(self, X: Any, y: Any = None) -> float:  # noqa: N803
        """Return the mean cosine between rows and what comes back from their relative representation."""
        check_is_fitted(self)
        rows = self._rows(X).double()
        back = to_tensor(self.inverse_transform(self.transform(rows)))
        return float((unit(rows) * unit(back)).sum(1).mean())

    def _forward(self, rows: Tensor) -> Tensor:
        mean, anchors = beside(rows, self.mean_, self.anchors_)
        return by_blocks(
            rows, len(anchors), lambda block, out: torch.mm(unit(block - mean), anchors.T, out=out)
        )

    def _backward(self, rows: Tensor) -> Tensor:
        inverse = invert_anchors(torch.from_numpy(self.anchors_)).matrix * self.scale_
        matrix, mean = beside(rows, inverse.numpy(), self.mean_)
        return working(rows) @ matrix + mean

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        return tags
