"""THESEUS between real sentence encoders: MiniLM-L6 fine-tuned on a task, moved to encoders that share little
with it.

Tables 2 and 9 of the paper, on encoders of 17 to 110 million parameters; and a fine-tune that somebody
published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from transship.suites.runner import (
    Case,
    Claim,
    Column,
    Context,
    Measurement,
    Need,
    Options,
    Paper,
    Row,
    Scale,
    Suite,
    Table,
    cell,
    product,
)
from transship.suites.small_text.tasks import NEEDS, TASKS

if TYPE_CHECKING:
    from torch import Tensor

    from transship.activations import LoadedModel

SOURCE, PUBLISHED = "minilm-l6", "minilm-l6-sre"
TARGETS = ("minilm-l3", "granite-small", "bge-small", "mpnet-base", "distilbert-768")
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "theseus": ("theseus", {}),
    "gradient": ("gradient", {"blend": 1.0}),
    "gradient blend": ("gradient", {}),
    "random-aligned": ("random-aligned", {}),
    "identity": ("identity", {}),
}


def cases(options: Options) -> list[dict[str, Any]]:
    """Return a task per target, and the published fine-tune per target."""
    tasks = product(task=options["tasks"], target=options["targets"])
    return [*tasks, *product(task=["published"], target=options["published"])]


def run(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure one task on one target."""
    if case["task"] == "published":
        yield from _published(str(case["target"]), context)
    else:
        yield from _Bench(str(case["task"]), str(case["target"]), context).rows()


class _Bench:
    """One task on one target."""

    def __init__(self, task: str, target: str, context: Context) -> None:
        from transship.suites.small_text import encoders
        from transship.suites.small_text.encoders import Classifier, fine_tune, load_encoder
        from transship.suites.small_text.tasks import load_texts

        self.context, self.task = context, task
        self.texts = load_texts(task)
        self.source, self.target = load_encoder(SOURCE), load_encoder(target)
        classes = len(self.texts.names)
        settings = {"epochs": context.options["epochs"], "seed": context.seed("tune", task) % 2**31}
        parts = {**settings, "task": task, "source": SOURCE, "rows": len(self.texts.train)}

        def make() -> dict[str, Any]:
            made = fine_tune(self.source, self.texts.train, self.texts.train_labels, classes, **settings)
            return {name: tensor.numpy() for name, tensor in made.state_dict().items()}

        arrays = context.cached("text-tuned", parts, make, code=(fine_tune, encoders.Classifier))
        self.tuned = _loaded_classifier(self.source, arrays, classes)
        assert isinstance(self.tuned.model, Classifier)

    def rows(self) -> Iterator[Measurement]:
        """The bounds, the untouched target and every method."""
        from transship.geometry import accuracy
        from transship.registry import build_method
        from transship.suites.small_text.encoders import predict
        from transship.verbs.transport.shifted import shifted

        right = predict(self.tuned, self.texts.test).argmax(1).numpy()
        yield Measurement(
            {"method": "source fine-tuned"}, {"accuracy": accuracy(right, self.texts.test_labels)}
        )
        work = self._work()
        self.inputs = list(work.draws.head)
        self.taught = work.taught(work.draws.head)
        yield Measurement({"method": "untouched"}, self._metrics({}, 0.0, work))
        yield Measurement({"method": "frozen source carried"}, self._frozen_control())
        for title in self.context.options["methods"]:
            name, options = METHODS[title]
            if name == "identity" and not work.kinship().cosines:
                continue
            method = build_method("transport", name, options)
            moved = work.move(method)
            choice = work.strength(moved, carried=True)
            with shifted(self.target.model, moved.dense, choice.strength):
                metrics = self._metrics(moved.dense, choice.strength, work)
            yield Measurement({"method": title}, metrics)

    def _work(self) -> Any:
        from transship.data import wrap
        from transship.verbs.transport.participants import Opening
        from transship.verbs.transport.settings import Settings
        from transship.verbs.transport.work import Work

        data = wrap(
            self.texts.train,
            [self.texts.names[label] for label in self.texts.train_labels],
            kind="text",
            name=self.task,
            label_names=self.texts.names,
        )
        settings = Settings(batches=20, head_inputs=1000, seed=self.context.seed("draw") % 2**31)
        return Work.open(self.source, self.tuned, self.target, data, Opening(), settings)

    def _metrics(self, update: Mapping[str, Tensor], strength: float, work: Any) -> dict[str, float]:
        """Probe with few labels, carried head, and the source's head through a map, of the target as it
        stands.
        """
        import numpy as np

        from transship.geometry import Moments, accuracy, procrustes, ridge
        from transship.suites.small_text.encoders import predict
        from transship.suites.small_text.probes import logistic_probe

        labels = self.texts.test_labels
        test = predict(self.target, self.texts.test)
        known = predict(self.target, self.inputs)
        head = ridge(Moments.of(known.double(), self.taught.double(), parts=("aa", "ab")))
        metrics = {
            "carry": accuracy(head.apply(test.double()).argmax(1).numpy(), labels),
            "strength": strength,
        }
        most = self.context.options["probe"]
        rng = np.random.default_rng(self.context.seed("probe"))
        order = rng.permutation(len(self.texts.train))[: 32 * max(most)]
        features = predict(self.target, [self.texts.train[row] for row in order])
        for batches in most:
            rows = order[: 32 * batches]
            metrics[f"probe {batches}"] = logistic_probe(
                features[: len(rows)], self.texts.train_labels[rows], test, labels
            )
        # the fine-tuned head on features turned into the source's space: Table 9
        theirs = predict(self._pooled_tuned(), self.inputs)
        turn = procrustes(Moments.of(known.double(), theirs.double()), centre=True, scale=True)
        outputs = self.tuned.model.get_submodule("head")(turn.apply(test.double()).float())
        metrics["reused head"] = accuracy(outputs.argmax(1).numpy(), labels)
        return metrics

    def _pooled_tuned(self) -> LoadedModel:
        from transship.suites.small_text.encoders import Pooled, wrapped

        return wrapped(self.source, Pooled(self.tuned.model.get_submodule("encoder")))

    def _frozen_control(self) -> dict[str, float]:
        """A ridge probe of the frozen source's features carried to the target: what carry owes to the
        fine-tune.
        """
        import numpy as np
        import torch

        from transship.geometry import Moments, accuracy, ridge
        from transship.suites.small_text.encoders import predict

        rows = np.random.default_rng(self.context.seed("frozen")).permutation(len(self.texts.train))[:2000]
        theirs = predict(self.source, [self.texts.train[row] for row in rows])
        wanted = torch.nn.functional.one_hot(
            torch.as_tensor(self.texts.train_labels[rows]), len(self.texts.names)
        ).double()
        probe = ridge(Moments.of(theirs.double(), wanted, parts=("aa", "ab")))
        taught = probe.apply(predict(self.source, self.inputs).double())
        head = ridge(Moments.of(predict(self.target, self.inputs).double(), taught, parts=("aa", "ab")))
        made = head.apply(predict(self.target, self.texts.test).double()).argmax(1).numpy()
        return {"carry": accuracy(made, self.texts.test_labels)}


def _loaded_classifier(base: LoadedModel, arrays: Mapping[str, Any], classes: int) -> LoadedModel:
    import copy

    import torch

    from transship.suites.small_text.encoders import Classifier, wrapped

    module = Classifier(copy.deepcopy(base.model.get_submodule("encoder")), base.config.hidden_size, classes)
    module.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    return wrapped(base, module)


def _published(target: str, context: Context) -> Iterator[Measurement]:
    """Does the moved encoder rank pairs of phrases more like the published fine-tune than the untouched one
    does?
    """
    from transship.registry import build_method
    from transship.suites.small_text.encoders import load_encoder, predict
    from transship.suites.small_text.tasks import load_texts, operations_phrases
    from transship.verbs.transport.judge import _similarity_agreement
    from transship.verbs.transport.participants import Opening
    from transship.verbs.transport.settings import Settings
    from transship.verbs.transport.shifted import shifted
    from transship.verbs.transport.work import Work

    source, tuned, model = load_encoder(SOURCE), load_encoder(PUBLISHED), load_encoder(target)
    phrases = operations_phrases()
    wanted = predict(tuned, phrases)
    data = [*phrases[::2], *load_texts("trec").train[:600]]
    settings = Settings(batches=20, seed=context.seed("draw") % 2**31)
    work = Work.open(source, tuned, model, data, Opening(), settings)
    judged = phrases[1::2]
    there = wanted[1::2]
    yield Measurement(
        {"method": "untouched"}, {"rank correlation": _similarity_agreement(predict(model, judged), there)}
    )
    yield Measurement(
        {"method": "source"}, {"rank correlation": _similarity_agreement(predict(source, judged), there)}
    )
    for title in ("theseus", "random-aligned", "identity"):
        if title == "identity" and not work.kinship().cosines:
            continue
        moved = work.move(build_method("transport", title))
        choice = work.strength(moved, carried=False)
        with shifted(model.model, moved.dense, choice.strength):
            found = _similarity_agreement(predict(model, judged), there)
        yield Measurement({"method": title}, {"rank correlation": found, "strength": choice.strength})


def _gain(method: str, metric: str, target: str) -> Any:
    where = {"task": "trec", "target": target}
    return cell(metric, method=method, **where) - cell(metric, method="untouched", **where)


def _table(task: str, target: str, options: tuple[str, ...]) -> Table:
    names = ("source fine-tuned", "untouched", *options, "frozen source carried")
    columns = (
        Column("accuracy", "accuracy", percent=True, digits=1),
        Column("probe, 20 batches", "probe 20", percent=True, digits=1),
        Column("probe, 50 batches", "probe 50", percent=True, digits=1),
        Column("probe, 100 batches", "probe 100", percent=True, digits=1),
        Column("carry, 1000 inputs", "carry", percent=True, digits=1),
        Column("reused head", "reused head", percent=True, digits=1),
        Column("strength", "strength", digits=1),
    )
    rows = tuple(Row(name, {"method": name, "task": task, "target": target}) for name in names)
    return Table(title=f"{task} to {target}", rows=rows, columns=columns)


def _model_need(name: str) -> Need:
    return Need("model", name, "package registry, see the model list")


suite = Suite(
    title="THESEUS between real sentence encoders",
    summary=(
        "MiniLM-L6 is fine-tuned on a task and the update is moved to encoders of other depth, width, "
        "vocabulary and pre-training. Measured on frozen features: a logistic probe with few labels, a head "
        "carried from the fine-tuned source on 1,000 unlabelled inputs, and the source's head itself through "
        "a rotation of features. bge-small is a relative of MiniLM-L6 (near copies of its blocks) and no "
        "cross-model result."
    ),
    paper=Paper(
        "Transporting Task Vectors across Different Architectures without Training",
        authors="Rinaldi, Panariello, Salici, Porrello and Calderara",
        where="Tables 2 and 9",
    ),
    claims=(
        Claim(
            text="To granite-small (other tokenizer), THESEUS adds 7 points or more to a 640-label probe.",
            quantity=_gain("theseus", "probe 20", "granite-small"),
            at_least=0.07,
            source="Table 2 (+22 at 20 batches)",
        ),
        Claim(
            text="To granite-small, THESEUS adds at least 6 points to a carried head.",
            quantity=_gain("theseus", "carry", "granite-small"),
            at_least=0.06,
            source="ours",
        ),
        Claim(
            text="To minilm-l3 (half the depth), gradient maps add at least 6 points to the probe.",
            quantity=_gain("gradient", "probe 20", "minilm-l3"),
            at_least=0.06,
            source="ours",
        ),
        Claim(
            text="To minilm-l3, THESEUS adds at least 4 points to the probe.",
            quantity=_gain("theseus", "probe 20", "minilm-l3"),
            at_least=0.04,
            source="ours",
        ),
        Claim(
            text="A random update through the maps adds at most 3 points to the probe.",
            quantity=_gain("random-aligned", "probe 20", "granite-small"),
            at_most=0.03,
            source="ours",
        ),
    ),
    scales={
        "quick": Scale(
            seeds=2,
            minutes=30,
            options={
                "tasks": ["trec"],
                "targets": ["granite-small", "minilm-l3"],
                "published": [],
                "epochs": 2,
                "probe": [20],
                "methods": ["theseus", "gradient", "random-aligned"],
            },
        ),
        "full": Scale(
            seeds=2,
            minutes=400,
            options={
                "tasks": list(TASKS),
                "targets": list(TARGETS),
                "published": ["bge-small", "minilm-l3"],
                "epochs": 2,
                "probe": [20, 50, 100],
                "methods": list(METHODS),
            },
            needs=(
                NEEDS["sst2"],
                NEEDS["sick"],
                NEEDS["supersenses"],
                *(_model_need(name) for name in (PUBLISHED, "bge-small", "mpnet-base", "distilbert-768")),
            ),
        ),
    },
    cases=cases,
    run=run,
    tables=(
        *(_table(task, target, tuple(METHODS)) for task in TASKS for target in TARGETS),
        Table(
            title="A published fine-tune: rank correlation of similarities with it",
            rows=tuple(
                Row(f"{name}, {target}", {"method": name, "task": "published", "target": target})
                for target in ("bge-small", "minilm-l3")
                for name in ("source", "untouched", "theseus", "random-aligned", "identity")
            ),
            columns=(
                Column("rank correlation", "rank correlation"),
                Column("strength", "strength", digits=1),
            ),
        ),
    ),
    needs=(NEEDS["trec"], *(_model_need(name) for name in (SOURCE, "minilm-l3", "granite-small"))),
)
