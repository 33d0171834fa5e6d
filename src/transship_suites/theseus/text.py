"""One fine-tune of a sentence encoder moved to another encoder, measured row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transship_suites.runner import Context, Measurement

if TYPE_CHECKING:
    from torch import Tensor

    from transship.activations import LoadedModel

SOURCE, PUBLISHED = "minilm-l6", "minilm-l6-sre"
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


class Bench:
    """One task on one target."""

    def __init__(self, task: str, target: str, context: Context, size: Mapping[str, Any]) -> None:
        from transship_suites.materials import encoders
        from transship_suites.materials.encoders import Classifier, fine_tune, load_encoder
        from transship_suites.materials.texts import load_texts

        self.context, self.task, self.size = context, task, size
        self.texts = load_texts(task, size["test"])
        self.source, self.target = load_encoder(SOURCE), load_encoder(target)
        classes = len(self.texts.names)
        # TREC's 5,452 questions, and as many rows at most of the others
        train, labels = _some(self.texts, MOST_TRAINING)
        self.train, self.labels = train, labels
        settings = {"epochs": context.options["epochs"], "seed": context.seed("tune", task) % 2**31}
        parts = {**settings, "task": task, "source": SOURCE, "rows": len(train)}

        def make() -> dict[str, Any]:
            made = fine_tune(self.source, train, labels, classes, **settings)
            return {name: tensor.numpy() for name, tensor in made.state_dict().items()}

        arrays = context.cached("text-tuned", parts, make, code=(fine_tune, encoders.Classifier))
        self.tuned = _loaded_classifier(self.source, arrays, classes)
        assert isinstance(self.tuned.model, Classifier)
        self.source_side = self._read_source(parts)

    def _read_source(self, parts: Mapping[str, Any]) -> dict[str, dict[Any, Tensor]]:
        """Return the features of every text under the source and under its fine-tune, text by text; all
        targets of a task share them.
        """
        import torch

        from transship_suites.materials.encoders import Pooled, fine_tune, predict, wrapped

        texts = list(dict.fromkeys([*self.texts.test, *self.train]))
        tuned = wrapped(self.source, Pooled(self.tuned.model.get_submodule("encoder")))
        found = self.context.cached(
            "text-source-features",
            {**parts, "test": len(self.texts.test)},
            lambda: {
                name: predict(model, texts).numpy()
                for name, model in (("source", self.source), ("tuned", tuned))
            },
            code=(fine_tune, Pooled, predict),
        )
        return {name: dict(zip(texts, torch.from_numpy(rows), strict=True)) for name, rows in found.items()}

    def rows(self) -> Iterator[Measurement]:
        """The bounds, the untouched target and every method."""
        from transship.geometry import accuracy
        from transship.registry import build_method
        from transship.verbs.transport.weights import shifted
        from transship_suites.materials.encoders import predict

        right = predict(self.tuned, self.texts.test).argmax(1).numpy()
        work = self._work()
        self.inputs = list(work.draws.head)
        reached = {"accuracy": accuracy(right, self.texts.test_labels)}
        yield Measurement({"method": "source fine-tuned"}, {**reached, **self._source_probes("tuned")})
        yield Measurement({"method": "source"}, self._source_probes("source"))
        self.taught = work.taught(work.draws.head)
        self.theirs = _rows(self.source_side["tuned"], self.inputs)
        untouched = self._metrics(0.0)
        yield Measurement({"method": "untouched"}, untouched)
        yield Measurement({"method": "frozen source carried"}, self._frozen_control())
        for title in self.size["methods"]:
            name, options = METHODS[title]
            if name == "identity" and not work.kinship().cosines:
                continue
            moved = work.move(build_method("transport", name, options))
            choice = work.strength(moved, carried=True)
            metrics = untouched
            if choice.strength:
                with shifted(self.target.model, moved.dense, choice.strength):
                    metrics = self._metrics(choice.strength)
            yield Measurement({"method": title}, metrics)

    def _work(self) -> Any:
        from transship.data import wrap
        from transship.verbs.transport.models import Opening
        from transship.verbs.transport.settings import Settings
        from transship.verbs.transport.work import Work

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
            seed=self.context.seed("draw") % 2**31,
        )
        return Work.open(self.source, self.tuned, self.target, data, Opening(), settings)

    def _metrics(self, strength: float) -> dict[str, float]:
        """Probe with few labels, carried head, and the source's head through a map, of the target as it
        stands.
        """
        from transship.geometry import Moments, accuracy, procrustes, ridge_of
        from transship_suites.materials.encoders import predict

        labels, probed = self.texts.test_labels, [self.train[row] for row in self._probed()]
        # a text that serves two purposes runs once
        wanted = list(dict.fromkeys([*self.texts.test, *self.inputs, *probed]))
        found = dict(zip(wanted, predict(self.target, wanted), strict=True))
        test, known, features = (_rows(found, texts) for texts in (self.texts.test, self.inputs, probed))
        if not strength:
            self.untouched = found
        head = ridge_of(known.double(), self.taught.double())
        metrics = {
            "carry": accuracy(head.apply(test.double()).argmax(1).numpy(), labels),
            "strength": strength,
            **self._probe(features, test),
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
        from transship_suites.theseus.probes import logistic_probe

        labels, rows, found = self.texts.test_labels, self._probed(), {}
        for batches in self.size["probe"]:
            seen = rows[: 32 * batches]
            found[f"probe {batches}"] = logistic_probe(features[: len(seen)], self.labels[seen], test, labels)
        return found

    def _probed(self) -> Any:
        """Rows whose labels a probe may see: the head's inputs first, since they run anyway."""
        import numpy as np

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
        import numpy as np
        import torch

        from transship.geometry import accuracy, ridge_of

        source, target = self.source_side["source"], self.untouched
        rows = np.random.default_rng(self.context.seed("frozen")).permutation(len(self.train))[:2000]
        theirs = _rows(source, [self.train[row] for row in rows])
        wanted = torch.nn.functional.one_hot(
            torch.as_tensor(self.labels[rows]), len(self.texts.names)
        ).double()
        probe = ridge_of(theirs.double(), wanted)
        taught = probe.apply(_rows(source, self.inputs).double())
        head = ridge_of(_rows(target, self.inputs).double(), taught)
        made = head.apply(_rows(target, self.texts.test).double()).argmax(1).numpy()
        return {"carry": accuracy(made, self.texts.test_labels)}


def _rows(known: Mapping[Any, Tensor], texts: Sequence[Any]) -> Tensor:
    """Return the features of some texts [texts, width]."""
    import torch

    return torch.stack([known[text] for text in texts])


def _some(texts: Any, most: int) -> tuple[list[Any], Any]:
    """Return at most `most` training rows, drawn with a fixed seed, and their labels."""
    import numpy as np

    if len(texts.train) <= most:
        return texts.train, np.asarray(texts.train_labels)
    rows = np.sort(np.random.default_rng(3).permutation(len(texts.train))[:most])
    return [texts.train[row] for row in rows], np.asarray(texts.train_labels)[rows]


def _loaded_classifier(base: LoadedModel, arrays: Mapping[str, Any], classes: int) -> LoadedModel:
    import copy

    import torch

    from transship_suites.materials.encoders import Classifier, wrapped

    module = Classifier(copy.deepcopy(base.model.get_submodule("encoder")), base.config.hidden_size, classes)
    module.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    return wrapped(base, module)


def published(target: str, context: Context) -> Iterator[Measurement]:
    """Does the moved encoder rank pairs of phrases more like the published fine-tune than the untouched one
    does?
    """
    from transship.registry import build_method
    from transship.verbs.transport.judge import similarity_agreement
    from transship.verbs.transport.models import Opening
    from transship.verbs.transport.settings import Settings
    from transship.verbs.transport.weights import shifted
    from transship.verbs.transport.work import Work
    from transship_suites.materials.encoders import load_encoder, predict
    from transship_suites.materials.texts import load_texts, operations_phrases

    source, tuned, model = load_encoder(SOURCE), load_encoder(PUBLISHED), load_encoder(target)
    phrases = operations_phrases()
    wanted = predict(tuned, phrases)
    data = [*phrases[::2], *load_texts("trec").train[:600]]
    settings = Settings(batches=20, grid=GRID, seed=context.seed("draw") % 2**31)
    work = Work.open(source, tuned, model, data, Opening(), settings)
    judged = phrases[1::2]
    there = wanted[1::2]
    yield Measurement(
        {"method": "untouched"}, {"rank correlation": similarity_agreement(predict(model, judged), there)}
    )
    yield Measurement(
        {"method": "source"}, {"rank correlation": similarity_agreement(predict(source, judged), there)}
    )
    for title in ("theseus", "gradient", "random-aligned", "identity"):
        if title == "identity" and not work.kinship().cosines:
            continue
        moved = work.move(build_method("transport", title))
        choice = work.strength(moved, carried=False)
        with shifted(model.model, moved.dense, choice.strength):
            found = similarity_agreement(predict(model, judged), there)
        yield Measurement({"method": title}, {"rank correlation": found, "strength": choice.strength})
