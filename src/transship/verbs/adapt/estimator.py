"""`Recraft`: the adaptation as a scikit-learn classifier or regressor."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from transship.errors import OptionError
from transship.numerics import chunks
from transship.verbs.adapt.adapted import Adapted
from transship.verbs.adapt.fit import adapt
from transship.verbs.adapt.model.backbone import Backbone, Body, open_backbone
from transship.verbs.adapt.settings import Settings
from transship.verbs.adapt.source.model import Source

Array = np.ndarray[Any, Any]


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
        seen: Any = None,
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
        self.adapted_ = adapted
        about = adapted.about
        self.task_, self.metric_ = str(about["task"]), str(about["metric"])
        self.history_: list[dict[str, Any]] = about["history"]
        self.stage1_: list[dict[str, Any]] = about["stage1"]
        self.notes_: list[str] = about["notes"]
        self.validation_: dict[str, float] = about["validation"]
        self.baselines_: list[dict[str, Any]] = about.get("baselines", [])
        self.advice_ = str(about.get("advice", ""))
        self.source_: Source | None = adapted.source
        self.seconds_: Mapping[str, float] = adapted.seconds
        if adapted.targets.classes is not None:
            self.classes_ = adapted.targets.classes
        return self

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return classes in the user's own values, 0/1 labels, or numbers in the targets' units and shape."""
        check_is_fitted(self)
        return self.adapted_.targets.decode(self.adapted_.outputs(X))

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Return probabilities [rows, classes] or [rows, labels]."""
        check_is_fitted(self)
        made = self.adapted_.targets.scores(self.adapted_.outputs(X))
        if made is None:
            raise OptionError(f"{self.task_} has no probabilities", where="predict_proba", fix="use predict")
        return made

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        """Return scikit-learn's usual score: accuracy (of whole rows for multi-label), or R²."""
        made, truth = self.predict(X), np.asarray(y)
        if self.task_ in ("classification", "multilabel"):
            return float(accuracy_score(truth, made))
        return float(r2_score(truth.reshape(len(truth), -1), made.reshape(len(made), -1)))

    def evaluate(self, X: Any, y: Any) -> dict[str, float]:  # noqa: N803
        """Return every metric of the task by name, on the whole set."""
        check_is_fitted(self)
        return self.adapted_.evaluate(X, y)

    def embedded(self, X: Any) -> Array:  # noqa: N803
        """Return token means of φ(x) [rows, width], where FA is measured."""
        check_is_fitted(self)
        return self.adapted_.embedded(X)

    def features(self, X: Any) -> Array:  # noqa: N803
        """Return token means of the adapted body's states [rows, width]."""
        check_is_fitted(self)
        return self.adapted_.features(X)

    def source_probabilities(self, X: Any) -> Array:  # noqa: N803
        """Return p_s(z|φ(x)) [rows, source labels], through the pretrained body and the source's head."""
        return self.adapted_.source_probabilities(X, self._pristine(), self._known())

    def source_gradient_norms(self, X: Any, labels: Any = None) -> Array:  # noqa: N803
        """Return ‖∇_u ℓ_s‖ per row at u = φ(x), over all tokens.

        Without labels ℓ_s is the entropy of p_s: the source's conditional is unknown there.
        """
        source, body = self._known(), self._pristine()
        adapted, grid = self.adapted_, self.adapted_.network.embedder.shape.grid
        rows = torch.from_numpy(adapted.inputs.transform(X))
        found = []
        for part in chunks(len(rows), adapted.forward_rows):
            tokens = adapted.network.embedder(rows[part].to(adapted.device)).detach().requires_grad_(True)
            made = source.probabilities(body(tokens, None, grid)).clamp_min(1e-12)
            if labels is None:
                loss = -(made * made.log()).sum()
            else:
                wanted = torch.as_tensor(np.asarray(labels)[part]).long().to(made.device)
                loss = -made.gather(1, wanted[:, None]).log().sum()
            (slope,) = torch.autograd.grad(loss, tokens)
            found.append(slope.flatten(1).norm(dim=1).cpu())
        return np.asarray(torch.cat(found).numpy())

    def target_codes(self, y: Any) -> Array:
        """Return the classes z' of FLD.

        The labels' codes, or k-means codes of numeric and multi-label targets.
        """
        check_is_fitted(self)
        return self.adapted_.targets.label_codes(y)

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write the model into a folder: safetensors and JSON, no pickle."""
        from transship.verbs.adapt.artifact import save_adapted

        check_is_fitted(self)
        return save_adapted(self.adapted_, folder, force=force)

    def report(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write a page to look at."""
        from transship.report import html
        from transship.verbs.adapt.result import fit_page

        check_is_fitted(self)
        return html.write(fit_page(self.adapted_), path, force=force)

    def _known(self) -> Source:
        check_is_fitted(self)
        if self.adapted_.source is None:
            raise OptionError(
                f"the method {self.method} has no source", where="source", fix="fit with recraft or fa"
            )
        return self.adapted_.source

    def _pristine(self) -> Body:
        """Return the pretrained body; for a model from disk the backbone is opened anew."""
        found: Backbone | None = self.adapted_.backbone
        if found is None:
            from transship.data import find_model

            found = open_backbone(str(find_model(str(self.adapted_.about["backbone"]))))
            self.adapted_.backbone = found
        return found.body().to(self.adapted_.device)

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


__all__ = ["Recraft"]
