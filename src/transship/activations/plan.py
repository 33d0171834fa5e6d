"""What is collected: which tensors are watched, which pairs of sites share them, and their running sums."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from transship.activations.match import Matching, SitePair
from transship.activations.models import LoadedModel
from transship.activations.sites import Part, Side, Site, sides_of, view_of
from transship.activations.step import Lane, RowBuffers, StepOptions, Stepper, Stream
from transship.checkpoints.footprint import Footprint
from transship.errors import MatchError
from transship.geometry import Moments

KINDS = ("linear", "norm", "block")
SIDES: tuple[Side, ...] = ("input", "output")
# Rows wait for a product until they fill this many bytes: long products are efficient, and the float64 sums
# rare.
BUFFER_BYTES = 512 * 2**20
MOST_BUFFERED_ROWS = 2048


@dataclass(frozen=True)
class Entry:
    """Where the Moments of one pair and side are: a weighted sum of kept ones, and their one-sided parts."""

    moments: tuple[tuple[str, float], ...]
    aa: tuple[str | None, ...]
    bb: str | None


@dataclass(frozen=True)
class Skipped:
    """A pair's side that has no Moments, and why."""

    pair: str
    side: Side
    reason: str


@dataclass(frozen=True)
class _Group:
    """One kept pair of tensors: (stream, columns, lane, weight) of the source, and the target's."""

    name: str
    sources: tuple[tuple[Stream, Part | None, Lane, float], ...]
    target: Stream
    part: Part | None

    @property
    def lane(self) -> Lane:
        return self.sources[0][2]


class CollectionPlan:
    """Which tensors are watched, which pairs share them, and what cannot be collected."""

    def __init__(
        self,
        source: LoadedModel,
        target: LoadedModel,
        matching: Matching,
        options: StepOptions,
        example: Any,
        *,
        kinds: Collection[str] = KINDS,
        blend: bool = True,
        widest: int | None = None,
        extra: Sequence[tuple[Stream, Stream]] = (),
    ) -> None:
        self.blend = blend
        self.skipped: tuple[Skipped, ...] = ()
        self.stacks = {site.stack for site in source.sites}, {site.stack for site in target.sites}
        wanted = [
            (pair, side)
            for pair in matching.pairs
            if pair.target.kind in kinds
            for side in SIDES
            if side in sides_of(pair.target) and side in sides_of(pair.source)
            if widest is None or _space(pair, side) <= widest
        ]
        streams = [
            (self._stream(site, side, 0), self._stream(pair.target, side, 1))
            for pair, side in wanted
            for site, _ in pair.sources
        ]
        self.stepper = Stepper(source, target, [*streams, *extra], options, example)
        self.groups: dict[Any, _Group] = {}
        self.members: dict[tuple[str, Side], list[tuple[Any, float]]] = {}
        self._first: tuple[dict[Any, Stream], dict[Any, Stream]] = ({}, {})
        for pair, side in wanted:
            self._place(pair, side)
        if not self.groups:
            skipped: tuple[Skipped, ...] = self.skipped
            reason = skipped[0].reason if skipped else "no pair is of the wanted kinds"
            raise MatchError(
                f"nothing can be collected: {reason}",
                where="collect",
                fix="check the matching and the inputs",
            )
        grouped = [(stream, group.target) for group in self.groups.values() for stream, *_ in group.sources]
        self.stepper.restrict([*grouped, *extra])

    def _stream(self, site: Site, side: Side, model: int) -> Stream:
        crosses = (
            site.role in ("cross_attention.key", "cross_attention.value") and "encoder" in self.stacks[model]
        )
        return Stream(view_of(site, side).tap, "encoder" if crosses else site.stack)

    def _place(self, pair: SitePair, side: Side) -> None:
        target = self._stream(pair.target, side, 1)
        sources = [
            (self._stream(site, side, 0), view_of(site, side).part, weight) for site, weight in pair.sources
        ]
        reason = self._reason(sources, target)
        if reason is not None:
            self.skipped = (*self.skipped, Skipped(pair.name, side, reason))
            return
        part = view_of(pair.target, side).part
        described = [
            (self._shared(stream, 0), source_part, self.stepper.lanes[stream, target], weight)
            for stream, source_part, weight in sources
        ]
        here = self._shared(target, 1)
        together = (
            [described]
            if self.blend
            else [[(stream, columns, lane, 1.0)] for stream, columns, lane, _ in described]
        )
        weights = [1.0] if self.blend else [weight for *_, weight in described]
        members: list[tuple[Any, float]] = []
        for sources_of_group, weight in zip(together, weights, strict=True):
            key = (tuple(sources_of_group), here, part)
            name = f"{pair.name}.{side}" if len(together) == 1 else f"{pair.name}.{side}:{len(members)}"
            self.groups.setdefault(key, _Group(name, tuple(sources_of_group), here, part))
            members.append((key, weight))
        self.members[pair.name, side] = members

    def _shared(self, stream: Stream, model: int) -> Stream:
        """Return the first stream that carries the same tensor."""
        side = self.stepper.source if model == 0 else self.stepper.target
        return self._first[model].setdefault(side.seen[stream.tap].identity, stream)

    def _reason(self, sources: Sequence[tuple[Stream, Part | None, float]], target: Stream) -> str | None:
        there, here = self.stepper.source, self.stepper.target
        for stream, _, _ in sources:
            if stream.tap in there.skipped:
                return f"{there.skipped[stream.tap]} (source)"
            if target.tap in here.skipped:
                return f"{here.skipped[target.tap]} (target)"
            calls = there.seen[stream.tap].calls, here.seen[target.tap].calls
            if calls[0] != calls[1]:
                return f"runs {calls[0]} times in the source and {calls[1]} in the target"
        seen = {(there.seen[stream.tap].width, there.seen[stream.tap].tokens) for stream, _, _ in sources}
        if self.blend and len(seen) > 1:
            return "stands between two source blocks of different shapes, which do not mix"
        return None

    def entries(self, kept: "MomentKeeper") -> dict[tuple[str, Side], Entry]:
        """Return what each pair's side is made of."""
        return {
            key: Entry(
                tuple((self.groups[group].name, weight) for group, weight in members),
                tuple(kept.one_sided.get(("aa", self.groups[group].sources)) for group, _ in members),
                kept.one_sided.get(("bb", *_target_key(self.groups[members[0][0]]))),
            )
            for key, members in self.members.items()
        }


class MomentKeeper:
    """The Moments, each on the device of its layer, and rows that wait for their products."""

    def __init__(self, plan: CollectionPlan, parts: Collection[str]) -> None:
        self.groups = list(plan.groups.values())
        self.moments: dict[str, Moments] = {}
        self.one_sided: dict[tuple[Any, ...], str] = {}
        seen = plan.stepper.source.seen, plan.stepper.target.seen
        for group in self.groups:
            width_a = _width(seen[0][group.sources[0][0].tap].width, group.sources[0][1])
            width_b = _width(seen[1][group.target.tap].width, group.part)
            both = {part for part in ("ab",) if part in parts}
            there, here = (
                side[stream.tap].device
                for side, stream in zip(seen, (group.sources[0][0], group.target), strict=True)
            )
            self.moments[group.name] = _zeros(width_a, width_b, both, group.name, here)
            if "aa" in parts and ("aa", group.sources) not in self.one_sided:
                name = self.one_sided["aa", group.sources] = f"{group.name}:aa"
                self.moments[name] = _zeros(width_a, 1, {"aa"}, name, there)
            key = ("bb", *_target_key(group))
            if "bb" in parts and key not in self.one_sided:
                name = self.one_sided[key] = f"{group.name}:bb"
                self.moments[name] = _zeros(1, width_b, {"bb"}, name, here)
        per_row = 4 * sum(side[stream.tap].width for side, stream in _streams(self.groups, seen))
        limit = max(64, min(MOST_BUFFERED_ROWS, BUFFER_BYTES // max(1, per_row)))
        self.buffers = RowBuffers(limit, self._multiply)

    def flush(self) -> None:
        """Multiply the waiting rows and add the products to the sums."""
        self._multiply()
        self.buffers.clear()

    def _multiply(self) -> None:
        done: set[str] = set()
        for group in self.groups:
            here = self.buffers.rows(1, (group.target.tap, group.lane))
            if here is None:
                continue
            b = _columns(here, group.part)
            a = self._blended(group)
            self.moments[group.name].update(a.to(b.device), b)
            names = [
                self.one_sided.get(("aa", group.sources)),
                self.one_sided.get(("bb", *_target_key(group))),
            ]
            for name, left, right in zip(names, (a, b[:, :1]), (a[:, :1], b), strict=True):
                if name is not None and name not in done:
                    done.add(name)
                    self.moments[name].update(left, right)

    def _blended(self, group: _Group) -> Float[Tensor, "rows width"]:
        sources = []
        for stream, part, lane, _ in group.sources:
            there = self.buffers.rows(0, (stream.tap, lane))
            assert there is not None, group.name
            sources.append(_columns(there, part))
        if len(sources) == 1:
            return sources[0]
        blended = sources[0] * group.sources[0][3]
        for rows, (*_, weight) in zip(sources[1:], group.sources[1:], strict=True):
            blended.add_(rows.to(blended.device), alpha=weight)
        return blended


def _zeros(width_a: int, width_b: int, parts: Collection[Any], name: str, device: torch.device) -> Moments:
    return Moments.zeros(width_a, width_b, parts=parts, name=name, device=device)


def _streams(groups: Iterable[_Group], seen: Any) -> Iterator[tuple[Any, Stream]]:
    there = {stream: None for group in groups for stream, *_ in group.sources}
    here = {group.target: None for group in groups}
    yield from ((seen[0], stream) for stream in there)
    yield from ((seen[1], stream) for stream in here)


def _target_key(group: _Group) -> tuple[Any, ...]:
    return (group.target, group.part, group.lane)


def _space(pair: SitePair, side: Side) -> int:
    """Return the width of the narrower of the two spaces on one side of a pair."""
    widths = [site.in_width if side == "input" else site.out_width for site in (pair.source, pair.target)]
    return min(widths)


def _width(total: int, part: Part | None) -> int:
    return total if part is None else part.width


def _columns(rows: Float[Tensor, "rows total"], part: Part | None) -> Float[Tensor, "rows width"]:
    return rows if part is None else part.columns(rows)


# spaces that a block's sites share between them: what enters attention, leaves it, enters and leaves the MLP,
# the residual stream, and the inside of the MLP
_NARROW, _INNER = 7, 2


def collecting_bytes(source: Footprint, target: Footprint, *, widest: int | None = None) -> int:
    """Return what Moments of every matched space take, with Grams of both sides, and the rows that wait."""
    moments = rows = 0
    for width_a, width_b, count in (
        (source.hidden, target.hidden, _NARROW),
        (source.inner, target.inner, _INNER),
    ):
        if widest is None or max(width_a, width_b) <= widest:
            spaces = count * target.layers
            # a target block that stands between two source blocks has Moments with both
            moments += 8 * spaces * (2 * width_a * width_b + width_a**2 + width_b**2)
            rows += 4 * spaces * (2 * width_a + width_b)
    return moments + min(BUFFER_BYTES, MOST_BUFFERED_ROWS * rows)


def running_bytes(source: Footprint, target: Footprint, batch: int, tokens: int | None) -> int:
    """Return what one batch takes in two models that run one after the other."""
    return max(source.forward(batch, tokens), target.forward(batch, tokens))
