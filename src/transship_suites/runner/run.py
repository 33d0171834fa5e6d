"""Runs suites case by case, in one process or several.

A finished case is on disk before the next begins, so a killed run continues. Several suites share processes:
those with the longest cases come first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import math
import multiprocessing
import os
import platform
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transship.atomic import write_text
from transship.errors import OptionError, TransshipError
from transship.numerics import kernels
from transship.registry import unknown
from transship.report import library_versions
from transship_suites.runner.context import Cache, Context, cache_home, content_key
from transship_suites.runner.declaration import Measured, Suite, load_suite
from transship_suites.runner.needs import device_for, ensure, signature
from transship_suites.runner.quantities import Case, Measurement, Options
from transship_suites.runner.results import SKIPPED, CaseResult, SuiteResult, case_from_json, summarise
from transship_suites.runner.sources import suite_fingerprint

BRIEF = 1.0  # seconds in which a case trains nothing worth a collection, which may take as long


@dataclass(frozen=True)
class CaseDone:
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

    A case is a function of the declaration, its factors and its seed. What it measured lies in
    `<home>/cases/<suite>/`, named by the hash of all that it depends on: the suite's file, the rooms of
    transship that it imports, its version, the options, the files of its needs and the case. What has another
    hash is computed anew.

    Attributes:
        suite: what is run.
        scale: its name.
        device: where models run: as asked, else a GPU where the scale needs one, else the processor.
        seeds: `seed`, `seed + 1`, … as many as the scale asks for.
        cases: all cases, seeds innermost.
        fingerprint: the hash of everything but the case.
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
        self.cases = all_cases(suite, self.options, self.seeds)
        self.fingerprint = content_key(
            {
                "code": suite_fingerprint(suite.file),
                "version": suite.version,
                "needs": [signature(need) for need in needs],
                "device": self.device,
                "options": dict(self.options),
            }
        )
        if fresh:
            for case in self.cases:
                self._file(case).unlink(missing_ok=True)

    @property
    def options(self) -> Options:
        return self.suite.scales[self.scale].options

    @property
    def minutes_per_case(self) -> float:
        return self.suite.scales[self.scale].minutes / len(self.cases)

    def earlier(self) -> tuple[list[CaseDone], list[Case]]:
        """Return the cases that an earlier run has finished, as steps, and those that are left.

        A case that was skipped is tried again: what it missed may be here now.
        """
        steps: list[CaseDone] = []
        left: list[Case] = []
        for case in self.cases:
            result = self._read(case)
            if result is None or SKIPPED in result.attachments:
                left.append(case)
            else:
                steps.append(CaseDone(case, len(steps) + 1, len(self.cases), result.seconds, reused=True))
        return steps, left

    def steps(self) -> Iterator[CaseDone]:
        """Run what is not finished; yield each case once done, finished ones first."""
        steps, left = self.earlier()
        yield from steps
        for done, case in enumerate(left, len(steps) + 1):
            result = run_case(self.suite, self.scale, case, self.cache(), self.device)
            self.keep(result)
            yield self.step(result, done)

    def step(self, result: CaseResult, done: int) -> CaseDone:
        return CaseDone(result.case, done, len(self.cases), result.seconds, reused=False)

    def cache(self) -> Cache:
        """Return where its cases keep what they make."""
        return Cache(self.home, not_before=self.not_before)

    def keep(self, result: CaseResult) -> None:
        """Write a finished case, so that it is not run again."""
        text = json.dumps(dataclasses.asdict(result), allow_nan=False)
        write_text(self._file(result.case), text, force=True)

    def result(self) -> SuiteResult:
        """Return tables, curves and verdicts, once every case is finished."""
        results: list[CaseResult] = []
        for case in self.cases:
            result = self._read(case)
            if result is None:
                raise OptionError(
                    f"'{case}' is not finished", where=self.suite.name, fix="run the suite to its end"
                )
            results.append(result)
        _no_doubles(results)
        return summarise(
            self.suite,
            self.scale,
            self.seeds,
            results,
            fingerprint=self.fingerprint,
            environment=environment(),
        )

    def _file(self, case: Case) -> Path:
        key = content_key([self.fingerprint, dict(case.factors), case.seed])
        return self.home / "cases" / self.suite.name / f"{key[:40]}.json"

    def _read(self, case: Case) -> CaseResult | None:
        try:
            result = case_from_json(json.loads(self._file(case).read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # not there, or damaged: it is run again
        return result if result.case == case else None


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
    """Return what computes, as the result states it: versions, kind of machine, kernels, threads."""
    machine = {"system": f"{platform.system()} {platform.machine()}", "cores": str(os.cpu_count())}
    threads = os.environ.get("OMP_NUM_THREADS", "not limited")
    return {**library_versions(), **machine, "kernels": kernels(), "threads": threads}


def all_cases(suite: Suite, options: Options, seeds: Iterable[int]) -> tuple[Case, ...]:
    """Return the cases of a suite under some options, seeds innermost."""
    seeds = tuple(seeds)
    cases = tuple(Case(dict(factors), seed) for factors in suite.cases(options) for seed in seeds)
    if len(set(cases)) < len(cases):
        raise ValueError(f"the suite '{suite.name}' lists a case twice")
    return cases


def _measurements(measured: Measured, case: Case) -> Iterator[Measurement]:
    """Yield what `run` returned with the case's factors and seed; None for what is not finite."""
    if isinstance(measured, Mapping):
        measured = [Measurement({}, measured)]
    for measurement in measured:
        factors = measurement.factors
        changed = [name for name, level in factors.items() if case.factors.get(name, level) != level]
        if changed:
            raise ValueError(f"a measurement of '{case}' changes its factor {changed[0]}")
        finite = {
            name: float(value) if value is not None and math.isfinite(value) else None
            for name, value in measurement.metrics.items()
        }
        yield Measurement({**case.factors, **factors}, finite, case.seed)


def _no_doubles(results: Iterable[CaseResult]) -> None:
    """Refuse two measurements of one metric under the same factors: their mean would hide which is meant."""
    seen: set[tuple[Case, str]] = set()
    for result in results:
        for measurement in result.measurements:
            where = Case(measurement.factors, measurement.seed)
            for metric in measurement.metrics:
                if (where, metric) in seen:
                    raise ValueError(f"{metric} is measured twice under {where}")
                seen.add((where, metric))


Event = tuple[SuiteRun, CaseDone | None]


def run_suite(suite: Suite, scale: str, *, jobs: int = 1, **options: Any) -> SuiteResult:
    """Run a suite to its end without watching it; `options` as of `SuiteRun`."""
    run = SuiteRun(suite, scale, **options)
    for _ in side_by_side([run], jobs):
        pass
    return run.result()


def side_by_side(runs: Sequence[SuiteRun], jobs: int = 1) -> Iterator[Event]:
    """Run what is not finished of some suites in `jobs` processes; yield each case with its run once done.

    A run comes without a step when it begins, then with the cases that were finished before. Several
    processes take case by case, the suites with the longest cases first, so that no core idles beside a
    suite's last case.
    """
    if jobs < 1:
        raise OptionError(f"{jobs} processes cannot work", where="--jobs", fix="give 1 or more")
    if jobs > 1:
        yield from _in_processes(sorted(runs, key=lambda run: -run.minutes_per_case), jobs)
        return
    for run in runs:
        yield run, None
        for step in run.steps():
            yield run, step


def _in_processes(runs: Sequence[SuiteRun], jobs: int) -> Iterator[Event]:
    queue: deque[tuple[SuiteRun, Case]] = deque()
    done: dict[SuiteRun, int] = {}
    for run in runs:
        steps, left = run.earlier()
        yield run, None
        for step in steps:
            yield run, step
        done[run] = len(steps)
        queue.extend((run, case) for case in left)
    busy: dict[Future[CaseResult], SuiteRun] = {}
    ended: list[Event] = []
    with _Pools(jobs) as pools:
        while queue or busy or ended:
            # processes have their next case before anybody looks at the last one: pages take seconds to write
            while queue and len(busy) < jobs:
                run, case = queue.popleft()
                busy[pools.submit(run, case)] = run
            yield from ended
            ended = []
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                run = busy.pop(future)
                result = _result_of(future, run)
                run.keep(result)
                done[run] += 1
                ended.append((run, run.step(result, done[run])))
            pools.close_all_but({*busy.values(), *(run for run, _ in queue)})


class _Pools(contextlib.AbstractContextManager["_Pools"]):
    """Processes of its own for each suite, so that no suite's data stay behind in memory."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._by_run: dict[SuiteRun, ProcessPoolExecutor] = {}

    def submit(self, run: SuiteRun, case: Case) -> Future[CaseResult]:
        """Set a process of a suite to a case; a process is started where none is free."""
        if run not in self._by_run:
            context = multiprocessing.get_context("spawn")
            about = (self.jobs, os.getpid())
            self._by_run[run] = ProcessPoolExecutor(
                self.jobs, context, initializer=_start_worker, initargs=about
            )
        assert run.suite.file is not None, "load_suite names the file"
        # options are perhaps not those of the file
        where = (run.suite.name, run.suite.file.parent, run.scale, dict(run.options))
        return self._by_run[run].submit(_work, *where, case, run.home, run.not_before, run.device)

    def close_all_but(self, needed: set[SuiteRun]) -> None:
        """End the processes of the suites that are finished."""
        for run in [run for run in self._by_run if run not in needed]:
            self._by_run.pop(run).shutdown(wait=True, cancel_futures=True)

    def __exit__(self, *exception: object) -> None:
        self.close_all_but(set())


def _result_of(future: Future[CaseResult], run: SuiteRun) -> CaseResult:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise TransshipError(
            "a working process was killed, perhaps for want of memory",
            where=run.suite.name,
            fix="run the same command with fewer --jobs; finished cases are kept",
        ) from error


def _start_worker(jobs: int, parent: int) -> None:
    # before torch is imported, which reads it once
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: int) -> None:
    """End this process when its parent is gone: a killed run leaves no workers behind."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _work(
    name: str,
    folder: Path,
    scale: str,
    options: Options,
    case: Case,
    home: Path,
    not_before: float,
    device: str,
) -> CaseResult:
    suite = load_suite(name, folder).with_options(scale, options)
    return run_case(suite, scale, case, Cache(home, not_before=not_before), device)
