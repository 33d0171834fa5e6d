"""`Recraft`: the adaptation as a scikit-learn classifier or regressor."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from transship.errors import OptionError
from transship.progress import Progress
from transship.report import html
from transship.types import Array
from transship.verbs.adapt.adapted import Adapted, read_adapted, save_adapted
from transship.verbs.adapt.bound import Bound, measure_bound
from transship.verbs.adapt.fit import adapt
from transship.verbs.adapt.model.source import SourceSide
from transship.verbs.adapt.result import fit_page
from transship.verbs.adapt.settings import Settings


@dataclass(eq=False, repr=False, kw_only=True)
class Recraft(Settings, BaseEstimator):  # type: ignore[misc]
    """A pretrained transformer for data that it has never seen.

    `Recraft(backbone="minilm-l6").fit(X, y).predict(X)`; parameters are those of `Settings`. X holds series
    [rows, length] or [rows, channels, length], grids [rows, channels, height, width], tabular rows or token
    ids (`kind`); y holds classes, 0/1 labels, numbers, or signals and fields.
    """

    def fit(
        self,
        X: Any,  # noqa: N803 - scikit-learn's name
        y: Any,
        *,
        compare: bool = False,
        seen: Progress | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> Self:
        """Adapt to the rows.

        `compare` runs the raw baselines on the validation rows first (`baselines_`, `advice_`);
        `seen(what, done, total)` is told as the work goes on, `tell(line)` what a user wants to read.
        """
        adapted, split = adapt(X, y, self, compare=compare, seen=seen, tell=tell)
        self.validation_index_ = split.held_index
        if np.ndim(X) == 2:
            self.n_features_in_ = int(np.shape(X)[1])
        return self._take(adapted)

    def _take(self, adapted: Adapted) -> Self:
        self.adapted_, about = adapted, adapted.about
        self.task_, self.metric_ = str(about["task"]), str(about["metric"])
        self.history_: list[dict[str, Any]] = about["history"]
        self.stage1_: list[dict[str, Any]] = about["stage1"]
        self.notes_: list[str] = about["notes"]
        self.validation_: dict[str, float] = about["validation"]
        self.baselines_: list[dict[str, Any]] = about.get("baselines", [])
        self.advice_ = str(about.get("advice", ""))
        self.source_: SourceSide | None = adapted.source
        self.seconds_: Mapping[str, float] = adapted.seconds
        if adapted.targets.classes is not None:
            self.classes_ = adapted.targets.classes
        return self

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return classes in the user's own values, 0/1 labels, or numbers in the targets' units and shape."""
        return self._fitted.targets.decode(self._fitted.outputs(X))

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Return probabilities [rows, classes] or [rows, labels]."""
        scores = self._fitted.targets.scores(self._fitted.outputs(X))
        if scores is None:
            raise OptionError(f"{self.task_} has no probabilities", where="predict_proba", fix="use predict")
        return scores

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        """Return scikit-learn's usual score: accuracy (of whole rows for multi-label), or R²."""
        predicted, truth = self.predict(X), np.asarray(y)
        if self.task_ in ("classification", "multilabel"):
            return float(accuracy_score(truth, predicted))
        return float(r2_score(truth.reshape(len(truth), -1), predicted.reshape(len(predicted), -1)))

    def evaluate(self, X: Any, y: Any) -> dict[str, float]:  # noqa: N803
        """Return every metric of the task by name, on the whole set."""
        return self._fitted.evaluate(X, y)

    def bound(self, X: Any, y: Any) -> Bound:  # noqa: N803
        """Return the terms of Theorem 7 on rows that did not train."""
        return measure_bound(self._fitted, X, y, seed=self.seed)

    def embedded(self, X: Any) -> Array:  # noqa: N803
        """Return token means of φ(x) [rows, width], where FA is measured."""
        return self._fitted.embedded(X)

    def features(self, X: Any) -> Array:  # noqa: N803
        """Return token means of the adapted body's states [rows, width]."""
        return self._fitted.features(X)

    def source_probabilities(self, X: Any) -> Array:  # noqa: N803
        """Return p_s(z|φ(x)) [rows, source labels], through the pretrained body and the source's head."""
        return self._fitted.source_probabilities(X)

    def source_gradient_norms(self, X: Any, labels: Any = None) -> Array:  # noqa: N803
        """Return ‖∇_u ℓ_s‖ per row at u = φ(x), over all tokens; without labels ℓ_s is the entropy of p_s."""
        return self._fitted.source_gradient_norms(X, labels)

    def target_codes(self, y: Any) -> Array:
        """Return the classes z' of FLD: the labels' codes, or k-means codes of other targets."""
        return self._fitted.targets.label_codes(y)

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write the model into a folder: safetensors and JSON, no pickle."""
        return save_adapted(self._fitted, folder, force=force)

    def report(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        return html.write(fit_page(self._fitted), path, force=force)

    @property
    def _fitted(self) -> Adapted:
        check_is_fitted(self)
        return self.adapted_

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        task = getattr(self, "task_", self.task)
        tags.estimator_type = "regressor" if task in ("regression", "dense") else "classifier"
        tags.target_tags.required = True
        tags.target_tags.multi_output = task in ("multilabel", "dense")
        tags.input_tags.two_d_array = True
        tags.input_tags.three_d_array = True
        tags.non_deterministic = False
        return tags


def load_adapted(folder: str | os.PathLike[str]) -> Recraft:
    """Read a model that was saved, as a fitted estimator; what is cut short or changed is one clear error."""
    adapted = read_adapted(folder)
    settings = adapted.about["settings"]
    return Recraft(**{name: value for name, value in settings.items() if hasattr(Settings, name)})._take(
        adapted
    )
