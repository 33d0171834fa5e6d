"""How good a fusion is after each model, how far features moved, and what the step cost."""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from transship.geometry import sinkhorn_divergence

SHIFT_ROWS = 256  # of a task, for the Sinkhorn shift: its cost is quadratic


@dataclass(frozen=True)
class StepReport:
    """What was measured after one model.

    Attributes:
        number: t.
        task: the one that arrived (or, with `removed`, left).
        accuracy: kind of head → task → accuracy on its test rows, for every task seen that has some.
        shift: task → Δ, the mean L1 distance between merged and own features of its kept inputs (Eqs. 1–2).
        sinkhorn: task → debiased Sinkhorn divergence between both sets of unit features.
        strength: of the merged vector.
        norm: ‖τ_m‖.
        seconds: wall time of the step.
        cpu_seconds: the process's.
        memory: the most anonymous memory during the step, bytes.
        removed: whether a model was taken out.
        details: the method's own numbers.
    """

    number: int
    task: str
    accuracy: dict[str, dict[str, float]] = field(default_factory=dict)
    shift: dict[str, float] = field(default_factory=dict)
    sinkhorn: dict[str, float] = field(default_factory=dict)
    strength: float = 1.0
    norm: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory: int = 0
    removed: bool = False
    details: dict[str, float] = field(default_factory=dict)


def shift(merged: Float[Tensor, "inputs width"], own: Float[Tensor, "inputs width"]) -> tuple[float, float]:
    """Return Δ = mean ‖f_m(x) − f_i(x)‖₁ (Eq. 1) and the debiased Sinkhorn divergence of unit features."""
    delta = float((merged.double() - own.double()).abs().sum(1).mean())
    rows = slice(SHIFT_ROWS)
    unit = [functional.normalize(features[rows].double(), dim=1) for features in (merged, own)]
    with torch.no_grad():
        divergence = float(sinkhorn_divergence(unit[0], unit[1]))
    return delta, max(divergence, 0.0)


@dataclass(frozen=True)
class Quality:
    """A fusion's figures with one kind of head.

    Attributes:
        acc: mean accuracy over all tasks after the last model.
        bwt: mean of a(T, i) − a(i, i) over all tasks but the last, which nothing came after.
        matrix: a(t, i): rows are steps, columns tasks in the order of arrival; NaN where not measured.
    """

    acc: float
    bwt: float
    matrix: tuple[tuple[float, ...], ...]


def quality(history: Sequence[StepReport], tasks: Sequence[str], kind: str) -> Quality | None:
    """Return ACC and BWT of one kind of head for `tasks`, in their order of arrival; None without figures."""
    rows = []
    for step in history:
        accuracies = step.accuracy.get(kind, {})
        rows.append(tuple(accuracies.get(task, math.nan) for task in tasks))
    if not rows or all(math.isnan(value) for value in rows[-1]):
        return None
    last = [value for value in rows[-1] if not math.isnan(value)]
    changes = []
    for place, task in enumerate(tasks[:-1]):
        came = [number for number, step in enumerate(history) if step.task == task and not step.removed]
        arrival = rows[came[-1]][place] if came else math.nan
        if not math.isnan(arrival) and not math.isnan(rows[-1][place]):
            changes.append(rows[-1][place] - arrival)
    bwt = sum(changes) / len(changes) if changes else math.nan
    return Quality(sum(last) / len(last), bwt, tuple(rows))


def summary(
    history: Sequence[StepReport], tasks: Sequence[str], individual: Mapping[str, float | None]
) -> dict[str, Any]:
    """Return ACC, BWT (own kind and fixed heads) and the matrix for every kind of head measured."""
    kinds: dict[str, Any] = {}
    fixed = quality(history, tasks, "own")
    for kind in dict.fromkeys(kind for step in history for kind in step.accuracy):
        figures = quality(history, tasks, kind)
        if figures is not None:
            kinds[kind] = {
                "acc": figures.acc,
                "bwt": _number(figures.bwt),
                "bwt_fixed_heads": None if fixed is None else _number(fixed.bwt),
                "matrix": [[_number(value) for value in row] for row in figures.matrix],
            }
    alone = [value for value in individual.values() if value is not None]
    last = history[-1] if history else None
    return {
        "tasks": list(tasks),
        "heads": kinds,
        "individual": dict(individual),
        "individual_mean": sum(alone) / len(alone) if alone else None,
        "shift": {} if last is None else dict(last.shift),
        "sinkhorn": {} if last is None else dict(last.sinkhorn),
        "bwt_is": "mean over all tasks but the last of final accuracy − accuracy at arrival",
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


_INTERVAL = 0.02


class StepCost:
    """Measures a block: `seconds` of wall time, `cpu_seconds`, and the most anonymous bytes as `memory`.

    `memory` is 0 where the system does not tell. The kernel keeps the peak of all resident memory since it
    was last reset; less what is mapped from files in the end, that is the peak of the rest. Where it cannot
    be reset, a thread looks every few milliseconds.
    """

    seconds = cpu_seconds = 0.0

    def __enter__(self) -> "StepCost":
        self._clock = time.perf_counter(), time.process_time()
        self.memory = anonymous_memory()
        self._stop: threading.Event | None = None
        if not _reset():
            self._stop = threading.Event()
            self._thread = threading.Thread(target=self._watch, args=(self._stop,), daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stop is not None:
            self._stop.set()
            self._thread.join()
        else:
            sizes = _status()
            files = sizes.get("RssFile", 0) + sizes.get("RssShmem", 0)
            self.memory = max(self.memory, sizes.get("VmHWM", 0) - files)
        self.memory = max(self.memory, anonymous_memory())
        self.seconds = time.perf_counter() - self._clock[0]
        self.cpu_seconds = time.process_time() - self._clock[1]

    def _watch(self, stop: threading.Event) -> None:
        while not stop.wait(_INTERVAL):
            self.memory = max(self.memory, anonymous_memory())


def anonymous_memory() -> int:
    """Return the bytes of this process that are no file."""
    return _status().get("RssAnon", 0)


def _reset() -> bool:
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        return False
    return True


def _status() -> dict[str, int]:
    """Return the kernel's figures of this process, in bytes."""
    sizes = {}
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name.startswith(("Rss", "VmHWM")):
                    sizes[name] = int(rest.split()[0]) * 1024
    except OSError:
        return {}
    return sizes
