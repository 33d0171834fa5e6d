"""One setting of continual merging (base, fine-tunes, inputs), and what is measured in it."""

from __future__ import annotations

import copy
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
    OTMF,
    OWN,
    PAPER,
    SHARED,
    SWEPT,
    SWEPT_HEADS,
    TOGETHER,
    UNSWEPT,
    WAYS,
    Way,
)
from transship_suites.runner import Case, Context, Measurement

if TYPE_CHECKING:
    from torch import Tensor, nn

    from transship.verbs.merge.fusion.measure import Quality
    from transship.verbs.merge.tasks.heads import LinearHead
    from transship_suites.materials.training import Task
    from transship_suites.otmf.trajectory import Arrival, View

CLOUD = 150  # inputs in the picture of features


class Bench(ABC):
    """Base and fine-tunes of one seed. A suite of pictures and one of texts fill in the rest."""

    def __init__(self, context: Context) -> None:
        self.context, self.options = context, context.options
        self.tasks = self.load_tasks()
        self.base = self.load_base()
        self.arrivals = {task.name: self._arrival(task) for task in self.tasks}

    @abstractmethod
    def load_tasks(self) -> list[Task]:
        """Return the tasks in their first order."""

    @abstractmethod
    def load_base(self) -> nn.Module:
        """Return the body that all fine-tunes start from."""

    @abstractmethod
    def tuned(self, tasks: Sequence[Task]) -> tuple[nn.Module, list[nn.Linear]]:
        """Return the base trained on `tasks`, made once."""

    def in_order(self, order: int) -> list[Arrival]:
        """Return the models as they arrive: as listed, the other way round, or mixed by a fixed draw."""
        import numpy as np

        names = [task.name for task in self.tasks]
        if order == 1:
            names = names[::-1]
        elif order > 1:
            names = [names[place] for place in np.random.default_rng(order).permutation(len(names))]
        return [self.arrivals[name] for name in names]

    def read(self, body: nn.Module, inputs: Tensor) -> Tensor:
        """Return a body's features of inputs, made once for all cases with these weights and inputs."""
        import torch

        from transship.verbs.merge.fusion.origin import fingerprint
        from transship_suites.materials import small_networks as networks
        from transship_suites.materials import training

        arrays = self.context.cached(
            "merge-features",
            {"weights": fingerprint(body.state_dict()), "inputs": fingerprint({"inputs": inputs})},
            lambda: {"features": training.encode(body, inputs).numpy()},
            code=(training.encode, type(body), networks.Network),
        )
        return torch.from_numpy(arrays["features"])

    def _arrival(self, task: Task) -> Arrival:
        from transship_suites.otmf.heads import Known
        from transship_suites.otmf.trajectory import Arrival

        body, heads = self.tuned([task])
        head = _linear_head(heads[0])
        count = len(task.train) // 4
        inputs = task.train.inputs[:count]
        features = self.read(body, inputs)
        known = Known(inputs, task.train.labels[:count], head(features), task.classes, features)
        return Arrival(task.name, body, head, known, task.test.inputs, task.test.labels)

    # -- merging -------------------------------------------------------------------------------------------

    def views(
        self, way: Way, arrivals: Sequence[Arrival], seconds: list[float] | None = None
    ) -> Iterator[View]:
        """Yield the merged body after each arrival; what each merge took goes to `seconds`.

        It is one body, filled anew: a view is good until the next is asked for.
        """
        from transship.verbs.merge.fusion import Fusion
        from transship.verbs.merge.protocol import continual_method
        from transship_suites.otmf.trajectory import View

        method, body = continual_method(way.method, way.options), copy.deepcopy(self.base)
        fusion = Fusion(
            self.base,
            method,
            heads="own",
            keep_inputs=None if method.replay else 0,
            evaluate=False,
            strength=way.strength,
            seed=self.context.seed("merge") % 2**31,
        )
        for arrival in arrivals:
            start = time.process_time()
            fusion.add(_state(arrival), arrival.known.inputs, name=arrival.name)
            if seconds is not None:
                seconds.append(time.process_time() - start)
            body.load_state_dict(fusion.parameters, strict=True)
            # most ways leave the first model as it came: one body for all of them
            yield View(body, self.read) if arrival is arrivals[0] else View(body)

    # -- measuring -----------------------------------------------------------------------------------------

    def measured(self, case: Case) -> Iterator[Measurement]:
        """Measure a case of any part."""
        if case["part"] == "bounds":
            yield from self._bounds(self.options["orders"])
        elif case["part"] == SHARED:
            yield from self._shared()
        elif case["part"] == "sweep":
            yield from self._swept(Way("otmf", {**WAYS[OTMF].options, "alpha": case["alpha"]}))
        elif case["part"] == "joint":
            yield from self._joint(JOINT[case["method"]])
        else:
            yield from self._continual(case["method"], WAYS[case["method"]], case["order"])

    def _bounds(self, orders: int) -> Iterator[Measurement]:
        """The base under each kind of head in each order, the fine-tunes themselves, multi-task training."""
        from transship_suites.otmf.trajectory import View

        first, view = self.in_order(0), View(self.base, self.read)  # one base for several seeds
        for order, found in enumerate(base_by_order(view, [self.in_order(n) for n in range(orders)])):
            for heads, metrics in found.items():
                yield Measurement({"method": BASE, "heads": heads, "order": order}, metrics)
                if order == 0:
                    for alpha in self.options["alphas"]:
                        yield Measurement({"method": UNSWEPT, "heads": heads, "alpha": alpha}, metrics)
        yield from self._controlled(BASE, view)
        yield Measurement({"method": BASE}, self._about(view))
        yield from self._each(INDIVIDUAL, {one.name: (one.model, one.head) for one in first})
        body, heads_of = self.tuned(self.tasks)
        together = zip(self.tasks, heads_of, strict=True)
        yield from self._each(TOGETHER, {task.name: (body, _linear_head(head)) for task, head in together})

    def _continual(self, title: str, way: Way, order: int) -> Iterator[Measurement]:
        """One way to merge, in one order, under every kind of head."""
        from transship_suites.otmf.trajectory import followed

        arrivals, seconds = self.in_order(order), list[float]()
        drawn = order == 0 and self.context.case.seed == 0 and title in DRAWN
        views = self.views(way, arrivals, seconds)
        found, last = followed(arrivals, views, measured="steps" if drawn else "arrivals")
        for heads, one in found.items():
            yield Measurement({"heads": heads}, _metrics(one))
        yield Measurement({}, {**self._about(last), "seconds": sum(seconds)})
        if order == 0 and title in CONTROLLED:
            yield from self._controlled(title, last)
        if drawn:
            matrices = {kind: _rounded(found[kind].matrix) for kind in (OWN, PAPER, CARRIED)}
            tasks = [arrival.name for arrival in arrivals]
            shown = {"tasks": tasks, "matrix": matrices, "cloud": self._cloud(last)}
            self.context.attach("drawn", {"method": title, **shown})

    def _shared(self) -> Iterator[Measurement]:
        """OTMF in its first order, which is also one point of the sweep of α."""
        for one in self._continual(OTMF, WAYS[OTMF], 0):
            yield Measurement({"method": OTMF, "order": 0, **one.factors}, one.metrics)
            heads = one.factors.get("heads")
            if heads in SWEPT_HEADS:
                point: dict[str, Any] = {"method": SWEPT, "alpha": ALPHA, "heads": heads}
                yield Measurement(point, {"accuracy": one.metrics["accuracy"]})

    def _swept(self, way: Way) -> Iterator[Measurement]:
        """One point of the sweep of α: ACC in the first order, under the kinds of head that it shows."""
        from transship_suites.otmf.trajectory import follow

        arrivals = self.in_order(0)
        for heads, one in follow(
            arrivals, self.views(way, arrivals), measured="end", kinds=SWEPT_HEADS
        ).items():
            yield Measurement({"heads": heads}, {"accuracy": one.acc})

    def _joint(self, way: Way) -> Iterator[Measurement]:
        """All models merged at once."""
        from transship.verbs.merge.joint import joint
        from transship_suites.otmf.trajectory import View, final_accuracies

        arrivals, start = self.in_order(0), time.process_time()
        update = joint(
            self.base,
            {arrival.name: _state(arrival) for arrival in arrivals},
            {arrival.name: arrival.known.inputs[:JOINT_INPUTS] for arrival in arrivals},
            way.method,
            options=way.options,
            seed=self.context.seed("merge") % 2**31,
        )
        seconds, body = time.process_time() - start, copy.deepcopy(self.base)
        body.load_state_dict({name: one + update[name] for name, one in self.base.state_dict().items()})
        view = View(body)
        for heads, value in final_accuracies(arrivals, view).items():
            yield Measurement({"heads": heads}, {"accuracy": value})
        yield Measurement({}, {**self._about(view), "seconds": seconds})

    def _controlled(self, title: str, view: View) -> Iterator[Measurement]:
        """Further heads on a final body: all that labels train, wider carried ones, carried on few inputs."""
        from transship_suites.otmf.trajectory import (
            few_accuracies,
            label_head_accuracies,
            wide_accuracies,
        )

        where: dict[str, str | int] = {"method": title, "order": 0}
        first = self.in_order(0)
        for name, value in label_head_accuracies(first, view).items():
            yield Measurement({**where, "labels": name}, {"accuracy of label heads": value})
        for heads, value in wide_accuracies(first, view.body).items():
            yield Measurement({**where, "heads": heads}, {"accuracy": value})
        for (count, prior), value in few_accuracies(first, view).items():
            yield Measurement({**where, "inputs": count, "shrunk": prior}, {"accuracy of few": value})

    def _about(self, view: View) -> dict[str, float]:
        """The shift of features against the fine-tunes, and the merged vector's norm against theirs."""
        from transship_suites.otmf.trajectory import mean_shift

        start = self.base.state_dict()
        lengths = [_distance(one.model.state_dict(), start) for one in self.arrivals.values()]
        plain, transported = mean_shift(self.in_order(0), view)
        norm = _distance(view.body.state_dict(), start) / (sum(lengths) / len(lengths))
        return {"shift": plain, "sinkhorn": transported, "norm": norm}

    def _each(self, title: str, models: Mapping[str, tuple[nn.Module, LinearHead]]) -> Iterator[Measurement]:
        values = {name: self.arrivals[name].accuracy(body, head) for name, (body, head) in models.items()}
        yield Measurement({"method": title}, {"accuracy": sum(values.values()) / len(values)})
        for name, value in values.items():
            yield Measurement({"method": title, "task": name}, {"accuracy of the task": value})

    def _cloud(self, merged: View) -> dict[str, list[list[float]]]:
        """Return features of the first task under its fine-tune, the base and the merged body, in a plane."""
        import torch
        from sklearn.manifold import TSNE

        from transship_suites.materials.training import encode

        first = self.in_order(0)[0]
        inputs = first.known.inputs[:CLOUD]
        sides = {"fine-tune": first.model, "base": self.base, "merged": merged.body}
        rows = torch.cat([encode(one, inputs) for one in sides.values()]).numpy()
        plane = TSNE(perplexity=min(30.0, len(rows) / 4), random_state=0, init="pca").fit_transform(rows)
        return {
            name: [[round(float(value), 2) for value in point] for point in plane[at : at + len(inputs)]]
            for name, at in zip(sides, range(0, len(rows), len(inputs)), strict=True)
        }


def base_by_order(base: View, orders: Sequence[Sequence[Arrival]]) -> list[dict[str, dict[str, float]]]:
    """Return ACC and BWT of a body that never changes, by kind of head, for each order of the arrivals.

    The paper's schedule never tunes the head of the model that comes last, so it depends on the order. No
    other kind does: the body is the same at every step, and these are measured once.
    """
    from transship_suites.otmf.trajectory import follow

    found: list[dict[str, dict[str, float]]] = []
    for arrivals in orders:
        kinds = (PAPER,) if found else HEADS
        measured = follow(arrivals, [base] * len(arrivals), kinds=kinds)
        first = found[0] if found else {}
        found.append({**first, **{heads: _metrics(one) for heads, one in measured.items()}})
    return found


def _state(arrival: Arrival) -> dict[str, Any]:
    """Return a fine-tune as `Fusion` takes it: the body's weights and those of its head."""
    return {
        **arrival.model.state_dict(),
        "head.weight": arrival.head.weight,
        "head.bias": arrival.head.bias,
    }


def _linear_head(head: nn.Linear) -> LinearHead:
    from transship.verbs.merge.tasks.heads import LinearHead

    return LinearHead(head.weight.detach(), head.bias.detach())


def _metrics(found: Quality) -> dict[str, float]:
    return {"accuracy": found.acc, "backward transfer": found.bwt}


def _distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    squares = [float((one[name] - other[name]).double().square().sum()) for name in other]
    return math.sqrt(math.fsum(squares))


def _rounded(table: Sequence[Sequence[float]]) -> list[list[float | None]]:
    return [[None if math.isnan(value) else round(value, 4) for value in row] for row in table]
