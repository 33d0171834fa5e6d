"""Several suites over a few processes: which case a process takes next, so that no core has to wait."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from transship.errors import OptionError, TransshipError
from transship_suites.runner.cache import Cache
from transship_suites.runner.declaration import Case, Options
from transship_suites.runner.find import load_suite
from transship_suites.runner.results import CaseResult
from transship_suites.runner.run import Step, SuiteRun, run_case


def side_by_side(runs: Sequence[SuiteRun], jobs: int = 1) -> Iterator[tuple[SuiteRun, Step | None]]:
    """Run what is not finished of some suites in `jobs` processes; yield each case with its run once done.

    A run comes without a step when it begins, then with the cases that were finished before. Several
    processes begin with the suites whose cases are longest. Each has a suite for itself while there are
    enough of them, because cases of one suite often wait for what one of them trains, and helps with the
    suite that has most left when none is left to begin; so no core idles beside a suite's last long case.
    """
    if jobs < 1:
        raise OptionError(f"{jobs} processes cannot work", where="--jobs", fix="give 1 or more")
    if jobs > 1:
        yield from _in_processes(runs, jobs)
        return
    for run in runs:
        yield run, None
        for step in run.steps():
            yield run, step


class _Part:
    """A run with the cases of it that nobody has begun.

    Attributes:
        run: of one suite.
        earlier: its cases that were finished before.
        waiting: its cases that nobody has begun.
        done: how many are finished.
        begun: whether a process has taken a case of it.
    """

    def __init__(self, run: SuiteRun) -> None:
        self.run, self.begun = run, False
        self.earlier, left = run.earlier()
        self.waiting, self.done = deque(left), len(self.earlier)

    @property
    def minutes_per_case(self) -> float:
        """By what the suite declares."""
        return self.run.suite.scales[self.run.scale].minutes / len(self.run.cases)

    def opening(self) -> Iterator[tuple[SuiteRun, Step | None]]:
        """Say that the run begins, and what it has from before."""
        yield self.run, None
        for step in self.earlier:
            yield self.run, step

    def finish(self, result: CaseResult) -> tuple[SuiteRun, Step]:
        """Keep what a process has measured."""
        self.run.keep(result)
        self.done += 1
        return self.run, Step(result.case, self.done, len(self.run.cases), result.seconds, reused=False)


class _Worker:
    """A process of its own for each suite it works at, so that no suite's data stay behind in memory."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.part: _Part | None = None
        self.pool: ProcessPoolExecutor | None = None

    def begin(self, part: _Part) -> Future[CaseResult]:
        """Set the process to the next case of a suite."""
        if self.pool is None or part is not self.part:
            self.close()
            self.part, self.pool = part, _pool(self.jobs)
        part.begun, run = True, part.run
        assert run.suite.file is not None, "load_suite names the file"
        options = dict(run.suite.scales[run.scale].options)  # perhaps not those of the file
        where = (run.suite.name, run.suite.file.parent, run.scale, options)
        return self.pool.submit(_work, *where, part.waiting.popleft(), run.home, run.not_before, run.device)

    def end(self, future: Future[CaseResult]) -> tuple[SuiteRun, Step]:
        """Keep what the process has measured."""
        assert self.part is not None, "it has begun"
        try:
            return self.part.finish(future.result())
        except BrokenProcessPool as error:
            raise TransshipError(
                "a working process was killed, perhaps for want of memory",
                where=self.part.run.suite.name,
                fix="run the same command with fewer --jobs; finished cases are kept",
            ) from error

    def close(self) -> None:
        """End the process; a case that it works at is waited for."""
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)


def _in_processes(runs: Sequence[SuiteRun], jobs: int) -> Iterator[tuple[SuiteRun, Step | None]]:
    parts = sorted(map(_Part, runs), key=lambda part: -part.minutes_per_case)
    for part in parts:
        if not part.waiting:
            yield from part.opening()
    workers = [_Worker(jobs) for _ in range(min(jobs, sum(len(part.waiting) for part in parts)))]
    free, busy = workers, dict[Future[CaseResult], _Worker]()
    made: list[tuple[SuiteRun, Step]] = []
    try:
        while free or busy:
            # processes have their next case before anybody looks at the last one: pages take seconds to write
            opened = [new for worker in free if (new := _set_to_work(worker, parts, busy))]
            yield from made
            for part in opened:
                yield from part.opening()
            ended = wait(busy, return_when=FIRST_COMPLETED).done
            free = [busy.pop(future) for future in ended]
            made = [worker.end(future) for worker, future in zip(free, ended, strict=True)]
    finally:
        for worker in workers:
            worker.close()


def _set_to_work(
    worker: _Worker, parts: Sequence[_Part], busy: dict[Future[CaseResult], _Worker]
) -> _Part | None:
    """Give a worker its next case, if there is one; return the suite that begins with it."""
    part = _next(worker.part, parts)
    if part is None:
        worker.close()
        return None
    opens = not part.begun
    busy[worker.begin(part)] = worker
    return part if opens else None


def _next(current: _Part | None, parts: Sequence[_Part]) -> _Part | None:
    """Return where a process goes on: at its suite, else at one that nobody has begun, else as a helper."""
    if current is not None and current.waiting:
        return current
    waiting = [part for part in parts if part.waiting]
    untouched = (part for part in waiting if not part.begun)
    most = max(waiting, key=lambda part: len(part.waiting) * part.minutes_per_case, default=None)
    return next(untouched, most)


def _pool(jobs: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, context, initializer=_start_worker, initargs=(jobs, os.getpid()))


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
