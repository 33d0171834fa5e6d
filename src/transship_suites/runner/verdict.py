"""Spread over seeds, and verdicts on claims by a stated rule: of the mean, or of every run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from transship_suites.runner.quantities import Measurement, Quantity

Verdict = Literal["confirmed", "refuted", "undecided"]


@dataclass(frozen=True)
class SeedSpread:
    """The mean over seeds and how far the seeds lie apart.

    Attributes:
        mean: over the seeds that have a value; None where none has.
        sd: the sample standard deviation (n − 1); None below two seeds.
        seeds: how many seeds have a value.
    """

    mean: float | None
    sd: float | None
    seeds: int

    def interval(self, confidence: float = 0.95) -> tuple[float, float] | None:
        """Return Student's interval of the mean, mean ± t · sd / √n; None below two seeds."""
        if self.mean is None or self.sd is None:
            return None
        from scipy.special import stdtrit

        t = float(stdtrit(self.seeds - 1, 0.5 + confidence / 2))
        half = t * self.sd / math.sqrt(self.seeds)
        return self.mean - half, self.mean + half


def spread(values: Sequence[float | None]) -> SeedSpread:
    """Return the spread of one value per seed; missing values are left out, and not counted."""
    present = [value for value in values if value is not None]
    count = len(present)
    if count == 0:
        return SeedSpread(None, None, 0)
    mean = math.fsum(present) / count
    if count == 1:
        return SeedSpread(mean, None, 1)
    return SeedSpread(
        mean, math.sqrt(math.fsum((value - mean) ** 2 for value in present) / (count - 1)), count
    )


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence that the measurements can confirm or refute.

    Attributes:
        text: the claim as the page prints it.
        quantity: what decides it, one value per seed; a difference of two cells is paired by seed.
        at_least: the claim says that the quantity is at least this (in the metric's own unit).
        at_most: the claim says that the quantity is at most this.
        confidence: of the interval that must lie on one side.
        source: where the claim stands: section or table of the paper, or "ours".
    """

    # whether every run must hold, and not the mean of the runs
    every: ClassVar[bool] = False
    text: str
    quantity: Quantity
    at_least: float | None = None
    at_most: float | None = None
    confidence: float = 0.95
    source: str = ""

    def __post_init__(self) -> None:
        if self.at_least is None and self.at_most is None:
            raise ValueError(f"the claim '{self.text}' needs at_least or at_most")
        if None not in (self.at_least, self.at_most) and self.at_least > self.at_most:  # type: ignore[operator]
            raise ValueError(
                f"the claim '{self.text}' asks for at least {self.at_least}, at most {self.at_most}"
            )
        if not 0 < self.confidence < 1:
            raise ValueError(f"the claim '{self.text}' has confidence {self.confidence}, not between 0 and 1")

    @property
    def rule(self) -> str:
        """The rule of decision, as the page prints it."""
        bounds = [f"≥ {self.at_least:g}"] if self.at_least is not None else []
        bounds += [f"≤ {self.at_most:g}"] if self.at_most is not None else []
        if self.every:
            return (
                f"confirmed if {self.quantity} is {' and '.join(bounds)} in every seed; refuted if it is not "
                "in one of them; undecided if one has no value, or there is only one"
            )
        return (
            f"confirmed if the whole {100 * self.confidence:g} % t-interval over seeds of {self.quantity} "
            f"is {' and '.join(bounds)}; refuted if it lies wholly outside; undecided otherwise"
        )


@dataclass(frozen=True, kw_only=True)
class EveryRun(Claim):
    """A sentence about every run: the worst seed decides it, and no interval does."""

    every: ClassVar[bool] = True


@dataclass(frozen=True)
class Judgement:
    """A claim with its verdict and the numbers behind it.

    Attributes:
        text: the claim.
        source: where it stands.
        rule: the rule of decision.
        verdict: confirmed, refuted or undecided.
        reason: one sentence with the numbers that decided.
        per_seed: the quantity's value for each seed.
        spread: its mean, standard deviation and number of seeds.
        low: lower end of the interval, None where there is none or it decides nothing.
        high: upper end.
    """

    text: str
    source: str
    rule: str
    verdict: Verdict
    reason: str
    per_seed: tuple[float | None, ...]
    spread: SeedSpread
    low: float | None
    high: float | None


def judge(claim: Claim, measurements: Sequence[Measurement], seeds: Sequence[int]) -> Judgement:
    """Return the verdict on `claim`, by its rule, from one value of its quantity per seed."""
    values = tuple(claim.quantity.per_seed(measurements, seeds))
    over_seeds = spread(values)
    missing = [str(seed) for seed, value in zip(seeds, values, strict=True) if value is None]
    interval = over_seeds.interval(claim.confidence)
    verdict: Verdict = "undecided"
    if missing:
        reason = f"no value for seed {', '.join(missing)}"
    elif interval is None:
        reason = "one seed has no spread" if over_seeds.seeds else "no seeds"
    elif claim.every:
        verdict, reason = _decide_every(claim, seeds, values)
    else:
        verdict = _decide(interval, claim.at_least, claim.at_most)
        reason = (
            f"mean {over_seeds.mean:.4g}, {100 * claim.confidence:g} % interval "
            f"{interval[0]:.4g} to {interval[1]:.4g} over {over_seeds.seeds} seeds"
        )
    low, high = interval if interval is not None and not missing and not claim.every else (None, None)
    return Judgement(claim.text, claim.source, claim.rule, verdict, reason, values, over_seeds, low, high)


def across_kernels(judgements: Mapping[str, Judgement]) -> Judgement:
    """Return the judgement of a claim that was measured with several kernels: undecided where they disagree.

    Args:
        judgements: kernels → what was judged with them; the first one's numbers stay.
    """
    first = next(iter(judgements.values()))
    verdicts = {kernels: judgement.verdict for kernels, judgement in judgements.items()}
    if len(set(verdicts.values())) == 1:
        return first
    each = "; ".join(f"{verdict} with {kernels}" for kernels, verdict in verdicts.items())
    return dataclasses.replace(first, verdict="undecided", reason=f"it depends on the processor: {each}")


def _decide(interval: tuple[float, float], at_least: float | None, at_most: float | None) -> Verdict:
    low, high = interval
    floor = -math.inf if at_least is None else at_least
    ceiling = math.inf if at_most is None else at_most
    if floor <= low and high <= ceiling:
        return "confirmed"
    return "refuted" if high < floor or low > ceiling else "undecided"


def _decide_every(claim: Claim, seeds: Sequence[int], values: Sequence[float | None]) -> tuple[Verdict, str]:
    """Return the verdict of the worst seed, and a sentence that names it."""
    floor = -math.inf if claim.at_least is None else claim.at_least
    ceiling = math.inf if claim.at_most is None else claim.at_most
    present = [(seed, value) for seed, value in zip(seeds, values, strict=True) if value is not None]
    seed, worst = max(present, key=lambda pair: max(floor - pair[1], pair[1] - ceiling))
    reason = f"the worst of {len(present)} seeds is {worst:.4g} (seed {seed}), and every one must hold"
    return "confirmed" if floor <= worst <= ceiling else "refuted", reason
