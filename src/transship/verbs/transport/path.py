"""The update moved in parts: between parts, maps are estimated anew where both models then stand.

Part k of K moves τ_A/K through maps between A + (k/K) τ_A and B + α (what was moved so far).
"""

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from torch import Tensor

from transship.verbs.transport.judge import Choice
from transship.verbs.transport.methods.carry import Carry
from transship.verbs.transport.moved import Moved
from transship.verbs.transport.prepare import body_of, collect_for
from transship.verbs.transport.protocol import TransportMethod
from transship.verbs.transport.weights import shifted

if TYPE_CHECKING:
    from transship.verbs.transport.work import Work

# `auto` walks the path at the first of these multiples of the best single step's strength, and at the second
# too where the first is no better than that single step. What was moved so far does less in a strange target
# than in the source, so maps between states that have come equally far need a longer stride; in a twin the
# stride is 1. Chosen on networks and tasks apart from the suite's, by validation and by agreement.
WALKS = (2.0, 1.0)
# how the whole is rescaled at the end, relative to the strength that the path was walked with
RESCALE = (0.0, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 1.25, 1.5)


def move_along_path(work: "Work", method: TransportMethod) -> tuple[Moved, Choice]:
    """Return the update moved in `path_steps` parts, and its strength.

    A strength that is given is also the stride of the walk. With `auto` the path is walked at `WALKS` times
    the best strength of a single step, and each result is rescaled.
    """
    inner = body_of(method)
    carried = isinstance(method, Carry)
    first = work.move(inner)
    start = work.strength(first, carried=carried)
    if work.settings.strength != "auto":
        return walk(work, inner, start.strength, first), start
    found: list[tuple[Moved, Choice]] = []
    for stride in WALKS:
        walked = stride * (start.strength if start.strength > 0 else 1.0)
        moved = walk(work, inner, walked, first)
        grid = [walked * factor for factor in RESCALE]
        found.append((moved, work.search(moved, carried=carried, grid=grid)))
        if found[-1][1].score > start.score:
            break
    return max(found, key=lambda one: one[1].score)


def walk(work: "Work", method: TransportMethod, strength: float, first: Moved) -> Moved:
    """Return the sum of the parts; `first` is the whole update moved where both models stand now."""
    steps = work.settings.path_steps
    names = [name for name, _ in work.source.model.model.named_parameters() if name in work.update]
    changes = {name: work.update.dense(name) for name in names}
    total = {name: change / steps for name, change in first.dense.items()}
    calibration = dataclasses.replace(work.calibration, folder=None)
    for step in range(1, steps):
        with contextlib.ExitStack() as stack:
            stack.enter_context(shifted(work.source.model.model, changes, step / steps))
            stack.enter_context(shifted(work.target.model.model, total, strength))
            prepared = collect_for(work, method, calibration)
        part = work.move(method, prepared)
        _add(total, part.dense, 1.0 / steps)
    return Moved(total, {}, first.layers, first.left)


def _add(total: dict[str, Tensor], part: dict[str, Tensor], factor: float) -> None:
    for name, change in part.items():
        total[name] = total[name] + factor * change if name in total else factor * change
