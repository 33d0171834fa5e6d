"""Who does the work on a table: this process, several of this machine, or the workers of a Ray cluster.

Work is a function of (shared, item): `shared` is one large value that every worker gets once (a map), `item`
a small one (which rows). Items are independent and may be done twice, so a worker that dies costs a retry.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import pickle
import re
import shutil
import signal
import tempfile
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeVar

from transship.errors import LaunchError, MissingError, OptionError, TransshipError

Item = TypeVar("Item")
Result = TypeVar("Result")
Work = Callable[[Any, Item], Result]
Results = Iterator[tuple[int, Result]]
EngineName = Literal["local", "ray"]
LONG = 32_768  # bytes; what a pipe takes at once is twice that


class Engine(Protocol):
    """Does independent pieces of work; as a context it starts beforehand what takes time to start.

    Attributes:
        parallel: whether work leaves this process.
    """

    @property
    def parallel(self) -> bool: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def run(self, work: Work[Item, Result], shared: Any, items: Sequence[Item]) -> Results[Result]:
        """Yield (number of the item, what the work gave) as they become ready, in any order."""


def choose_engine(
    name: EngineName = "local",
    *,
    address: str | None = None,
    jobs: int | None = None,
    gpus: float = 0,
    home: str = __name__,
) -> Engine:
    """Return the engine that the options name; `home` is the module that holds the work."""
    if jobs is not None and jobs < 1:
        raise OptionError(f"{jobs} workers do no work", where="--jobs", fix="give 1 or more")
    if name == "ray":
        load_ray()
        return RayEngine(address, jobs, gpus)
    if address is not None:
        raise OptionError("is of a Ray cluster", where="--address", fix="add --engine ray")
    return LocalEngine(jobs or 1, home)


@dataclass
class LocalEngine:
    """This process, or `jobs` processes of this machine that share its threads.

    `with` it, the other processes start at once and import what they need while this one does the same;
    without, they start with the first run and end with it.

    Attributes:
        jobs: processes, this one among them.
        home: the module that holds the work, which takes the others longest to import.
    """

    jobs: int = 1
    home: str = __name__
    _pool: ProcessPoolExecutor | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def parallel(self) -> bool:
        return self.jobs > 1

    @property
    def workers(self) -> list[Any]:
        return [] if self._pool is None else list((self._pool._processes or {}).values())

    def __enter__(self) -> Self:
        # start-up: a run in this process alone does without it
        import multiprocessing

        if self.parallel:
            # spawn: a fork of a process with threads of its own may wait for ever
            context, settings = multiprocessing.get_context("spawn"), (self.home, threads_each(self.jobs))
            self._pool = ProcessPoolExecutor(self.jobs - 1, context, initializer=_prepare, initargs=settings)
            with _uninterrupted():
                for _ in range(self.jobs - 1):  # every piece of work that nobody waits for starts a process
                    self._pool.submit(os.getpid)
        return self

    def __exit__(self, *error: object) -> None:
        workers, pool, self._pool = self.workers, self._pool, None
        if pool is not None:
            for process in workers:
                process.terminate()
            pool.shutdown(cancel_futures=True)

    def run(self, work: Work[Item, Result], shared: Any, items: Sequence[Item]) -> Results[Result]:
        """Yield results as they become ready; a process that dies ends the run, and what is done is kept.

        This process is one of the `jobs`: it works while the others still start, and hands out the rest. When
        it stops early (a mistake in the data, Ctrl-C) it stops them too, in the midst of their pieces.
        """
        if not self.parallel or len(items) < 2:
            for number, item in enumerate(items):
                yield number, work(shared, item)
        elif self._pool is None:
            with LocalEngine(min(self.jobs, len(items)), self.home) as started:
                yield from started.run(work, shared, items)
        else:
            try:
                with _threads(threads_each(self.jobs)), _shelved(shared) as place:
                    yield from self._share_out(self._pool, work, shared, place, items)
            except BrokenProcessPool as error:
                raise OptionError(
                    "a worker process was killed or died",
                    where=f"--jobs {self.jobs}",
                    fix="check that all of them have memory and run it again: it goes on where it stopped",
                ) from error

    def _share_out(
        self, pool: ProcessPoolExecutor, work: Any, shared: Any, place: Path, items: Sequence[Any]
    ) -> Results[Any]:
        waiting, given = deque(enumerate(items)), dict[Future[Any], int]()
        while waiting:
            # two for each: one in work and one that waits while this process is busy itself
            while waiting and len(given) < 2 * (self.jobs - 1):
                number, item = waiting.pop()
                with _uninterrupted():
                    given[pool.submit(_work_here, work, place, item)] = number
            if waiting:
                number, item = waiting.popleft()
                yield number, work(shared, item)
            for ready in [future for future in given if future.done()]:
                yield given.pop(ready), _result_of(ready)
        for ready in as_completed(given):
            yield given[ready], _result_of(ready)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let processes that start meanwhile never see Ctrl-C: this one does, and ends them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        return (yield)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Keep torch to some threads for a while."""
    import torch  # start-up: the other processes are started before this one imports it

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def threads_each(jobs: int) -> int:
    """Return the threads of each of several processes: what this one would have used, shared out."""
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, (int(allowed) if allowed.isdigit() else os.cpu_count() or 1) // jobs)


# -- in the other processes --------------------------------------------------------------------------------


def _prepare(home: str, threads: int) -> None:
    """Get a new process ready while the first one still reads its input."""
    import torch  # start-up: see _threads

    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    importlib.import_module(home)


def _end_with_parent() -> None:
    """End this process when the one that started it was killed, and clear up after it."""
    import multiprocessing  # start-up: see LocalEngine.__enter__

    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        for folder in _shelves:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)


@contextlib.contextmanager
def _shelved(shared: Any) -> Iterator[Path]:
    """Keep a value in a file for a while, from where each process takes it once."""
    with tempfile.TemporaryDirectory(prefix="transship-") as folder:
        place = Path(folder) / "shared.pickle"
        with place.open("wb") as file:
            pickle.dump(shared, file, protocol=pickle.HIGHEST_PROTOCOL)
        yield place


_shelves: set[Path] = set()  # where this process takes what it shares from


@functools.lru_cache(maxsize=1)
def _unshelved(place: Path) -> Any:
    _shelves.add(place.parent)
    return pickle.loads(place.read_bytes())


class _Put(NamedTuple):
    place: Path


def _work_here(work: Work[Item, Result], place: Path, item: Item) -> Result | _Put:
    """Do a piece. A large result goes by the shelf: a process that dies amid a long message would leave the
    first one waiting for the rest.
    """
    result = work(_unshelved(place), item)
    message = pickle.dumps(result, protocol=pickle.HIGHEST_PROTOCOL)
    if len(message) < LONG:
        return result
    file = place.with_name(f"{uuid.uuid4().hex}.pickle")
    file.write_bytes(message)
    return _Put(file)


def _result_of(ready: Future[Any]) -> Any:
    """Return a result that is ready, from the shelf where it was put there."""
    result = ready.result()
    if not isinstance(result, _Put):
        return result
    message = pickle.loads(result.place.read_bytes())
    result.place.unlink()
    return message


# -- Ray ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RayEngine:
    """The workers of a Ray cluster, through Ray Data.

    The table of items is a Ray dataset, one block per item; workers read their rows and write their part
    themselves, so that vectors never pass through the object store. Ray starts a piece again when its worker
    or node dies. Mistakes of the user's data are no such deaths: they come back and end the run.

    Attributes:
        address: of a running cluster; None: `RAY_ADDRESS`, or a cluster of this machine for this run.
        jobs: at most so many pieces at a time; None: as many as the cluster has CPUs.
        gpus: GPUs of one piece.
    """

    address: str | None = None
    jobs: int | None = None
    gpus: float = 0

    @property
    def parallel(self) -> bool:
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def run(self, work: Work[Item, Result], shared: Any, items: Sequence[Item]) -> Results[Result]:
        ray = load_ray()
        begun = not ray.is_initialized()
        if begun:
            self._connect(ray)
        try:
            yield from self._run(ray, work, shared, items)
        except (ray.exceptions.RayError, ray.data.exceptions.SystemException) as error:
            raise LaunchError(
                f"the work failed on a worker ({_innermost(error)})",
                where="--engine ray",
                fix="check that every machine reads and writes these paths; run it again: it goes on",
            ) from error
        finally:
            if begun:
                ray.shutdown()

    def _connect(self, ray: Any) -> None:
        quiet = {"include_dashboard": False} if not (self.address or os.environ.get("RAY_ADDRESS")) else {}
        try:
            ray.init(address=self.address, logging_level="ERROR", log_to_driver=False, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise MissingError(
                f"no Ray cluster answers ({str(error).splitlines()[0]})",
                where=self.address or "RAY_ADDRESS",
                fix="start one with `ray start --head`, or leave --address out",
            ) from error

    def _run(self, ray: Any, work: Any, shared: Any, items: Sequence[Any]) -> Results[Any]:
        if not items:
            return
        reference = ray.put(shared)
        rows = [{"number": number, "item": pickle.dumps(item)} for number, item in enumerate(items)]
        # Ray warns of more tasks than there are pieces
        most = None if self.jobs is None else min(self.jobs, len(rows))
        with _quiet(ray):
            dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
                functools.partial(_ray_work, work, reference),
                batch_size=1,
                batch_format="numpy",
                zero_copy_batch=True,
                compute=ray.data.TaskPoolStrategy(size=most),
                num_cpus=1,
                num_gpus=self.gpus or None,
            )
            for row in dataset.iter_rows():
                result = pickle.loads(row["result"])
                if isinstance(result, TransshipError):
                    raise result
                yield int(row["number"]), result


@contextlib.contextmanager
def _quiet(ray: Any) -> Iterator[None]:
    """Keep Ray Data's own bars and lines out of the way: the run has a progress line of its own."""
    context, logger = ray.data.DataContext.get_current(), logging.getLogger("ray.data")
    bars, level = context.enable_progress_bars, logger.level
    context.enable_progress_bars = False
    logger.setLevel(logging.CRITICAL)  # what fails comes back as an error
    try:
        yield
    finally:
        context.enable_progress_bars = bars
        logger.setLevel(level)


def _innermost(error: BaseException) -> str:
    """Return what a worker's error was, in one line, without Ray's own words around it."""
    texts = []
    inner: BaseException | None = error
    while inner is not None:
        texts += str(inner).splitlines()
        inner = getattr(inner, "cause", None) or inner.__cause__
    # a worker's traceback comes as text: the first error in it is the one that began it
    named = (line.strip() for line in texts if re.match(r"\s*(?!ray)[\w.]*(Error|Exception)\b.*: ", line))
    return next(named, f"{type(error).__name__}: {(texts or [''])[0]}")


def _ray_work(work: Work[Any, Any], reference: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Do one piece in a worker; a mistake in the data is a result, so that Ray does not try it again."""
    try:
        result: Any = work(_fetch(reference.hex(), reference), pickle.loads(batch["item"][0]))
    except TransshipError as mistake:
        result = mistake
    return {"number": batch["number"], "result": [pickle.dumps(result)]}


@functools.lru_cache(maxsize=1)
def _fetch(name: str, reference: Any) -> Any:
    """Return what all pieces share, fetched once per worker."""
    return load_ray().get(reference)


def load_ray() -> Any:
    """Import Ray, or say how to install it."""
    try:
        import ray  # an extra
        import ray.data.exceptions  # the extra `data` has to be there too
    except ImportError as error:
        raise MissingError("needs Ray", where="--engine ray", fix="pip install 'transship[ray]'") from error
    return ray
