"""Tensors made ahead of the writer by worker threads: the same bytes in the same order, in less time.

The writer asks for tensors one after another. Workers make the next ones meanwhile, each as the bytes that
will be written, as long as finished bytes fit the room. A tensor that does not fit, or that the writer asks
for out of turn, is made by the writer itself as without workers: nothing waits for something later in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from transship.checkpoints.write import TensorPlan, encoded


class Ahead:
    """Wraps the producers of plans, in the order in which they will be asked for.

    Attributes:
        jobs: worker threads.
        room: the bytes that tensors in work, or finished and waiting for the writer, may still take.
    """

    def __init__(self, jobs: int, room: int) -> None:
        self.jobs, self.room = jobs, room
        self._pool = ThreadPoolExecutor(jobs, thread_name_prefix="merge")
        self._waiting: deque[TensorPlan] = deque()
        self._started: dict[str, Future[bytearray]] = {}

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def plans(
        self, given: Iterable[TensorPlan], starting: Callable[[TensorPlan], None]
    ) -> Sequence[TensorPlan]:
        """Return plans that the workers make; `starting` is called in the writer's thread, in its order."""
        listed = list(given)
        # the writer puts wide elements first within a file
        self._waiting = deque(sorted(listed, key=lambda plan: -_width(plan)))
        return [plan._replace(producer=self._producer(plan, starting)) for plan in listed]

    def _producer(self, plan: TensorPlan, starting: Callable[[TensorPlan], None]) -> Callable[[], Any]:
        def produce() -> Any:
            starting(plan)
            self._advance()
            if plan.name not in self._started:
                self._waiting.remove(plan)
                self._advance()
                return plan.producer()
            content = self._started.pop(plan.name).result()
            self.room += len(content)
            self._advance()
            return content

        return produce

    def _advance(self) -> None:
        """Start waiting tensors in order while there is room; the first that is too large ends the round."""
        while self._waiting:
            size = self._waiting[0].nbytes(self._waiting[0].dtype)
            if size > self.room:
                return
            plan = self._waiting.popleft()
            self.room -= size
            self._started[plan.name] = self._pool.submit(_whole, plan)


def _width(plan: TensorPlan) -> int:
    return plan._replace(shape=()).nbytes(plan.dtype)


def _whole(plan: TensorPlan) -> bytearray:
    """Return all bytes of a tensor as they are written."""
    data = bytearray(plan.nbytes(plan.dtype))
    place, view = 0, memoryview(data)
    for block in encoded(plan):
        view[place : place + block.nbytes] = block
        place += block.nbytes
    if place != len(data):
        raise ValueError(f"{plan.name}: its producer gave {place} bytes and not {len(data)}")
    return data
