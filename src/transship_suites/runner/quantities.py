"""Quantities over measurements: what a table's cell, a curve's point and a claim are made of.

A quantity has one value per seed. Everything else that varies inside a seed (tasks, orders) is averaged
first, because only seeds are independent of one another; a difference of two quantities is paired by seed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Level = str | int | float | bool
Factors = Mapping[str, Level]
Metrics = Mapping[str, float | None]
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """The smallest piece of work that is kept when a run is killed: one set of factors with one seed.

    `case["method"]` is the level of a factor.
    """

    factors: Factors
    seed: int

    def __getitem__(self, factor: str) -> Any:
        return self.factors[factor]

    def __hash__(self) -> int:
        return hash((frozenset(self.factors.items()), self.seed))

    def __str__(self) -> str:
        return ", ".join([*(f"{name} {level}" for name, level in self.factors.items()), f"seed {self.seed}"])


@dataclass(frozen=True)
class Measurement:
    """Numbers measured under stated conditions.

    Attributes:
        factors: the conditions, such as `{"method": "procrustes", "samples": 200}`.
        metrics: the numbers by name; None where a number does not exist (not applicable, not finite).
        seed: the seed they were measured with; the runner fills it in.
    """

    factors: Factors
    metrics: Metrics
    seed: int = 0


class Quantity(ABC):
    """What measurements give one value of per seed; supports + − × ÷ with quantities and numbers."""

    @abstractmethod
    def per_seed(self, measurements: Sequence[Measurement], seeds: Sequence[int]) -> list[float | None]:
        """Return the value for each of `seeds`; None where a seed has none."""

    @abstractmethod
    def within(self, factors: Factors) -> Quantity:
        """Return the same quantity under `factors`; a cell that already fixes one of them keeps its own."""

    @abstractmethod
    def __str__(self) -> str: ...

    def __add__(self, other: Quantity | float) -> Quantity:
        return Combined(" + ", sum, (self, _quantity(other)))

    def __sub__(self, other: Quantity | float) -> Quantity:
        return Combined(" − ", lambda pair: pair[0] - pair[1], (self, _quantity(other)))

    def __rsub__(self, other: float) -> Quantity:
        return _quantity(other) - self

    def __mul__(self, other: Quantity | float) -> Quantity:
        return Combined(" × ", math.prod, (self, _quantity(other)))

    __radd__ = __add__
    __rmul__ = __mul__

    def __truediv__(self, other: Quantity | float) -> Quantity:
        return Combined(" / ", lambda pair: pair[0] / pair[1], (self, _quantity(other)))


@dataclass(frozen=True)
class MetricMean(Quantity):
    """The mean, within a seed, of one metric over all measurements that satisfy `where`.

    Attributes:
        metric: its name.
        where: factor → the level, or a tuple of levels, that it must have.
    """

    metric: str
    where: Mapping[str, Level | tuple[Level, ...]] = field(default_factory=dict)

    def per_seed(self, measurements: Sequence[Measurement], seeds: Sequence[int]) -> list[float | None]:
        """Return the mean per seed; None where a seed has no such measurement, or one without a number."""
        values: dict[int, list[float | None]] = {seed: [] for seed in seeds}
        for measurement in measurements:
            own = values.get(measurement.seed)
            if own is not None and self.metric in measurement.metrics and self._selects(measurement.factors):
                own.append(measurement.metrics[self.metric])
        return [_mean(values[seed]) for seed in seeds]

    def within(self, factors: Factors) -> Quantity:
        """Return this cell with the conditions that it does not state itself added."""
        return MetricMean(self.metric, {**factors, **self.where})

    def _selects(self, factors: Factors) -> bool:
        return all(
            name in factors and factors[name] in (wanted if isinstance(wanted, tuple) else (wanted,))
            for name, wanted in self.where.items()
        )

    def __str__(self) -> str:
        conditions = ", ".join(
            f"{name} {' or '.join(map(str, wanted)) if isinstance(wanted, tuple) else wanted}"
            for name, wanted in self.where.items()
        )
        return f"{self.metric} ({conditions})" if conditions else self.metric


@dataclass(frozen=True)
class Number(Quantity):
    """A constant, so that quantities and numbers mix."""

    value: float

    def per_seed(self, measurements: Sequence[Measurement], seeds: Sequence[int]) -> list[float | None]:
        """Return the constant for every seed."""
        return [self.value] * len(seeds)

    def within(self, factors: Factors) -> Quantity:
        """Return itself: a constant has no conditions."""
        return self

    def __str__(self) -> str:
        return f"{self.value:g}"


@dataclass(frozen=True)
class Combined(Quantity):
    """A function of several quantities of the same seed."""

    symbol: str
    function: Callable[[Sequence[float]], float]
    parts: tuple[Quantity, ...]

    def per_seed(self, measurements: Sequence[Measurement], seeds: Sequence[int]) -> list[float | None]:
        """Return the function of the parts per seed; None where a part is missing or the result no number."""
        columns = [part.per_seed(measurements, seeds) for part in self.parts]
        return [self._of(values) for values in zip(*columns, strict=True)]

    def _of(self, values: Sequence[float | None]) -> float | None:
        present = [value for value in values if value is not None]
        if len(present) < len(values):
            return None
        try:
            value = float(self.function(present))
        except ZeroDivisionError:
            return None
        return value if math.isfinite(value) else None

    def within(self, factors: Factors) -> Quantity:
        """Return the same function of the parts under `factors`."""
        return Combined(self.symbol, self.function, tuple(part.within(factors) for part in self.parts))

    def __str__(self) -> str:
        inner = (self.symbol if self.symbol.startswith(" ") else ", ").join(map(str, self.parts))
        return f"({inner})" if self.symbol.startswith(" ") else f"{self.symbol}({inner})"


def cell(metric: str, **where: Level | tuple[Level, ...]) -> MetricMean:
    """Return the quantity `metric` under the conditions `where`: `cell("accuracy", method="procrustes")`."""
    return MetricMean(metric, where)


def highest(*quantities: Quantity) -> Quantity:
    """Return the largest of several quantities, seed by seed: the best of some baselines."""
    return Combined("highest of", max, quantities)


def lowest(*quantities: Quantity) -> Quantity:
    """Return the smallest of several quantities, seed by seed: what holds for it holds for each."""
    return Combined("lowest of", min, quantities)


def _quantity(value: Quantity | float) -> Quantity:
    return value if isinstance(value, Quantity) else Number(float(value))


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    # a seed in which one task failed is no fair average of the others
    if not values or len(present) < len(values):
        return None
    return math.fsum(present) / len(present)
