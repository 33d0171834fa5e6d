"""The costly statistics of a pair of models: saved, resumable, and shared by every method and strength.

Activations and output gradients are Moments of two models in step; weight gradients are the target's own. The
loss asks each base model for what the fine-tuned source says about the same inputs; no labels are read.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from transship.activations import LoadedModel, Matching
from transship.activations.batches import Batches, SavedState, run_shared
from transship.activations.collected import CollectedMoments, collect
from transship.activations.loading import values_of
from transship.activations.readout import Readout
from transship.activations.step import StepOptions
from transship.geometry import Moments
from transship.geometry.moments import Part
from transship.progress import Progress, quiet
from transship.verbs.transport.gradients import GradientStep, weight_descent
from transship.verbs.transport.permutations import Axes, Orders, attention_heads, match_units
from transship.verbs.transport.plan import Plan
from transship.verbs.transport.protocol import Needs, TransportMethod
from transship.verbs.transport.teacher import AnyTeacher, Loss, language_loss, teach

_LOG = logging.getLogger(__name__)
# Rows per site: enough for the widest map to be determined several times over, fewer than all tokens of many
# inputs.
ROWS_PER_WIDTH = 4
LEAST_TOKENS = 8


@dataclass(frozen=True, eq=False)
class Statistics:
    """What a method reads, apart from the update.

    Attributes:
        needs: what they were collected for.
        matching: the pairs of sites.
        collected: activation Moments.
        gradients: (target site, source site) → Moments of output gradients.
        descent: −∂L/∂θ_B by parameter of the target.
        orders: permutations by group, with the groups of every site.
    """

    needs: Needs
    matching: Matching
    collected: CollectedMoments | None = None
    gradients: Mapping[tuple[str, str], Moments] = field(default_factory=dict)
    descent: Mapping[str, Tensor] = field(default_factory=dict)
    orders: tuple[Orders, Mapping[str, Axes]] | None = None


@dataclass(frozen=True, eq=False)
class Prepared:
    """What is costly and shared, ready for one method.

    Attributes:
        statistics: what the method reads.
        teacher: what the fine-tuned source says about the calibration inputs, where that is asked for.
        head_teacher: the same of the inputs that a head is fitted on.
        held_out_teacher: the same of the inputs that methods are compared on.
        earlier: the statistics of methods that were prepared before.
    """

    statistics: Statistics
    teacher: AnyTeacher | None = None
    head_teacher: AnyTeacher | None = None
    held_out_teacher: AnyTeacher | None = None
    earlier: tuple[Statistics, ...] = ()


def prepare(
    plan: Plan,
    method: TransportMethod,
    *,
    comparing: bool = False,
    known: Prepared | None = None,
    progress: Progress = quiet,
) -> Prepared:
    """Collect what a method reads, and ask the fine-tuned source what has to be known of its outputs.

    Args:
        plan: the plan.
        method: any, the plan's or another.
        comparing: whether methods are compared on the held-out inputs.
        known: what was prepared for another method of the same plan; what serves this one too is taken.
        progress: told how far the passes are.
    """
    needs, body = method.needs, method.body_method
    by_labels = isinstance(plan.labels, Tensor) and plan.own_head and not needs.head
    chosen = body is not None and plan.settings.strength == "auto" and not by_labels
    asks_loss = plan.task != "language" and (needs.gradients or bool(needs.descent))
    earlier = () if known is None else (known.statistics, *known.earlier)
    before = (
        (None, None, None) if known is None else (known.teacher, known.head_teacher, known.held_out_teacher)
    )
    wanted = chosen or asks_loss, needs.head, comparing
    inputs = plan.draws.calibration, plan.draws.head, plan.draws.held_out
    teacher, head_teacher, held_out_teacher = (
        _teach(plan, rows) if asked and other is None else other
        for other, asked, rows in zip(before, wanted, inputs, strict=True)
    )
    statistics = collect_statistics(
        plan, Needs() if body is None else body.needs, teacher, earlier=earlier, progress=progress
    )
    return Prepared(statistics, teacher, head_teacher, held_out_teacher, earlier)


def _teach(plan: Plan, inputs: Sequence[Any]) -> AnyTeacher:
    with plan.running_tuned() as readout:
        return teach(readout, inputs, plan.settings.batch_size)


def collect_statistics(
    plan: Plan,
    needs: Needs,
    teacher: AnyTeacher | None,
    *,
    earlier: Sequence[Statistics] = (),
    saved: bool = True,
    progress: Progress = quiet,
) -> Statistics:
    """Collect what `needs` name over the calibration inputs, where both models stand now.

    What `earlier` statistics of the same pairs hold is taken from there; `saved` keeps state in the plan's
    folder, to go on after a kill.
    """
    matching = plan.matching_for(needs) if needs.permutations else plan.changed_pairs(needs)
    known = [other for other in earlier if other.matching.pairs == matching.pairs]
    collected, orders = None, None
    gradients: Mapping[tuple[str, str], Moments] = {}
    descent: Mapping[str, Tensor] = {}
    if needs.parts:
        alike = [other.collected for other in known if other.needs.parts == needs.parts]
        collected = alike[0] if alike else _activations(plan, matching, needs.parts, saved, progress)
    if needs.gradients:
        backward = [other.gradients for other in known if other.needs.gradients]
        gradients = backward[0] if backward else _gradients(plan, matching, teacher, saved, progress)
    if needs.descent:
        voted = [other.descent for other in known if other.needs.descent == needs.descent]
        descent = voted[0] if voted else _descent(plan, teacher, needs.descent)
    if needs.permutations is not None:
        ordered = [other.orders for other in known if other.needs.permutations == needs.permutations]
        orders = ordered[0] if ordered else _permutations(plan, matching, needs)
    return Statistics(needs, matching, collected, gradients, descent, orders)


def _activations(
    plan: Plan, matching: Matching, parts: tuple[Part, ...], saved: bool, progress: Progress
) -> CollectedMoments:
    """Collect the activation Moments; each neighbour's apart where a target block stands between two."""
    settings, inputs = plan.settings, plan.draws.calibration
    folder = plan.folder if saved else None
    _LOG.info("statistics of activations: %s", "in memory" if folder is None else f"saved in {folder}")
    return collect(
        plan.source.model,
        plan.target.model,
        matching,
        inputs,
        align=settings.align,
        tokens_per_input=_tokens(plan, matching),
        seed=settings.seed,
        parts=parts,
        kinds=("linear", "norm", "scale", "block"),
        blend=False,
        batch_size=settings.batch_size,
        folder=None if folder is None else folder / f"moments-{'-'.join(parts)}",
        save_every=_save_every(plan),
        progress=lambda done: progress("activations", done, len(inputs)),
    )


def _tokens(plan: Plan, matching: Matching) -> int | None:
    """Return the cap on tokens per input, None for all."""
    given = plan.settings.tokens_per_input
    if given is not None:
        return given or None
    widths = [
        max(pair.target.in_width, pair.target.out_width, pair.source.in_width, pair.source.out_width)
        for pair in matching.pairs
        if pair.target.kind == "linear" and pair.target.role != "head"
    ]
    rows = ROWS_PER_WIDTH * max(widths, default=1)
    return max(LEAST_TOKENS, math.ceil(rows / len(plan.draws.calibration)))


def _save_every(plan: Plan) -> int:
    """Return the batches between two saved states."""
    return max(1, len(plan.draws.calibration) // plan.settings.batch_size // 4)


def _gradients(
    plan: Plan, matching: Matching, teacher: AnyTeacher | None, saved: bool, progress: Progress
) -> Mapping[tuple[str, str], Moments]:
    settings, inputs = plan.settings, plan.draws.calibration
    source, target = plan.source.model, plan.target.model
    options = StepOptions(align=settings.align, seed=settings.seed)
    linear = [pair for pair in matching.pairs if pair.target.kind in ("linear", "norm", "scale")]
    step = GradientStep(source, target, linear, options, inputs[0])
    state = None
    if plan.folder is not None and saved:
        # the folder's name tells models, inputs and options apart
        about = {"of": "gradients", "pairs": sorted("\t".join(key) for key in step.lanes)}
        state = SavedState(plan.folder / "gradients", step, about, _save_every(plan))
        state.resume()
    batches = Batches(inputs, settings.batch_size, target.length)
    if state is None or len(state.covered) < len(batches):  # or nothing is left to run
        step.losses = tuple(_loss(plan, model, teacher) for model in (source, target))
    run_shared(
        batches,
        step.step,
        step,
        state=state,
        progress=lambda done: progress("gradients", done, len(inputs)),
    )
    return {(name.split("\t")[0], name.split("\t")[1]): rows for name, rows in step.moments.items()}


def _descent(plan: Plan, teacher: AnyTeacher | None, vote: str) -> Mapping[str, Tensor]:
    target = plan.target.model
    batches = Batches(plan.draws.calibration, plan.settings.batch_size, target.length)
    return weight_descent(target, batches, _loss(plan, target, teacher), vote=vote)


def _loss(plan: Plan, model: LoadedModel, teacher: AnyTeacher | None) -> Loss:
    """Return the loss of one base model against the teacher; a language model has its own next-word loss."""
    if plan.task == "language":
        return language_loss(model)
    assert teacher is not None
    return teacher.loss(Readout(model))


def _permutations(plan: Plan, matching: Matching, needs: Needs) -> tuple[Orders, Mapping[str, Axes]]:
    assert needs.permutations is not None
    models = plan.source.model, plan.target.model
    tensors = [{name: value.cpu() for name, value in values_of(model.model)} for model in models]
    return match_units(
        [pair.target for pair in matching.pairs if len(pair.sources) == 1],
        lambda name: tensors[0][_source_name(matching, name)],
        lambda name: tensors[1][name],
        heads=partial(attention_heads, plan.target.model),
        seed=plan.settings.seed,
        **asdict(needs.permutations),
    )


def _source_name(matching: Matching, name: str) -> str:
    """Return the source's parameter that stands for a target's."""
    for pair in matching.pairs:
        if pair.target.weight == name and pair.source.weight is not None:
            return pair.source.weight
        if pair.target.bias == name and pair.source.bias is not None:
            return pair.source.bias
    return name
