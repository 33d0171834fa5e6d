"""Settings of continual merging on two cores (base, fine-tunes, inputs), and what is measured in them."""

from __future__ import annotations

import copy
import math
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from sklearn.manifold import TSNE
from torch import Tensor, nn

from transship.verbs.merge.fusion.measure import Quality
from transship.verbs.merge.fusion.origin import fingerprint
from transship.verbs.merge.tasks.heads import LinearHead
from transship_suites.materials import bodies
from transship_suites.materials import picture_tasks as pictures
from transship_suites.materials.bodies import LabelledTask, encode
from transship_suites.materials.encoders import load_encoder
from transship_suites.materials.small_vision import LabelledRows, VitShape, augment
from transship_suites.materials.texts import load_some
from transship_suites.otmf.merging import Merging, mean_of
from transship_suites.otmf.names import (
    ALPHA,
    BASE,
    CARRIED,
    CONTROLLED,
    DRAWN,
    HEADS,
    INDIVIDUAL,
    JOINT,
    JOINT_INPUTS,
    KEPT_INPUTS,
    OTMF,
    OWN,
    PAPER,
    SHARED,
    SWEPT,
    SWEPT_HEADS,
    TEXT_MODEL,
    TOGETHER,
    UNSWEPT,
    WAYS,
    Way,
)
from transship_suites.otmf.trajectory import (
    BodyView,
    KnownInputs,
    TunedTask,
    few_accuracies,
    final_accuracies,
    follow,
    followed,
    label_head_accuracies,
    mean_shift,
    wide_accuracies,
)
from transship_suites.runner import Case, Context, Measurement

CLOUD = 150  # inputs in the picture of features


class SmallMerging(Merging):
    """Base and fine-tunes of one seed; pictures and texts fill in the rest.

    Attributes:
        kind: names what the cache keeps.
        batch: of fine-tunes.
    """

    kind: str
    batch: int

    def __init__(self, case: Case, context: Context) -> None:
        super().__init__(case, context)
        self.tasks = [self.load_task(name) for name in self.options["tasks"]]
        self.base = self.load_base()
        self.arrivals = {task.name: self._arrival(task) for task in self.tasks}

    @abstractmethod
    def load_task(self, name: str) -> LabelledTask:
        """Return a task."""

    @abstractmethod
    def load_base(self) -> nn.Module:
        """Return the body that all fine-tunes start from."""

    @abstractmethod
    def made_of(self) -> tuple[dict[str, Any], tuple[Any, ...]]:
        """Return what base and tasks depend on, as the cache's parts and code."""

    def tuned(self, tasks: Sequence[LabelledTask]) -> tuple[nn.Module, list[nn.Linear]]:
        """Return the base trained on `tasks`, made once."""
        names, (parts, code) = [task.name for task in tasks], self.made_of()
        settings = {
            "steps": self.options["tune"],
            "rate": self.options["rate"],
            "seed": self.draw("tune", *names),
            "batch": self.batch,
        }
        arrays = self.context.cached(
            f"merge-{self.kind}-tuned",
            {**settings, "tasks": names, "rows": [len(task.train) for task in tasks], **parts},
            lambda: bodies.to_arrays(*bodies.tune(self.base, tasks, self.read, **settings)),
            code=(bodies.tune, bodies.train, bodies.probe, *code),
        )
        return bodies.from_arrays(arrays, self.base)

    def in_order(self, order: int) -> list[TunedTask]:
        """Return the models as they arrive: as listed, the other way round, or mixed by a fixed draw."""
        names = [task.name for task in self.tasks]
        if order == 1:
            names = names[::-1]
        elif order > 1:
            names = [names[place] for place in np.random.default_rng(order).permutation(len(names))]
        return [self.arrivals[name] for name in names]

    def read(self, body: nn.Module, inputs: Tensor) -> Tensor:
        """Return a body's features of inputs, made once for all cases with these weights and inputs."""
        arrays = self.context.cached(
            "merge-features",
            {"weights": fingerprint(body.state_dict()), "inputs": fingerprint({"inputs": inputs})},
            lambda: {"features": encode(body, inputs).numpy()},
            code=(encode, type(body), VitShape),
        )
        return torch.from_numpy(arrays["features"])

    def _arrival(self, task: LabelledTask) -> TunedTask:
        body, heads = self.tuned([task])
        head = _linear_head(heads[0])
        count = len(task.train) // 4
        inputs = task.train.inputs[:count]
        features = self.read(body, inputs)
        known = KnownInputs(inputs, task.train.labels[:count], head(features), task.classes, features)
        return TunedTask(task.name, body, head, known, task.test.inputs, task.test.labels)

    # -- merging -------------------------------------------------------------------------------------------

    def views(
        self, way: Way, arrivals: Sequence[TunedTask], seconds: list[float] | None = None
    ) -> Iterator[BodyView]:
        """Yield the merged body after each arrival; what each merge took goes to `seconds`.

        It is one body, filled anew: a view is good until the next is asked for.
        """
        fusion = self.fusion(self.base, way.method, way.options, strength=way.strength)
        body = copy.deepcopy(self.base)
        for arrival in arrivals:
            start = time.process_time()
            fusion.add(arrival.state, arrival.known.inputs, name=arrival.name)
            if seconds is not None:
                seconds.append(time.process_time() - start)
            body.load_state_dict(fusion.parameters, strict=True)
            # most ways leave the first model as it came: one body for all of them
            yield BodyView(body, self.read) if arrival is arrivals[0] else BodyView(body)

    # -- measuring -----------------------------------------------------------------------------------------

    def measured(self) -> Iterator[Measurement]:
        """Measure a case of any part."""
        case = self.case
        if case["part"] == "bounds":
            yield from self._bounds(self.options["orders"])
        elif case["part"] == SHARED:
            yield from self._shared()
        elif case["part"] == "sweep":
            yield from self._swept(Way("otmf", {**WAYS[OTMF].options, "alpha": case["alpha"]}))
        elif case["part"] == "joint":
            yield from self._joint(JOINT[case["method"]])
        elif case["part"] == "finish":
            kept, steps = KEPT_INPUTS[case["kept"]], self.options["finish steps"]
            yield from self.finishes(self.base, self.in_order(0), kept, steps)
        else:
            yield from self._continual(case["method"], WAYS[case["method"]], case["order"])

    def _bounds(self, orders: int) -> Iterator[Measurement]:
        """The base under each kind of head in each order, the fine-tunes themselves, multi-task training."""
        first, view = self.in_order(0), BodyView(self.base, self.read)  # one base for several seeds
        for order, qualities in enumerate(base_by_order(view, [self.in_order(n) for n in range(orders)])):
            for heads, metrics in qualities.items():
                yield Measurement({"method": BASE, "heads": heads, "order": order}, metrics)
                if order == 0:
                    for alpha in self.options["alphas"]:
                        yield Measurement({"method": UNSWEPT, "heads": heads, "alpha": alpha}, metrics)
        yield from self._controlled(BASE, view)
        yield Measurement({"method": BASE}, self._about(view))
        yield from self._each(INDIVIDUAL, {task.name: (task.model, task.head) for task in first})
        body, heads_of = self.tuned(self.tasks)
        together = zip(self.tasks, heads_of, strict=True)
        yield from self._each(TOGETHER, {task.name: (body, _linear_head(head)) for task, head in together})

    def _continual(self, title: str, way: Way, order: int) -> Iterator[Measurement]:
        """One way to merge, in one order, under every kind of head."""
        arrivals, seconds = self.in_order(order), list[float]()
        drawn = order == 0 and self.context.case.seed == 0 and title in DRAWN
        views = self.views(way, arrivals, seconds)
        qualities, last = followed(arrivals, views, measured="steps" if drawn else "arrivals")
        for heads, quality in qualities.items():
            yield Measurement({"heads": heads}, _metrics(quality))
        yield Measurement({}, {**self._about(last), "seconds": sum(seconds)})
        if order == 0 and title in CONTROLLED:
            yield from self._controlled(title, last)
        if drawn:
            matrices = {kind: _rounded(qualities[kind].matrix) for kind in (OWN, PAPER, CARRIED)}
            tasks = [arrival.name for arrival in arrivals]
            shown = {"tasks": tasks, "matrix": matrices, "cloud": self._cloud(last)}
            self.context.attach("drawn", {"method": title, **shown})

    def _shared(self) -> Iterator[Measurement]:
        """OTMF in its first order, which is also one point of the sweep of α."""
        for own in self._continual(OTMF, WAYS[OTMF], 0):
            yield Measurement({"method": OTMF, "order": 0, **own.factors}, own.metrics)
            heads = own.factors.get("heads")
            if heads in SWEPT_HEADS:
                point: dict[str, Any] = {"method": SWEPT, "alpha": ALPHA, "heads": heads}
                yield Measurement(point, {"accuracy": own.metrics["accuracy"]})

    def _swept(self, way: Way) -> Iterator[Measurement]:
        """One point of the sweep of α: ACC in the first order, under the kinds of head that it shows."""
        arrivals = self.in_order(0)
        views = self.views(way, arrivals)
        for heads, quality in follow(arrivals, views, measured="end", kinds=SWEPT_HEADS).items():
            yield Measurement({"heads": heads}, {"accuracy": quality.acc})

    def _joint(self, way: Way) -> Iterator[Measurement]:
        """All models merged at once."""
        arrivals, start = self.in_order(0), time.process_time()
        merged = self.together(
            self.base,
            {arrival.name: arrival.state for arrival in arrivals},
            {arrival.name: arrival.known.inputs[:JOINT_INPUTS] for arrival in arrivals},
            way.method,
            way.options,
        )
        seconds, body = time.process_time() - start, copy.deepcopy(self.base)
        body.load_state_dict({**self.base.state_dict(), **merged})
        view = BodyView(body)
        for heads, value in final_accuracies(arrivals, view).items():
            yield Measurement({"heads": heads}, {"accuracy": value})
        yield Measurement({}, {**self._about(view), "seconds": seconds})

    def _controlled(self, title: str, view: BodyView) -> Iterator[Measurement]:
        """Further heads on a final body: all that labels train, wider carried ones, carried on few inputs."""
        where: dict[str, str | int] = {"method": title, "order": 0}
        first = self.in_order(0)
        for name, value in label_head_accuracies(first, view).items():
            yield Measurement({**where, "labels": name}, {"accuracy of label heads": value})
        for heads, value in wide_accuracies(first, view.body).items():
            yield Measurement({**where, "heads": heads}, {"accuracy": value})
        for (count, prior), value in few_accuracies(first, view).items():
            yield Measurement({**where, "inputs": count, "shrunk": prior}, {"accuracy of few": value})

    def _about(self, view: BodyView) -> dict[str, float]:
        """The shift of features against the fine-tunes, and the merged vector's norm against theirs."""
        start = self.base.state_dict()
        lengths = [_distance(task.model.state_dict(), start) for task in self.arrivals.values()]
        plain, transported = mean_shift(self.in_order(0), view)
        norm = _distance(view.body.state_dict(), start) / (sum(lengths) / len(lengths))
        return {"shift": plain, "sinkhorn": transported, "norm": norm}

    def _each(self, title: str, models: Mapping[str, tuple[nn.Module, LinearHead]]) -> Iterator[Measurement]:
        values = {name: self.arrivals[name].accuracy(body, head) for name, (body, head) in models.items()}
        yield Measurement({"method": title}, {"accuracy": mean_of(values)})
        for name, value in values.items():
            yield Measurement({"method": title, "task": name}, {"accuracy of the task": value})

    def _cloud(self, merged: BodyView) -> dict[str, list[list[float]]]:
        """Return features of the first task under its fine-tune, the base and the merged body, in a plane."""
        first = self.in_order(0)[0]
        inputs = first.known.inputs[:CLOUD]
        sides = {"fine-tune": first.model, "base": self.base, "merged": merged.body}
        rows = torch.cat([encode(body, inputs) for body in sides.values()]).numpy()
        plane = TSNE(perplexity=min(30.0, len(rows) / 4), random_state=0, init="pca").fit_transform(rows)
        return {
            name: [[round(float(value), 2) for value in point] for point in plane[at : at + len(inputs)]]
            for name, at in zip(sides, range(0, len(rows), len(inputs)), strict=True)
        }


class PictureMerging(SmallMerging):
    """Eight picture tasks on a vision transformer that knows half of the digits and half of the clothes."""

    kind, batch = "picture", 64

    def load_task(self, name: str) -> LabelledTask:
        return pictures.load_task(name, self.options["rows"], self.options["test"])

    def load_base(self) -> nn.Module:
        """Return the transformer of this seed after pre-training."""
        settings = {"steps": self.options["pretrain"], "seed": self.draw("base")}
        arrays = self.context.cached(
            "merge-picture-base",
            {**settings, "shape": str(bodies.SHAPE)},
            lambda: bodies.to_arrays(bodies.pretrained_eye(pictures.pretraining_pictures(), **settings), ()),
            code=(
                bodies.Eye,
                bodies.pretrained_eye,
                bodies.train,
                pictures.pretraining_pictures,
                augment,
                VitShape,
            ),
        )
        return bodies.from_arrays(arrays, bodies.Eye())[0]

    def made_of(self) -> tuple[dict[str, Any], tuple[Any, ...]]:
        """Return the base's seed and steps, and what makes pictures and base."""
        base = [self.context.seed("base"), self.options["pretrain"]]
        return {"base": base}, (bodies.Eye, bodies.pretrained_eye, pictures._made, pictures._stored)


class TextMerging(SmallMerging):
    """Six text tasks on the upper blocks of MiniLM; what enters those blocks is computed once."""

    kind, batch = "text", 16

    def load_base(self) -> nn.Module:
        return bodies.upper_blocks(_encoder(), self.options["blocks"])

    def made_of(self) -> tuple[dict[str, Any], tuple[Any, ...]]:
        """Return which blocks of which model read how many tokens, and what makes their inputs."""
        parts = {"model": TEXT_MODEL, "blocks": self.options["blocks"], "tokens": self.options["tokens"]}
        return parts, (bodies.Upper, bodies.lower_states)

    def load_task(self, name: str) -> LabelledTask:
        """Return a task's texts as states that enter the blocks that are tuned."""
        texts, digest = load_some(name, self.options["rows"], self.options["test"])
        blocks, tokens = self.options["blocks"], self.options["tokens"]
        arrays = self.context.cached(
            "merge-text-states",
            {"texts": digest, **self.made_of()[0]},
            lambda: {
                part: bodies.lower_states(_encoder(), blocks, rows, tokens=tokens).numpy()
                for part, rows in (("train", texts.train), ("test", texts.test))
            },
            code=(bodies.lower_states,),
        )
        train, test = (
            LabelledRows(torch.from_numpy(arrays[part]), torch.as_tensor(labels).long())
            for part, labels in (("train", texts.train_labels), ("test", texts.test_labels))
        )
        return LabelledTask(name, train, test, len(texts.names))


@cache
def _encoder() -> Any:
    return load_encoder(TEXT_MODEL)


def base_by_order(base: BodyView, orders: Sequence[Sequence[TunedTask]]) -> list[dict[str, dict[str, float]]]:
    """Return ACC and BWT of a body that never changes, by kind of head, for each order of the arrivals.

    The paper's schedule never tunes the head of the model that comes last, so it depends on the order. No
    other kind does: the body is the same at every step, and these are measured once.
    """
    by_order: list[dict[str, dict[str, float]]] = []
    for arrivals in orders:
        kinds = (PAPER,) if by_order else HEADS
        measured = follow(arrivals, [base] * len(arrivals), kinds=kinds)
        first = by_order[0] if by_order else {}
        by_order.append({**first, **{heads: _metrics(quality) for heads, quality in measured.items()}})
    return by_order


def _linear_head(head: nn.Linear) -> LinearHead:
    return LinearHead(head.weight.detach(), head.bias.detach())


def _metrics(quality: Quality) -> dict[str, float]:
    return {"accuracy": quality.acc, "backward transfer": quality.bwt}


def _distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    squares = [float((one[name] - other[name]).double().square().sum()) for name in other]
    return math.sqrt(math.fsum(squares))


def _rounded(table: Sequence[Sequence[float]]) -> list[list[float | None]]:
    return [[None if math.isnan(value) else round(value, 4) for value in row] for row in table]
