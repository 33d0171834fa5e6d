"""How alike two models are inside: CKA of every pair of layers, and what rotations leave."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from transship import parallel
from transship.activations.batches import Batches, Numbered, run_shared, unit_size
from transship.activations.collected import read_first
from transship.activations.match import Matching, match_sites
from transship.activations.models import LoadedModel, load_model
from transship.activations.plan import (
    KINDS,
    SIDES,
    CollectionPlan,
    MomentKeeper,
    collecting_bytes,
    running_bytes,
)
from transship.activations.sites import Side, Tap
from transship.activations.step import Lane, StepOptions, StepRows, Stream
from transship.checkpoints.footprint import Footprint
from transship.geometry import CkaAccumulator, Moments
from transship.types import Align, Depth

# Wider spaces than this want more rows than a quick look has, and their factorisations take longer than the
# models.
WIDEST = 1024
# More than `collect` keeps by default: a comparison runs once, and CKA and residuals of few rows are biased.
TOKENS = 8


@dataclass(frozen=True)
class StackComparison:
    """The layers of two corresponding stacks.

    Attributes:
        source: the source's stack.
        target: the target's stack.
        source_layers: names: `embedding`, `block 0`, …
        target_layers: likewise.
        cka: minibatch-unbiased linear CKA, one row per source layer, one column per target layer.
        best_source: for every target layer the number of the most similar source layer.
        best_target: for every source layer the number of the most similar target layer.
    """

    source: str
    target: str
    source_layers: tuple[str, ...]
    target_layers: tuple[str, ...]
    cka: tuple[tuple[float, ...], ...]
    best_source: tuple[int, ...]
    best_target: tuple[int, ...]


@dataclass(frozen=True)
class Residual:
    """How much of a space the best rotation of its partner leaves unexplained.

    Attributes:
        name: the target site: stack, block and role.
        sources: the source sites that stand for it, with weights.
        side: input or output.
        kind: the site's kind; `block` for the residual stream, that is, a layer.
        block: the target's block number.
        role: the site's role.
        widths: of the source and target space.
        rows: tokens counted.
        agreement: c = ‖S_ab‖_* / (‖A‖ ‖B‖), about the means; 1 for a rotated and scaled twin.
        residual: 1 − c², the share of variance left after the best rotation and scale.
    """

    name: str
    sources: tuple[tuple[str, float], ...]
    side: Side
    kind: str
    block: int | None
    role: str
    widths: tuple[int, int]
    rows: int
    agreement: float
    residual: float


@dataclass(frozen=True)
class Comparison:
    """What `compare` found, as plain data.

    Attributes:
        source: name of the source model.
        target: name of the target model.
        stacks: CKA of the layers, per pair of stacks.
        layers: residuals of the residual stream, block by block.
        sites: residuals of the matched sites.
        unmatched: (model, site, reason) of sites without partner.
        inputs: inputs read.
        rows: tokens counted.
        seconds: wall time of running both models and comparing.
        options: what was asked for.
    """

    source: str
    target: str
    stacks: tuple[StackComparison, ...]
    layers: tuple[Residual, ...]
    sites: tuple[Residual, ...]
    unmatched: tuple[tuple[str, str, str], ...]
    inputs: int
    rows: int
    seconds: float
    options: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON-ready data."""
        return asdict(self)


def compare(
    source: Any,
    target: Any,
    inputs: Iterable[Any],
    *,
    align: Align = "auto",
    tokens_per_input: int | None = TOKENS,
    seed: int = 0,
    depth: Depth = "interpolate",
    batch_size: int = 32,
    widest: int | None = WIDEST,
    progress: Callable[[int], None] | None = None,
) -> Comparison:
    """Run two models over the same inputs and compare their layers and sites.

    Args:
        source, target: LoadedModels, or what `load_model` takes.
        inputs: texts, images or arrays.
        align: how tokens correspond; at most `tokens_per_input` of an input, drawn with `seed`; None for all.
        depth: which source block stands for a target block; see `match_sites`.
        batch_size: inputs per forward pass.
        widest: leave out residuals of spaces wider than this on both sides; None for all.
        progress: called with the number of inputs done.
    """
    started = time.perf_counter()
    models = load_model(source), load_model(target)
    matching = match_sites(*models, depth=depth)
    first, stream = read_first(inputs)
    options = StepOptions(align=align, tokens_per_input=tokens_per_input, seed=seed)
    layers = [_Layers(*models, pair) for pair in _stack_pairs(matching)]
    extra = [pair for stack in layers for pair in stack.pairs()]
    plan = CollectionPlan(*models, matching, options, first, kinds=KINDS, widest=widest, extra=extra)
    kept = MomentKeeper(plan, ("ab",))
    batches = Batches(stream, batch_size, models[1].length)
    unit = unit_size(inputs, batch_size, tokens_per_input)
    count = _run(plan, kept, layers, batches, unit, progress)
    residuals = _residuals(plan, kept, matching)
    asked = {"depth": depth, "align": align, "widest": widest}
    return Comparison(
        models[0].name,
        models[1].name,
        tuple(stack.result() for stack in layers),
        tuple(residual for residual in residuals if residual.kind == "block"),
        tuple(residual for residual in residuals if residual.kind != "block"),
        tuple((left.side, left.site.name, left.reason) for left in matching.unmatched),
        count,
        int(max(moments.count for moments in kept.moments.values())),
        time.perf_counter() - started,
        {"tokens_per_input": tokens_per_input, "seed": seed, **asked},
    )


def _run(
    plan: CollectionPlan,
    kept: MomentKeeper,
    layers: Sequence["_Layers"],
    batches: Batches,
    unit: int,
    progress: Callable[[int], None] | None,
) -> int:
    """Add all batches to the Moments and to the layers' sums; return the number of inputs."""
    for stack in layers:
        stack.prepare(plan)

    def step(items: Numbered) -> None:
        rows = plan.stepper.step(items, kept.buffers)
        for stack in layers:
            stack.update(rows)

    count = run_shared(batches, step, kept, unit=unit, progress=progress)
    for stack in layers:
        stack.add_up()
    return count


def comparing_bytes(source: Footprint, target: Footprint, batch: int, tokens: int | None) -> int:
    """Return what `compare` takes: both models, one batch, waiting rows, and Moments of every space."""
    collected = collecting_bytes(source, target, widest=WIDEST)
    return source.weights + target.weights + collected + running_bytes(source, target, batch, tokens)


class _Layers:
    """The layers of one pair of stacks, and the CKA of all of their pairs."""

    def __init__(self, source: LoadedModel, target: LoadedModel, stacks: tuple[str, str]) -> None:
        self.stacks = stacks
        self.source, self.source_names = _layers(source, stacks[0])
        self.target, self.target_names = _layers(target, stacks[1])

    def pairs(self) -> list[tuple[Stream, Stream]]:
        return [(there, here) for there in self.source for here in self.target]

    def prepare(self, plan: CollectionPlan) -> None:
        """Group the pairs by lane: stages with other numbers of tokens have rows of their own."""
        self.lanes: dict[Lane, tuple[list[int], list[int]]] = {}
        for row, there in enumerate(self.source):
            for column, here in enumerate(self.target):
                lane = plan.stepper.lanes.get((there, here))
                if lane is not None:
                    rows, columns = self.lanes.setdefault(lane, ([], []))
                    if row not in rows:
                        rows.append(row)
                    if column not in columns:
                        columns.append(column)
        self.sums = {
            lane: CkaAccumulator(len(rows), len(columns)) for lane, (rows, columns) in self.lanes.items()
        }

    def update(self, step: StepRows) -> None:
        for lane, (rows, columns) in self.lanes.items():
            self.sums[lane].update(
                [step.source[self.source[row].tap, lane] for row in rows],
                [step.target[self.target[column].tap, lane] for column in columns],
            )

    def add_up(self) -> None:
        """Sum over processes."""
        for sums in self.sums.values():
            parallel.add_up([sums.cross, sums.self_a, sums.self_b])

    def result(self) -> StackComparison:
        matrix = torch.zeros(len(self.source), len(self.target), dtype=torch.float64)
        for lane, (rows, columns) in self.lanes.items():
            matrix[torch.tensor(rows)[:, None], torch.tensor(columns)] = self.sums[lane].matrix()
        return StackComparison(
            *self.stacks,
            self.source_names,
            self.target_names,
            tuple(tuple(float(value) for value in row) for row in matrix),
            tuple(int(best) for best in matrix.argmax(0)),
            tuple(int(best) for best in matrix.argmax(1)),
        )


def _layers(model: LoadedModel, stack: str) -> tuple[list[Stream], tuple[str, ...]]:
    """Return the streams of a stack's hidden states, with names: what enters block 0, what leaves each."""
    blocks = sorted(
        (site for site in model.sites if site.kind == "block" and site.stack == stack),
        key=lambda site: site.block or 0,
    )
    streams = [Stream(Tap(blocks[0].path, "input"), stack)]
    streams += [Stream(Tap(site.path, "output"), stack) for site in blocks]
    return streams, ("embedding", *(f"block {site.block}" for site in blocks))


def _stack_pairs(matching: Matching) -> list[tuple[str, str]]:
    """Return (source stack, target stack) of the stacks whose blocks are matched."""
    return list(
        dict.fromkeys(
            (pair.source.stack, pair.target.stack) for pair in matching.pairs if pair.target.kind == "block"
        )
    )


def _residuals(plan: CollectionPlan, kept: MomentKeeper, matching: Matching) -> list[Residual]:
    """Return the residual of every collected side; sides that share a tensor share the factorisation."""
    known: dict[str, float] = {}
    residuals = []
    entries = plan.entries(kept)
    for pair in matching.pairs:
        for side in SIDES:
            entry = entries.get((pair.name, side))
            if entry is None:
                continue
            moments = kept.moments[entry.moments[0][0]]
            if moments.name not in known:
                known[moments.name] = _agreement(moments)
            residuals.append(
                Residual(
                    pair.name,
                    tuple((site.name, weight) for site, weight in pair.sources),
                    side,
                    pair.target.kind,
                    pair.target.block,
                    pair.target.role,
                    (moments.width_a, moments.width_b),
                    int(moments.count),
                    known[moments.name],
                    1.0 - known[moments.name] ** 2,
                )
            )
    return residuals


def _agreement(moments: Moments) -> float:
    """Return ‖S_ab‖_* / (‖A‖ ‖B‖) about the means, from 0 to 1."""
    used = moments.centred()
    scale = math.sqrt(float(used.square_a.sum()) * float(used.square_b.sum()))
    if scale <= 0.0:
        return 0.0
    cross = used.part("ab")
    if min(cross.shape) <= WIDEST:
        nuclear = float(torch.linalg.svdvals(cross).sum())
    else:
        # the smaller Gram matrix loses singular values below 1e-8 of the largest, which no sum of them
        # notices
        gram = cross @ cross.T if cross.shape[0] <= cross.shape[1] else cross.T @ cross
        nuclear = float(torch.linalg.eigvalsh(gram).clamp_min(0.0).sqrt().sum())
    return min(1.0, nuclear / scale)
