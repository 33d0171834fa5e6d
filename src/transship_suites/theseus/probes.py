"""Linear probes on frozen features."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def logistic_probe(
    features: Tensor,
    labels: Any,
    test: Tensor,
    test_labels: Any,
    strengths: tuple[float, ...] = (0.1, 1.0, 10.0),
) -> float:
    """Return the test accuracy of a logistic regression; its strength is chosen by four folds of the training
    rows.
    """
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = features.numpy(), np.asarray(labels)

    def model(strength: float) -> Any:
        return make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=300))

    folds = min(4, int(np.unique(y, return_counts=True)[1].min()))
    best = strengths[0]
    if folds >= 2:
        scores = {
            strength: cross_val_score(model(strength / 30), x, y, cv=folds).mean() for strength in strengths
        }
        best = max(scores, key=lambda strength: scores[strength])
    fitted = model(best / 30).fit(x, y)
    return float(fitted.score(test.numpy(), np.asarray(test_labels)))
