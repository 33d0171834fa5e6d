"""Several suites over a few processes: finished cases come first, then the suites with the longest cases."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from transship.errors import OptionError, TransshipError
from transship_suites.runner.context import Cache
from transship_suites.runner.declaration import Suite, load_suite
from transship_suites.runner.quantities import Case, Options
from transship_suites.runner.results import CaseResult, SuiteResult
from transship_suites.runner.run import CaseDone, SuiteRun, run_case

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
                result = _result(future, run)
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


def _result(future: Future[CaseResult], run: SuiteRun) -> CaseResult:
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
