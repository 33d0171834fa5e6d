"""Moments of matched sites, streamed over any number of inputs in memory of fixed size."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from transship.activations.collected import CollectedMoments, Entry, Skipped
from transship.activations.match import Matching, SitePair, match_sites
from transship.activations.models import LoadedModel, load_model
from transship.activations.record import Side, sides_of, view_of
from transship.activations.sites import Part, Site
from transship.activations.step import Batches, Lane, StepOptions, Stepper, StepRows, Stream
from transship.activations.tokens import Align
from transship.errors import DataError, MatchError, OptionError
from transship.geometry import Moments, load_moments, save_moments

KINDS = ("linear", "norm", "block")
PARTS = ("ab",)
# Rows wait for a product until they fill this many bytes: long products are efficient, and the float64 sums rare.
BUFFER_BYTES = 512 * 2**20
MOST_BUFFERED_ROWS = 2048
DEFAULT_TOKENS = 8


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


def collect(
    source: Any,
    target: Any,
    matching: Matching | None,
    inputs: Iterable[Any],
    *,
    align: Align = "auto",
    tokens_per_input: int | None = DEFAULT_TOKENS,
    seed: int = 0,
    skip_first: bool | None = None,
    parts: Collection[str] = PARTS,
    sides: Collection[Side] = ("input", "output"),
    kinds: Collection[str] = KINDS,
    blend: bool = True,
    widest: int | None = None,
    batch_size: int = 32,
    first_number: int = 0,
    max_rows: int | None = None,
    folder: str | Path | None = None,
    save_every: int = 64,
    progress: Callable[[int], None] | None = None,
) -> CollectedMoments:
    """Run two models over the same inputs and return the Moments of every matched site's input and output.

    Args:
        source: a LoadedModel, or what `load_model` takes.
        target: likewise.
        matching: the pairs of sites; None to match the two models here.
        inputs: raw inputs (texts, images, arrays), each model's own preprocessing makes its batches of them.
        align: how tokens correspond; see `tokens.align_tokens`.
        tokens_per_input: at most so many tokens of each input, drawn with `seed` and the input's number, the same for
            every site; None for all. Moments cost more than the forward passes when every token counts.
        seed: of the draw.
        skip_first: leave out first tokens, whose states are outliers in causal models; None for "if one is causal".
        parts: `ab` (the cross moment), `aa`, `bb`.
        sides: `input`, `output`.
        kinds: kinds of sites.
        blend: where a target block stands between two source blocks, mix their rows and keep one Moments
            (ab and sums equal the mixed ones exactly); otherwise keep both, and mix when they are read.
        widest: leave out spaces that are wider than this in both models; None for all.
        batch_size: inputs per forward pass.
        first_number: the number of the first input, when the inputs are a shard of more.
        max_rows: stop after the batch that reaches so many rows.
        folder: keep the state there, to go on after a kill; the same call continues it to the same result.
        save_every: batches between two saved states.
        progress: called with the number of inputs done.

    Sites that share a tensor (q, k and v; a norm's output and what reads it) share its Moments. NaN and Inf are
    errors with the site's name. Memory does not depend on the number of inputs.
    """
    models = load_model(source), load_model(target)
    matching = match_sites(*models) if matching is None else matching
    first, stream = read_first(inputs)
    options = StepOptions(align=align, tokens_per_input=tokens_per_input, seed=seed, skip_first=skip_first)
    plan = Plan(*models, matching, options, first, sides=sides, kinds=kinds, blend=blend, widest=widest)
    kept = MomentKeeper(plan, _checked_parts(parts))
    about = {
        "source": models[0].name,
        "target": models[1].name,
        "parts": sorted(parts),
        "blend": blend,
        "batch_size": batch_size,
        "first_number": first_number,
        **asdict(options),
    }
    state = None if folder is None else _State(Path(folder), kept, about, save_every)
    done = state.resume() if state is not None else _Done()
    batches = Batches(chain([first], stream), batch_size, models[1].length, first_number)
    for number, items in enumerate(batches):
        if number < done.batches:
            done.see(items, again=True)
            continue
        if max_rows is not None and kept.rows >= max_rows:
            break
        kept.add(plan.stepper.step(items))
        done.see(items)
        if progress is not None:
            progress(done.inputs)
        if state is not None and done.batches % save_every == 0:
            state.save(done)
    if state is not None:
        done.finish()
    kept.flush()
    if state is not None:
        state.save(done)
    return CollectedMoments(
        matching, kept.moments, plan.entries(kept), plan.skipped, done.inputs, about
    ).check()


def read_first(inputs: Iterable[Any]) -> tuple[Any, Iterator[Any]]:
    """Return the first input and the rest; an error when there is none."""
    stream = iter(inputs)
    for first in stream:
        return first, stream
    raise DataError("there are no inputs", where="data", fix="give at least one input")


class Plan:
    """Which tensors are watched, which pairs share them, and what cannot be collected."""

    def __init__(
        self,
        source: LoadedModel,
        target: LoadedModel,
        matching: Matching,
        options: StepOptions,
        example: Any,
        *,
        sides: Collection[Side] = ("input", "output"),
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
            for side in ("input", "output")
            if side in sides and side in sides_of(pair.target) and side in sides_of(pair.source)
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
            reasons = sorted({skipped.reason for skipped in self.skipped}) or [
                "no pair is of the wanted kinds"
            ]
            raise MatchError(
                f"nothing can be collected: {reasons[0]}",
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
        members = []
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
            if there.seen[stream.tap].calls != here.seen[target.tap].calls:
                return f"runs {there.seen[stream.tap].calls} times in the source and {here.seen[target.tap].calls} in the target"
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
    """The Moments, and rows that wait for their products."""

    def __init__(self, plan: Plan, parts: Collection[str]) -> None:
        self.groups = list(plan.groups.values())
        self.moments: dict[str, Moments] = {}
        self.one_sided: dict[tuple[Any, ...], str] = {}
        self.device = plan.stepper.target.loaded.device
        seen = plan.stepper.source.seen, plan.stepper.target.seen
        for group in self.groups:
            width_a = _width(seen[0][group.sources[0][0].tap].width, group.sources[0][1])
            width_b = _width(seen[1][group.target.tap].width, group.part)
            both = {part for part in ("ab",) if part in parts}
            self.moments[group.name] = self._zeros(width_a, width_b, both, group.name)
            if "aa" in parts and ("aa", group.sources) not in self.one_sided:
                name = self.one_sided["aa", group.sources] = f"{group.name}:aa"
                self.moments[name] = self._zeros(width_a, 0, {"aa"}, name)
            key = ("bb", *_target_key(group))
            if "bb" in parts and key not in self.one_sided:
                name = self.one_sided[key] = f"{group.name}:bb"
                self.moments[name] = self._zeros(0, width_b, {"bb"}, name)
        self.waiting: tuple[dict[Any, list[Tensor]], dict[Any, list[Tensor]]] = ({}, {})
        self.pending = 0
        self.counted = 0
        per_row = 4 * sum(side[stream.tap].width for side, stream in _streams(self.groups, seen))
        self.limit = max(64, min(MOST_BUFFERED_ROWS, BUFFER_BYTES // max(1, per_row)))

    def _zeros(self, width_a: int, width_b: int, parts: Collection[Any], name: str) -> Moments:
        return Moments.zeros(width_a, width_b, parts=parts, name=name, device=self.device)

    @property
    def rows(self) -> int:
        """Rows so far, on the lane with most."""
        return self.counted + self.pending

    def add(self, step: StepRows) -> None:
        """Take one batch's rows."""
        most = max(step.rows.values(), default=0)
        if self.pending and self.pending + most > self.limit:
            self.flush()
        for waiting, made in zip(self.waiting, (step.source, step.target), strict=True):
            for key, rows in made.items():
                waiting.setdefault(key, []).append(rows)
        self.pending += most

    def flush(self) -> None:
        """Multiply the waiting rows and add the products to the sums."""
        joined = [
            {key: torch.cat(rows) if len(rows) > 1 else rows[0] for key, rows in side.items()}
            for side in self.waiting
        ]
        self.waiting = ({}, {})
        self.counted, self.pending = self.counted + self.pending, 0
        done: set[str] = set()
        for group in self.groups:
            if (group.target.tap, group.lane) not in joined[1]:
                continue
            b = _columns(joined[1][group.target.tap, group.lane], group.part)
            a = self._blended(group, joined[0]).to(b.device)
            self.moments[group.name].update(a, b)
            names = [
                self.one_sided.get(("aa", group.sources)),
                self.one_sided.get(("bb", *_target_key(group))),
            ]
            for name, left, right in zip(names, (a, b[:, :0]), (a[:, :0], b), strict=True):
                if name is not None and name not in done:
                    done.add(name)
                    self.moments[name].update(left, right)

    def _blended(self, group: _Group, rows: dict[Any, Tensor]) -> Float[Tensor, "rows width"]:
        made = [_columns(rows[stream.tap, lane], part) for stream, part, lane, _ in group.sources]
        if len(made) == 1:
            return made[0]
        blended = made[0] * group.sources[0][3]
        for one, (*_, weight) in zip(made[1:], group.sources[1:], strict=True):
            blended.add_(one, alpha=weight)
        return blended


@dataclass
class _Done:
    """How far the work is, with a digest of the inputs read, so that a resumed run is held to the same ones."""

    batches: int = 0
    inputs: int = 0
    digest: str = ""
    finished: bool = False

    def __post_init__(self) -> None:
        self._again = ""
        self._checked = 0

    def see(self, items: Sequence[tuple[int, Any]], *, again: bool = False) -> None:
        made = hashlib.blake2b((self._again if again else self.digest).encode(), digest_size=16)
        for _, item in items:
            made.update(_bytes(item))
        if again:
            self._again = made.hexdigest()
            self._checked += 1
            if self._checked == self.batches and self._again != self.digest:
                raise OptionError(
                    "the saved state is of other inputs",
                    where="resume",
                    fix="give the same inputs, or another folder",
                )
            return
        self.digest = made.hexdigest()
        self.batches += 1
        self.inputs += len(items)

    def finish(self) -> None:
        self.finished = True


class _State:
    """Saved states in a folder: each complete in a subfolder of its own, renamed into place; the newest counts."""

    def __init__(self, folder: Path, kept: MomentKeeper, about: dict[str, Any], every: int) -> None:
        if every < 1:
            raise OptionError(f"save every {every} batches", where="save_every", fix="give 1 or more")
        self.folder, self.kept = folder, kept
        # rows are multiplied when a state is saved, so the interval is part of what makes two runs the same
        self.about = {**about, "save_every": every, "names": sorted(kept.moments)}

    def _found(self) -> list[Path]:
        places = self.folder.glob("state-*") if self.folder.is_dir() else []
        return sorted(place for place in places if place.name[6:].isdigit())

    def resume(self) -> _Done:
        found = self._found()
        if not found:
            return _Done()
        described = json.loads((found[-1] / "state.json").read_text(encoding="utf-8"))
        if described["about"] != json.loads(json.dumps(self.about)):
            raise OptionError(
                "the folder holds the state of another collection",
                where=str(self.folder),
                fix="choose another folder, or the same models and options",
            )
        moments = load_moments(found[-1] / "moments.safetensors")
        self.kept.moments.update({name: moments[name] for name in self.kept.moments})
        self.kept.counted = described["rows"]
        return _Done(**described["done"])

    def save(self, done: _Done) -> None:
        self.kept.flush()
        self.folder.mkdir(parents=True, exist_ok=True)
        older = self._found()
        place = self.folder / f"state-{done.batches + done.finished:09d}"
        if place in older:
            return
        made = self.folder / f"{place.name}.{os.getpid()}.part"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        save_moments(made / "moments.safetensors", self.kept.moments)
        progress = {
            "batches": done.batches,
            "inputs": done.inputs,
            "digest": done.digest,
            "finished": done.finished,
        }
        described = {"about": self.about, "rows": self.kept.counted, "done": progress}
        (made / "state.json").write_text(json.dumps(described), encoding="utf-8")
        made.rename(place)
        for old in (*older, *self.folder.glob("state-*.part")):
            shutil.rmtree(old, ignore_errors=True)


def _checked_parts(parts: Collection[str]) -> Collection[str]:
    unknown = sorted(set(parts) - {"aa", "bb", "ab"})
    if unknown:
        raise OptionError(f"there is no part '{unknown[0]}'", where="parts", fix="choose from ab, aa and bb")
    return parts


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


def _bytes(item: Any) -> bytes:
    if isinstance(item, str):
        return item.encode("utf-8", "surrogatepass") + b"\0"
    if isinstance(item, tuple | list):
        return b"".join(_bytes(one) for one in item)
    if hasattr(item, "tobytes"):
        return bytes(item.tobytes())
    return np.asarray(item).tobytes()
