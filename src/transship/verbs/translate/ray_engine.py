"""The workers of a Ray cluster as an engine, through Ray Data."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from transship.errors import LaunchError, MissingError, TransshipError

Item = TypeVar("Item")
Result = TypeVar("Result")


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
        """Whether work leaves this process."""
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def run(
        self, work: Callable[[Any, Item], Result], shared: Any, items: Sequence[Item]
    ) -> Iterator[tuple[int, Result]]:
        """Yield results as they become ready."""
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
                fix="see that every machine reads and writes these paths, and run it again: it goes on where "
                "it stopped",
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

    def _run(self, ray: Any, work: Any, shared: Any, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
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
    named = [line.strip() for line in texts if re.match(r"\s*(?!ray)[\w.]*(Error|Exception)\b.*: ", line)]
    return named[0] if named else f"{type(error).__name__}: {(texts or [''])[0]}"


def _ray_work(work: Callable[[Any, Any], Any], reference: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Do one piece in a worker; a mistake in the data is a result, so that Ray does not try it again."""
    try:
        result: Any = work(_fetch(reference.hex(), reference), pickle.loads(batch["item"][0]))
    except TransshipError as mistake:
        result = mistake
    return {"number": batch["number"], "result": [pickle.dumps(result)]}


_fetched: dict[str, Any] = {}


def _fetch(name: str, reference: Any) -> Any:
    """Return what all pieces share, fetched once per worker."""
    if name not in _fetched:
        import ray

        _fetched.clear()
        _fetched[name] = ray.get(reference)
    return _fetched[name]


def load_ray() -> Any:
    """Import Ray, or say how to install it."""
    try:
        import ray
        import ray.data.exceptions  # the extra `data` has to be there too
    except ImportError as error:
        raise MissingError("needs Ray", where="--engine ray", fix="pip install 'transship[ray]'") from error
    return ray
