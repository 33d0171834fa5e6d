"""Runs a suite case by case. A finished case is on disk before the next begins, so a killed run continues."""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transship.atomic import write_text
from transship.errors import OptionError
from transship.registry import unknown
from transship.report import library_versions
from transship_suites.runner.cache import Cache, cache_home, content_key
from transship_suites.runner.context import Context
from transship_suites.runner.declaration import Case, Measured, Suite
from transship_suites.runner.needs import device_for, ensure, signature
from transship_suites.runner.quantities import Measurement
from transship_suites.runner.results import (
    OTHER_CODE,
    SKIPPED,
    TAKEN_OVER,
    CaseResult,
    SuiteResult,
    case_from_json,
    summarise,
)
from transship_suites.runner.sources import suite_fingerprint

BRIEF = 1.0  # seconds in which a case trains nothing worth a collection, which may take as long


@dataclass(frozen=True)
class Step:
    """One case that is done.

    Attributes:
        case: which.
        done: how many are done now, of `total`.
        total: all cases of the run.
        seconds: that it took.
        reused: whether it was finished by an earlier run.
    """

    case: Case
    done: int
    total: int
    seconds: float
    reused: bool


class SuiteRun:
    """A suite at one scale: `for step in run.steps(): …`, then `run.result()`.

    Finished cases lie in `<home>/cases/<suite>/`, named by the hash of all that they depend on: the suite's
    file, the rooms of transship that it imports, its version, the options that the case reads, the case and
    the files of its needs. What has another hash is computed anew.

    Attributes:
        suite: what is run.
        scale: its name.
        device: where models run: as asked, else a GPU where the scale needs one, else the processor.
        seeds: `seed`, `seed + 1`, … as many as the scale asks for.
        cases: all cases, seeds innermost.
        code: the hash of sources, version, needs and device.
        fingerprint: the hash of that and of the options: of everything but the case.
    """

    def __init__(
        self,
        suite: Suite,
        scale: str,
        *,
        seed: int = 0,
        fresh: bool = False,
        device: str | None = None,
        home: Path | None = None,
    ) -> None:
        if scale not in suite.scales:
            raise unknown(scale, suite.scales, kind="scale", where=suite.name)
        needs = suite.needs_at(scale)
        ensure(needs, suite=suite.name, device=device)
        assert suite.file is not None, "load_suite names the file"
        self.suite, self.scale, self.device = suite, scale, device_for(needs, device)
        self.home = cache_home() if home is None else home
        self.not_before = time.time() if fresh else 0.0
        self.seeds = tuple(range(seed, seed + suite.scales[scale].seeds))
        self.cases = all_cases(suite, suite.scales[scale].options, self.seeds)
        self.code = content_key(
            {
                "code": suite_fingerprint(suite.file),
                "version": suite.version,
                "needs": [signature(need) for need in needs],
                "device": self.device,
            }
        )
        self.fingerprint = content_key([self.code, dict(suite.scales[scale].options)])
        if fresh:
            for case in self.cases:
                self._file(case).unlink(missing_ok=True)

    def finished(self) -> list[Case]:
        """Return the cases that an earlier run has finished."""
        return [step.case for step in self.earlier()[0]]

    def earlier(self) -> tuple[list[Step], list[Case]]:
        """Return the cases that an earlier run has finished, as steps, and those that are left.

        A case that was skipped is tried again: what it missed may be here now.
        """
        steps: list[Step] = []
        left: list[Case] = []
        for case in self.cases:
            found = self._read(case)
            if found is None or SKIPPED in found.attachments:
                left.append(case)
            else:
                steps.append(Step(case, len(steps) + 1, len(self.cases), found.seconds, reused=True))
        return steps, left

    def steps(self, jobs: int = 1) -> Iterator[Step]:
        """Run what is not finished, in `jobs` processes; yield each case once done, finished ones first."""
        if jobs != 1:
            from transship_suites.runner.schedule import side_by_side

            yield from (step for _, step in side_by_side([self], jobs) if step is not None)
            return
        steps, left = self.earlier()
        yield from steps
        for done, case in enumerate(left, len(steps) + 1):
            cache = Cache(self.home, not_before=self.not_before)
            result = run_case(self.suite, self.scale, case, cache, self.device)
            self.keep(result)
            yield Step(case, done, len(self.cases), result.seconds, reused=False)

    def keep(self, result: CaseResult) -> None:
        """Write a finished case, so that it is not run again."""
        write_text(
            self._file(result.case), json.dumps(dataclasses.asdict(result), allow_nan=False), force=True
        )

    def take_over(self, other: SuiteResult, *, trust: bool = False, where: str = "result") -> int:
        """Keep what another run has finished of this one's cases; return how many were new.

        They have the same factors, the same seed and the same options to read, and say on what they were
        computed. Those of other code or data are refused, unless whoever asks trusts that they measure the
        same; the result says of how many that holds.
        """
        shared = self._shared(other)
        if not shared:
            raise OptionError("it has no case of this run", where=where, fix="leave it out")
        if other.code != self.code and not trust:
            raise OptionError(
                "its code or data is not that of this run",
                where=where,
                fix="leave it out, or pass --trust if the change cannot matter",
            )
        left = self.earlier()[1]
        new = [one for one in shared if one.case in left]
        about: dict[str, Any] = {TAKEN_OVER: other.environment}
        if other.code != self.code:
            about[OTHER_CODE] = other.code or other.fingerprint
        for one in new:
            self.keep(dataclasses.replace(one, attachments={**about, **one.attachments}))
        return len(new)

    def _shared(self, other: SuiteResult) -> list[CaseResult]:
        """Return the other's cases that are cases of this run, but for those that measured nothing."""
        if other.suite != self.suite.name:
            return []
        names = {content_key([dict(case.factors), case.seed]) for case in self.cases}
        return [
            one
            for one in other.cases
            if one.measurements
            and content_key([dict(one.case.factors), one.case.seed]) in names
            and self._reads_the_same(one.case, other.options)
        ]

    def _reads(self, case: Case) -> str:
        """Return the hash of the options that a case reads."""
        return content_key(self.suite.depends(self.suite.scales[self.scale].options, case.factors))

    def _reads_the_same(self, case: Case, options: Mapping[str, Any]) -> bool:
        try:
            return self._reads(case) == content_key(self.suite.depends(options, case.factors))
        except KeyError:  # options of another scale or time may lack what the case reads
            return False

    def result(self, *, so_far: bool = False) -> SuiteResult:
        """Return tables, curves and verdicts from the finished cases.

        All must be finished, or, `so_far`, one; claims of cases that are not are then left undecided,
        whatever the numbers are.
        """
        results, waiting = [], []
        for case in self.cases:
            result = self._read(case)
            if result is not None:
                results.append(result)
            elif not so_far:
                raise OptionError(
                    f"'{case}' is not finished", where=self.suite.name, fix="run the suite to its end"
                )
            else:
                waiting.append(case)
        if not results:
            raise OptionError("no case is finished yet", where=self.suite.name, fix="run it without --so-far")
        _no_doubles(results)
        return summarise(
            self.suite,
            self.scale,
            self.seeds,
            results,
            waiting=waiting,
            fingerprint=self.fingerprint,
            code=self.code,
            environment=environment(),
        )

    def _file(self, case: Case) -> Path:
        key = content_key([self.code, self._reads(case), dict(case.factors), case.seed])
        return self.home / "cases" / self.suite.name / f"{key[:40]}.json"

    def _read(self, case: Case) -> CaseResult | None:
        try:
            found = case_from_json(json.loads(self._file(case).read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # not there, or damaged: it is run again
        return found if found.case == case else None


def run_case(suite: Suite, scale: str, case: Case, cache: Cache, device: str = "cpu") -> CaseResult:
    """Run one case and return what it measured."""
    context = Context(suite.name, case, suite.scales[scale].options, cache, device=device)
    start = time.perf_counter()
    measurements = tuple(_measurements(suite.run(case, context), case))
    seconds = time.perf_counter() - start
    if seconds > BRIEF:
        gc.collect()  # models in reference cycles: their size means nothing to Python's own count of objects
    return CaseResult(case, measurements, context.attachments, seconds)


def environment() -> dict[str, str]:
    """Return what computes, as the result states it: versions, kind of machine, threads."""
    machine = {"system": f"{platform.system()} {platform.machine()}", "cores": str(os.cpu_count())}
    return {**library_versions(), **machine, "threads": os.environ.get("OMP_NUM_THREADS", "not limited")}


def all_cases(suite: Suite, options: Mapping[str, Any], seeds: Iterable[int]) -> tuple[Case, ...]:
    """Return the cases of a suite under some options, seeds innermost."""
    factors = [dict(one) for one in suite.cases(options)]
    cases = tuple(Case(one, seed) for one in factors for seed in seeds)
    if len({content_key([dict(case.factors), case.seed]) for case in cases}) < len(cases):
        raise ValueError(f"the suite '{suite.name}' lists a case twice")
    return cases


def _measurements(measured: Measured, case: Case) -> Iterator[Measurement]:
    """Yield what `run` returned with the case's factors and seed; None for what is not finite."""
    if isinstance(measured, Mapping):
        measured = [Measurement({}, measured)]
    for one in measured:
        changed = [name for name, level in one.factors.items() if case.factors.get(name, level) != level]
        if changed:
            raise ValueError(f"a measurement of '{case}' changes its factor {changed[0]}")
        numbers = {name: None if value is None else float(value) for name, value in one.metrics.items()}
        finite = {
            name: value if value is not None and math.isfinite(value) else None
            for name, value in numbers.items()
        }
        yield Measurement({**case.factors, **one.factors}, finite, case.seed)


def _no_doubles(results: Iterable[CaseResult]) -> None:
    """Refuse two measurements of one metric under the same factors: their mean would hide which is meant."""
    seen: set[str] = set()
    for result in results:
        for one in result.measurements:
            for metric in one.metrics:
                key = content_key([dict(one.factors), one.seed, metric])
                if key in seen:
                    raise ValueError(f"{metric} is measured twice under {dict(one.factors)}, seed {one.seed}")
                seen.add(key)


def run_suite(suite: Suite, scale: str, *, jobs: int = 1, **options: Any) -> SuiteResult:
    """Run a suite to its end without watching it; `options` as of `SuiteRun`."""
    run = SuiteRun(suite, scale, **options)
    for _ in run.steps(jobs):
        pass
    return run.result()
