"""One loop over batches for all statistics: processes share it, a killed run goes on, sums are over all.

Batches are dealt out in units of a few. The rows of a unit are multiplied together, whoever takes it, so that
sums of one process and of several differ by the order of float64 additions alone.
"""

from collections.abc import Callable, Iterable, Sequence, Sized
from itertools import chain, islice
from typing import Any

import torch

from transship import parallel
from transship.activations.batches import Numbered
from transship.activations.state import SavedState, Sums, digest_of
from transship.geometry import Moments
from transship.geometry.moments import COMPARED_ROWS

# Products of fewer rows cost more to add up than to make; more would leave processes without work.
UNIT_ROWS = 512
# Of known inputs there are at least so many units, so that processes have equal shares.
LEAST_UNITS = 4


def unit_size(inputs: Any, batch_size: int, tokens_per_input: int | None) -> int:
    """Return the batches of a unit, which depend on inputs and options but not on the processes."""
    if tokens_per_input is None:
        return 1
    wanted = UNIT_ROWS // max(1, batch_size * tokens_per_input)
    if isinstance(inputs, Sized):
        wanted = min(wanted, -(-len(inputs) // batch_size) // LEAST_UNITS)
    return max(1, wanted)


def run_shared(
    batches: Iterable[Sequence[tuple[int, Any]]],
    step: Callable[[Numbered], Any],
    sums: Sums,
    *,
    unit: int = 1,
    state: SavedState | None = None,
    full: Callable[[], bool] | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Run `step` on every batch in one of the processes, add the sums up, and return the number of inputs.

    Args:
        batches: the same in every process.
        step: adds a batch to `sums`.
        sums: in the end, in every process, those of all processes.
        unit: batches that are dealt out, and whose rows are multiplied, together.
        state: where sums are saved; units that it covers are not run again.
        full: asked before every batch whether it is enough; then every process does all of the work, as only
            the whole knows its end.
        progress: called with the number of inputs that were passed, after each batch of this process.
    """
    stream = iter(batches)
    seen = units = turn = waiting = 0
    told = -1
    while unit_of := list(islice(stream, unit)):
        number, units = units, units + 1
        if state is not None and number in state.covered:
            state.check(number, digest_of(chain.from_iterable(unit_of)))
            seen += sum(map(len, unit_of))
            continue
        taken = full is not None or parallel.mine(turn)
        turn += 1
        if not taken:
            seen += sum(map(len, unit_of))
            continue
        read = [list(batch) for batch in unit_of]
        for batch in read:
            if full is not None and full():
                sums.flush()
                return seen
            step(batch)
            seen += len(batch)
            if progress is not None:
                told = seen
                progress(seen)
        sums.flush()
        if state is not None:
            state.add(number, digest_of(chain.from_iterable(read)))
            waiting += len(read)
            if waiting >= state.every:
                state.save()
                waiting = 0
    if state is not None:
        state.check_end(units)
        if waiting:
            state.save()
    if full is None:
        sum_moments(sums.moments)
    if progress is not None and 0 <= told < seen:
        progress(seen)
    return seen


def summed(moments: Moments | None) -> Moments:
    """Return the sum over processes; None where this one had no rows."""
    found = {} if moments is None else {"": moments}
    sum_moments(found)
    return found[""]


def sum_moments(moments: dict[str, Moments]) -> None:
    """Replace Moments by their sums over processes; a process that lacks a name counts as zero."""
    if parallel.size() == 1:
        return
    views = parallel.gather(
        {name: (one.width_a, one.width_b, one.parts, str(one.sum_a.device)) for name, one in moments.items()}
    )
    known = {name: about for view in views for name, about in view.items()}
    for name, (width_a, width_b, parts, device) in known.items():
        if name not in moments:
            where = parallel.device(device.partition(":")[0])
            moments[name] = Moments.zeros(width_a, width_b, parts=parts, name=name, device=where)
    ordered = [moments[name] for name in known]
    numbers = torch.tensor([[one.count, float(not one.exact)] for one in ordered], dtype=torch.float64)
    parallel.add_up([numbers, *(tensor for one in ordered for tensor in one.tensors())])
    for one, (count, inexact) in zip(ordered, numbers.tolist(), strict=True):
        one.count, one.exact = count, not inexact
    seen = parallel.gather([one.marks for one in ordered])
    for one, marks in zip(ordered, zip(*seen, strict=True), strict=True):
        present = [part for part in marks if part is not None]
        one.marks = torch.cat(present)[:COMPARED_ROWS] if present else None
