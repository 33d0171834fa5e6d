"""What a merged body is worth while models arrive: heads on its features, accuracy per step, task and head.

Heads are of the kinds that `merge` fits, and the best that labels can train beside them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor, nn
from torch.nn.functional import one_hot

from transship.verbs.merge.fusion.measure import Quality, StepReport, quality, shift
from transship.verbs.merge.tasks.heads import HeadSettings, LinearHead, accuracy, carry, polish, tune
from transship_suites.materials.bodies import encode, wide
from transship_suites.otmf.names import (
    CARRIED,
    FEW,
    HEADS,
    JOINT_HEADS,
    LABEL_HEADS,
    ONCE,
    PAPER,
    POLISHED,
    PRIORS,
    TUNED,
    WIDE,
    WIDE_POLISHED,
)

REFRESHED = (TUNED, CARRIED, POLISHED)
# when tasks are measured: at arrival and in the end, after every step, in the end only
Measured = Literal["arrivals", "steps", "end"]


@dataclass(frozen=True, eq=False)
class KnownInputs:
    """What is known of a task's own inputs.

    Attributes:
        inputs: a quarter of the training inputs.
        labels: their classes, which only heads tuned on labels may read.
        logits: of the task's own model, which carried heads read.
        classes: how many classes there are.
        features: of the task's own model, for the shift against them.
    """

    inputs: Tensor
    labels: Tensor
    logits: Tensor
    classes: int
    features: Tensor | None = None


@dataclass(frozen=True, eq=False)
class TunedTask:
    """A fine-tuned model, its head, and the inputs that it brings.

    Attributes:
        name: of the task.
        model: its body.
        head: the head it was fine-tuned with.
        known: a quarter of its training inputs, with labels (for tuned heads only) and its own logits.
        test: inputs.
        test_labels: classes.
    """

    name: str
    model: nn.Module
    head: LinearHead
    known: KnownInputs
    test: Tensor
    test_labels: Tensor

    @property
    def state(self) -> dict[str, Tensor]:
        """The fine-tune as `Fusion` takes it: the body's weights and those of its head."""
        assert self.head.bias is not None
        return {
            **self.model.state_dict(),
            "head.weight": self.head.weight,
            "head.bias": self.head.bias,
        }

    def accuracy(self, body: Callable[[Tensor], Tensor], head: LinearHead) -> float:
        """Return the accuracy of a head on a body's features of the test inputs."""
        return accuracy(head(encode(body, self.test)), self.test_labels)


class BodyView:
    """The tasks as one body sees them: features are read and heads fitted when first asked for, then kept.

    It holds for as long as the body keeps its weights. `read` gives its features.
    """

    def __init__(self, body: nn.Module, read: Callable[[nn.Module, Tensor], Tensor] = encode) -> None:
        self.body, self.read = body, read
        self._features: dict[tuple[str, str], Tensor] = {}
        self._heads: dict[tuple[str, str], LinearHead] = {}

    def known(self, arrival: TunedTask) -> Tensor:
        """Return the features of a task's known inputs."""
        return self._read("known", arrival.name, arrival.known.inputs)

    def test(self, arrival: TunedTask) -> Tensor:
        """Return the features of a task's test inputs."""
        return self._read("test", arrival.name, arrival.test)

    def head(self, kind: str, arrival: TunedTask) -> LinearHead:
        key = kind, arrival.name
        if key not in self._heads:
            features, known = self.known(arrival), arrival.known
            if kind == POLISHED:
                self._heads[key] = polished(self.head(CARRIED, arrival), features, known)
            else:
                self._heads[key] = fitted(kind, features, known, arrival.head)
        return self._heads[key]

    def accuracy(self, arrival: TunedTask, head: LinearHead) -> float:
        return accuracy(head(self.test(arrival)), arrival.test_labels)

    def _read(self, part: str, name: str, inputs: Tensor) -> Tensor:
        if (part, name) not in self._features:
            self._features[part, name] = self.read(self.body, inputs)
        return self._features[part, name]


def follow(
    arrivals: Sequence[TunedTask],
    bodies: Iterable[nn.Module | BodyView],
    *,
    measured: Measured = "arrivals",
    kinds: Sequence[str] = HEADS,
) -> dict[str, Quality]:
    """Return ACC, BWT and accuracies of the merged body along the arrivals, for every kind of head.

    The paper's schedule tunes the head of the task before the newest one, once, and never the last one's. A
    body that is given as one BodyView at every step is read once.
    """
    return followed(arrivals, bodies, measured=measured, kinds=kinds)[0]


def followed(
    arrivals: Sequence[TunedTask],
    bodies: Iterable[nn.Module | BodyView],
    *,
    measured: Measured = "arrivals",
    kinds: Sequence[str] = HEADS,
) -> tuple[dict[str, Quality], BodyView]:
    """Return what `follow` does, and the last body as it was seen."""
    kept: dict[str, dict[int, LinearHead]] = {PAPER: {}, ONCE: {}}
    history: list[StepReport] = []
    last = len(arrivals) - 1
    for step, body in enumerate(bodies):
        view = _view(body)
        report = StepReport(step + 1, arrivals[step].name, {kind: {} for kind in kinds})
        if step > 0 and PAPER in kinds:
            kept[PAPER][step - 1] = view.head(TUNED, arrivals[step - 1])
        if ONCE in kinds:
            kept[ONCE][step] = view.head(CARRIED, arrivals[step])
        for task in _measured_tasks(step, last, measured):
            arrival = arrivals[task]
            for kind in kinds:
                fresh = kind in REFRESHED
                head = view.head(kind, arrival) if fresh else kept.get(kind, {}).get(task, arrival.head)
                report.accuracy[kind][arrival.name] = view.accuracy(arrival, head)
        history.append(report)
    names = [arrival.name for arrival in arrivals]
    qualities = {kind: quality(history, names, kind) for kind in kinds}
    return {kind: own for kind, own in qualities.items() if own is not None}, view


def _measured_tasks(step: int, last: int, measured: Measured) -> Sequence[int]:
    if step == last or measured == "steps":
        return range(step + 1)
    return (step,) if measured == "arrivals" else ()


def _view(body: nn.Module | BodyView) -> BodyView:
    return body if isinstance(body, BodyView) else BodyView(body)


def final_accuracies(
    arrivals: Sequence[TunedTask], body: nn.Module | BodyView, kinds: Sequence[str] = JOINT_HEADS
) -> dict[str, float]:
    """Return the mean accuracy over tasks of a body that has no history, by kind of head."""
    view, sums = _view(body), dict.fromkeys(kinds, 0.0)
    for arrival in arrivals:
        for kind in kinds:
            head = view.head(kind, arrival) if kind in REFRESHED else arrival.head
            sums[kind] += view.accuracy(arrival, head) / len(arrivals)
    return sums


def label_head_accuracies(arrivals: Sequence[TunedTask], view: BodyView) -> dict[str, float]:
    """Return the mean accuracy over tasks of each head that labels can train on one body."""
    sums: dict[str, float] = {}
    for arrival in arrivals:
        for name, head in label_heads(view.known(arrival), arrival.known, arrival.head).items():
            sums[name] = sums.get(name, 0.0) + view.accuracy(arrival, head) / len(arrivals)
    return sums


def wide_accuracies(arrivals: Sequence[TunedTask], body: nn.Module) -> dict[str, float]:
    """Return the mean accuracy over tasks of heads carried onto features of several blocks."""
    sums: dict[str, float] = {}
    for arrival in arrivals:
        features, test = (encode(wide(body), inputs) for inputs in (arrival.known.inputs, arrival.test))
        carried = fitted(CARRIED, features, arrival.known, arrival.head)
        heads = {WIDE: carried, WIDE_POLISHED: polished(carried, features, arrival.known)}
        for name, head in heads.items():
            share = accuracy(head(test), arrival.test_labels) / len(arrivals)
            sums[name] = sums.get(name, 0.0) + share
    return sums


def few_accuracies(arrivals: Sequence[TunedTask], view: BodyView) -> dict[tuple[int | str, str], float]:
    """Return the mean accuracy of heads carried on few inputs, shrunk to zero or to the task's own head."""
    sums: dict[tuple[int | str, str], float] = {}
    for arrival in arrivals:
        features = view.known(arrival)
        for (label, count), (name, settings) in itertools.product(FEW.items(), PRIORS.items()):
            some, logits = features[:count], arrival.known.logits[:count]
            head = carry(some, logits, arrival.head, HeadSettings(**settings))
            share = view.accuracy(arrival, head) / len(arrivals)
            sums[label, name] = sums.get((label, name), 0.0) + share
    return sums


def mean_shift(arrivals: Sequence[TunedTask], view: BodyView) -> tuple[float, float]:
    """Return the mean over tasks of Δ (Eqs. 1–2) and of the Sinkhorn divergence, on the tasks' inputs."""
    shifts = []
    for arrival in arrivals:
        own = arrival.known.features
        assert own is not None, "a shift is against the features of the task's own model"
        shifts.append(shift(view.known(arrival), own))
    mean = torch.tensor(shifts, dtype=torch.float64).mean(0)
    return float(mean[0]), float(mean[1])


def fitted(kind: str, features: Tensor, known: KnownInputs, own: LinearHead) -> LinearHead:
    """Return a head of this kind for merged features of the known inputs."""
    if kind not in (TUNED, CARRIED, POLISHED):
        raise ValueError(f"'{kind}' is no kind of head that is fitted")
    # features of several blocks have no own head to shrink to
    settings = HeadSettings(prior="own" if features.shape[1] == own.weight.shape[1] else "zero")
    if kind == TUNED:
        return tune(own, features, known.labels, settings)
    carried = carry(features, known.logits, own, settings)
    return carried if kind == CARRIED else polished(carried, features, known)


def polished(carried: LinearHead, features: Tensor, known: KnownInputs) -> LinearHead:
    """Return a carried head after its steps against the probabilities of the task's own model."""
    return polish(carried, features, known.logits, HeadSettings())


def label_heads(features: Tensor, known: KnownInputs, own: LinearHead) -> dict[str, LinearHead]:
    """Return heads trained on labels in seven ways: what a carried head must be held against.

    Adam from the task's own head, fast (the paper's: 100 steps of 0.01), slow (1000 of 0.001) and long (1000
    of 0.01); ridge on one-hot rows and logistic regression at two penalties each.
    """
    steps_and_rates = ((100, 0.01), (1000, 0.001), (1000, 0.01))
    heads = [
        tune(own, features, known.labels, HeadSettings(tuning_steps=steps, tuning_rate=rate))
        for steps, rate in steps_and_rates
    ]
    rows, labels = features.double().numpy(), known.labels.numpy()
    unit = float(features.double().var(0).sum()) / features.shape[1] * len(rows)
    wanted = one_hot(known.labels, known.classes).double().numpy()
    for strength in (1e-3, 1e-1):
        flat = Ridge(alpha=strength * unit).fit(rows, wanted)
        heads.append(_head(flat.coef_, flat.intercept_))
    for penalty in (1.0, 0.03):
        regression = LogisticRegression(C=penalty, max_iter=300).fit(rows, labels)
        heads.append(_over_all(regression, known.classes))
    return dict(zip(LABEL_HEADS, heads, strict=True))


def _over_all(regression: Any, classes: int) -> LinearHead:
    """Return a logistic regression as a head over all classes; one that it never saw cannot win."""
    weight, bias = regression.coef_, regression.intercept_
    if len(regression.classes_) == 2 and len(weight) == 1:  # scikit-learn keeps one row of two classes
        weight, bias = torch.tensor(weight), torch.tensor(bias)
        weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
    seen = _head(weight, bias)
    places = torch.from_numpy(regression.classes_)
    weight = torch.zeros(classes, seen.weight.shape[1]).index_copy(0, places, seen.weight)
    assert seen.bias is not None
    bias = torch.full((classes,), -1e9).index_copy(0, places, seen.bias)
    return LinearHead(weight, bias)


def _head(weight: Any, bias: Any) -> LinearHead:
    return LinearHead(torch.as_tensor(weight).float(), torch.as_tensor(bias).float())
