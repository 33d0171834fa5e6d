"""One fine-tune of a sentence encoder moved to another encoder, measured row by row on frozen features."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from transship.activations import LoadedModel
from transship.data import wrap
from transship.geometry import Moments, accuracy, procrustes, ridge_of
from transship.registry import build_method
from transship.verbs.transport import shifted
from transship.verbs.transport.settings import Opening, Settings
from transship.verbs.transport.teacher import similarity_agreement
from transship_suites.materials.encoders import (
    Classifier,
    MeanEncoder,
    fine_tune,
    load_encoder,
    predict,
    wrapped,
)
from transship_suites.materials.small_vision import to_arrays
from transship_suites.materials.texts import Texts, load_texts, operations_phrases
from transship_suites.runner import Case, Context, Experiment, Measurement
from transship_suites.theseus.declared import PUBLISHED, TEXT_SOURCE
from transship_suites.theseus.work import Work

MOST_TRAINING = 5500
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "theseus": ("theseus", {}),
    "gradient": ("gradient", {"blend": 1.0}),
    "gradient blend": ("gradient", {}),
    "random-aligned": ("random-aligned", {}),
    "identity": ("identity", {}),
}
# strengths that are tried, by agreement with the fine-tuned source on the calibration inputs
GRID = (0.0, 2.0, 4.0, 8.0, 12.0, 16.0)
PENALTIES = (0.1, 1.0, 10.0)  # of probes, by four folds of their rows


def measured(case: Case, context: Context) -> Iterable[Measurement]:
    """Measure one task on one target; what is no claim's is measured with one seed."""
    task, target = str(case["task"]), str(case["target"])
    main = target in context.options["main"].get(task, ())
    if not main and case.seed % context.options["seeds"]:
        return ()
    if task == "published":
        return published(target, context)
    return TextTransports(case, context, context.options["full" if main else "small"])


class TextTransports(Experiment):
    """One task on one target; `size` says how many rows and which methods."""

    def __init__(self, case: Case, context: Context, size: Mapping[str, Any]) -> None:
        super().__init__(case, context)
        self.task, self.size = str(case["task"]), size
        self.texts = load_texts(self.task, size["test"])
        self.source, self.target = load_encoder(TEXT_SOURCE), load_encoder(str(case["target"]))
        classes = len(self.texts.names)
        # TREC's 5,452 questions, and as many rows at most of the others
        self.train, self.labels = _some(self.texts, MOST_TRAINING)
        settings = {"epochs": self.options["epochs"], "seed": self.draw("tune", self.task)}
        parts = {**settings, "task": self.task, "source": TEXT_SOURCE, "rows": len(self.train)}
        arrays = context.cached(
            "text-tuned",
            parts,
            lambda: to_arrays(fine_tune(self.source, self.train, self.labels, classes, **settings)),
            code=(fine_tune, Classifier),
        )
        self.tuned = _loaded_classifier(self.source, arrays, classes)
        self.source_side = self._read_source(parts)

    def _read_source(self, parts: Mapping[str, Any]) -> dict[str, dict[Any, Tensor]]:
        """Return the features of every text under the source and under its fine-tune, text by text; all
        targets of a task share them.
        """
        texts = list(dict.fromkeys([*self.texts.test, *self.train]))
        tuned = wrapped(self.source, MeanEncoder(self.tuned.model.get_submodule("encoder")))
        sides = self.context.cached(
            "text-source-features",
            {**parts, "test": len(self.texts.test)},
            lambda: {
                name: predict(model, texts).numpy()
                for name, model in (("source", self.source), ("tuned", tuned))
            },
            code=(fine_tune, MeanEncoder, predict),
        )
        return {name: dict(zip(texts, torch.from_numpy(rows), strict=True)) for name, rows in sides.items()}

    def measured(self) -> Iterator[Measurement]:
        """The bounds, the untouched target and every method."""
        right = predict(self.tuned, self.texts.test).argmax(1).numpy()
        plan = self._plan()
        self.inputs = list(plan.draws.head)
        reached = {"accuracy": accuracy(right, self.texts.test_labels)}
        yield Measurement({"method": "source fine-tuned"}, {**reached, **self._source_probes("tuned")})
        yield Measurement({"method": "source"}, self._source_probes("source"))
        self.answers = plan.taught(plan.draws.head)
        self.theirs = _rows(self.source_side["tuned"], self.inputs)
        untouched = self._metrics(0.0)
        yield Measurement({"method": "untouched"}, untouched)
        yield Measurement({"method": "frozen source carried"}, self._frozen_control())
        for title in self.size["methods"]:
            name, options = METHODS[title]
            if name == "identity" and not plan.kinship().cosines:
                continue
            moved = plan.move(build_method("transport", name, options))
            choice = plan.strength(moved, carried=True)
            metrics = untouched
            if choice.strength:
                with shifted(self.target.model, moved.dense, choice.strength):
                    metrics = self._metrics(choice.strength)
            yield Measurement({"method": title}, metrics)

    def _plan(self) -> Work:
        data = wrap(
            self.train,
            [self.texts.names[label] for label in self.labels],
            kind="text" if isinstance(self.train[0], str) else "pair",
            name=self.task,
            label_names=self.texts.names,
        )
        settings = Settings(
            batches=self.size["batches"],
            head_inputs=1000,
            validation=False,
            grid=GRID,
            seed=self.draw("draw"),
        )
        return Work.open(self.source, self.tuned, self.target, data, Opening(), settings)

    def _metrics(self, strength: float) -> dict[str, float]:
        """Probe with few labels, carried head, and the source's head through a map, of the target as it
        stands.
        """
        labels, probed = self.texts.test_labels, [self.train[row] for row in self._probed()]
        # a text that serves two purposes runs once
        wanted = list(dict.fromkeys([*self.texts.test, *self.inputs, *probed]))
        features = dict(zip(wanted, predict(self.target, wanted), strict=True))
        test, known, shown = (_rows(features, texts) for texts in (self.texts.test, self.inputs, probed))
        if not strength:
            self.untouched = features
        head = ridge_of(known.double(), self.answers.double())
        metrics = {
            "carry": accuracy(head.apply(test.double()).argmax(1).numpy(), labels),
            "strength": strength,
            **self._probe(shown, test),
        }
        # the fine-tuned head on features turned into the source's space: Table 9
        turn = procrustes(Moments.of(known.double(), self.theirs.double()), centre=True, scale=True)
        outputs = self.tuned.model.get_submodule("head")(turn.apply(test.double()).float())
        metrics["reused head"] = accuracy(outputs.argmax(1).numpy(), labels)
        return metrics

    def _source_probes(self, name: str) -> dict[str, float]:
        """The same probes of the source's features, or of its fine-tune's."""
        known = self.source_side[name]
        probed = [self.train[row] for row in self._probed()]
        return self._probe(_rows(known, probed), _rows(known, self.texts.test))

    def _probe(self, features: Tensor, test: Tensor) -> dict[str, float]:
        labels, rows, scores = self.texts.test_labels, self._probed(), {}
        for batches in self.size["probe"]:
            seen = rows[: 32 * batches]
            scores[f"probe {batches}"] = logistic_probe(
                features[: len(seen)], self.labels[seen], test, labels
            )
        return scores

    def _probed(self) -> Any:
        """Rows whose labels a probe may see: the head's inputs first, since they run anyway."""
        first = {text: row for row, text in enumerate(self.train)}
        inputs = [first[text] for text in self.inputs]
        rng = np.random.default_rng(self.context.seed("probe"))
        rest = np.setdiff1d(np.arange(len(self.train)), inputs)
        order = np.concatenate([rng.permutation(inputs), rng.permutation(rest)])
        return order[: 32 * max(self.size["probe"])]

    def _frozen_control(self) -> dict[str, float]:
        """A ridge probe of the frozen source's features carried to the target: what carry owes to the
        fine-tune.
        """
        source, target = self.source_side["source"], self.untouched
        rows = np.random.default_rng(self.context.seed("frozen")).permutation(len(self.train))[:2000]
        theirs = _rows(source, [self.train[row] for row in rows])
        wanted = torch.nn.functional.one_hot(
            torch.as_tensor(self.labels[rows]), len(self.texts.names)
        ).double()
        probe = ridge_of(theirs.double(), wanted)
        answers = probe.apply(_rows(source, self.inputs).double())
        head = ridge_of(_rows(target, self.inputs).double(), answers)
        classes = head.apply(_rows(target, self.texts.test).double()).argmax(1).numpy()
        return {"carry": accuracy(classes, self.texts.test_labels)}


def _rows(known: Mapping[Any, Tensor], texts: Sequence[Any]) -> Tensor:
    """Return the features of some texts [texts, width]."""
    return torch.stack([known[text] for text in texts])


def _some(texts: Texts, most: int) -> tuple[list[Any], Any]:
    """Return at most `most` training rows, drawn with a fixed seed, and their labels."""
    if len(texts.train) <= most:
        return texts.train, np.asarray(texts.train_labels)
    rows = np.sort(np.random.default_rng(3).permutation(len(texts.train))[:most])
    return [texts.train[row] for row in rows], np.asarray(texts.train_labels)[rows]


def _loaded_classifier(base: LoadedModel, arrays: Mapping[str, Any], classes: int) -> LoadedModel:
    module = Classifier(copy.deepcopy(base.model.get_submodule("encoder")), base.config.hidden_size, classes)
    module.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    return wrapped(base, module)


def logistic_probe(features: Tensor, labels: Any, test: Tensor, test_labels: Any) -> float:
    """Return the test accuracy of a logistic regression; four folds of the rows choose its penalty."""
    x, y = features.numpy(), np.asarray(labels)

    def model(strength: float) -> Any:
        return make_pipeline(StandardScaler(), LogisticRegression(C=strength / 30, max_iter=300))

    folds, best = min(4, int(np.unique(y, return_counts=True)[1].min())), PENALTIES[0]
    if folds >= 2:
        best = max(PENALTIES, key=lambda strength: cross_val_score(model(strength), x, y, cv=folds).mean())
    return float(model(best).fit(x, y).score(test.numpy(), np.asarray(test_labels)))


def published(target: str, context: Context) -> Iterator[Measurement]:
    """Does the moved encoder rank pairs of phrases more like the published fine-tune than the untouched one
    does?
    """
    source, tuned, model = load_encoder(TEXT_SOURCE), load_encoder(PUBLISHED), load_encoder(target)
    phrases = operations_phrases()
    judged, there = phrases[1::2], predict(tuned, phrases)[1::2]
    data = [*phrases[::2], *load_texts("trec").train[:600]]
    settings = Settings(batches=20, grid=GRID, seed=context.seed("draw") % 2**31)
    plan = Work.open(source, tuned, model, data, Opening(), settings)
    for name, untouched in (("untouched", model), ("source", source)):
        agreement = similarity_agreement(predict(untouched, judged), there)
        yield Measurement({"method": name}, {"rank correlation": agreement})
    for name in ("theseus", "gradient", "random-aligned", "identity"):
        if name == "identity" and not plan.kinship().cosines:
            continue
        moved = plan.move(build_method("transport", name))
        choice = plan.strength(moved, carried=False)
        with shifted(model.model, moved.dense, choice.strength):
            agreement = similarity_agreement(predict(model, judged), there)
        yield Measurement({"method": name}, {"rank correlation": agreement, "strength": choice.strength})
