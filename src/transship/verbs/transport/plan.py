"""What a transport will do, known before the long work: models open, sites matched, inputs drawn."""

import contextlib
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from transship.activations import Matching, SitePair
from transship.activations.readout import Readout, Task
from transship.numerics import format_bytes
from transship.progress import duration
from transship.registry import build_method
from transship.report import Facts, Page, Section
from transship.verbs.transport.labelled import MeasureRows
from transship.verbs.transport.models import (
    Participant,
)
from transship.verbs.transport.pace import BACKWARD, COLLECTING, Pace
from transship.verbs.transport.protocol import Needs, TransportMethod, parts_of
from transship.verbs.transport.rows import Draws
from transship.verbs.transport.settings import Settings
from transship.verbs.transport.weights import Kinship, SourceUpdate, kinship, shifted


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A planned transport; nothing in it changes.

    Attributes:
        source: the base of the fine-tune.
        tuned: the fine-tune.
        target: the model that it moves to.
        method: how; None compares several.
        settings: everything else that was asked for.
        update: what the fine-tune changed.
        relative: ‖update‖ / ‖source‖.
        matching: which sites correspond.
        kinship: how alike the two bases' weights are, where the method asks for it.
        draws: rows by purpose.
        labels: those that choose the strength, as the fine-tune numbers its outputs; or why they cannot; None
            where they are not asked or not there.
        kept: inputs on which a carried head keeps the target's answers.
        measured_on: labelled rows that nothing is chosen by.
        folder: where statistics are kept.
        pace: seconds per input of the models.
    """

    source: Participant
    tuned: Participant
    target: Participant
    method: TransportMethod | None
    settings: Settings
    update: SourceUpdate
    relative: float
    matching: Matching
    kinship: Kinship | None
    draws: Draws
    labels: torch.Tensor | str | None = None
    kept: Sequence[Any] | None = None
    measured_on: MeasureRows | None = None
    folder: Path | None = None
    pace: Pace | None = None

    @property
    def tuned_readout(self) -> Readout:
        """Knows what the fine-tuned source's outputs are; to run it, use `running_tuned`."""
        return Readout(self.source.model if self.tuned.loaded is None else self.tuned.loaded)

    @property
    def target_readout(self) -> Readout:
        """Reads the target as it stands, in the class that can hold a head."""
        return Readout(self.target.reading)

    @property
    def task(self) -> Task:
        """What the fine-tuned source's outputs are."""
        return self.tuned_readout.task

    @property
    def own_head(self) -> bool:
        """Whether the target's own head answers in the fine-tune's terms."""
        return self.tuned_readout.shares_outputs(self.target_readout)

    @property
    def comparable(self) -> bool:
        """Whether the target's answers can be held against the fine-tuned source's without labels: a
        vocabulary is compared with itself only.
        """
        if self.task != "language":
            return True
        words: list[dict[str, int]] = [
            getattr(model.model.tokenizer, "get_vocab", dict)() for model in (self.source, self.target)
        ]
        return self.own_head and words[0] == words[1]

    @contextlib.contextmanager
    def running_tuned(self) -> Iterator[Readout]:
        """Yield a readout of the fine-tuned source; an adapter runs on its base while the block runs."""
        if self.tuned.loaded is not None:
            yield Readout(self.tuned.loaded)
            return
        with shifted(self.source.model.model, self.source_changes()):
            yield Readout(self.source.model)

    def heads(self) -> list[TransportMethod | None]:
        """Return None for the target's own head, and what carries one: a bare fine-tune and a vocabulary have
        none to carry, a bare target needs one.
        """
        bare = self.task in ("features", "language")
        return [
            *([None] if bare or self.own_head else []),
            *([] if bare else parts_of("head")),
        ]

    def candidates(self) -> list[tuple[str, TransportMethod, TransportMethod]]:
        """Return what `auto` compares: names, methods, and the methods that move the weights."""
        alike = self.kinship is not None and self.kinship.related
        bodies = [body for body in parts_of("candidate") if alike or not body.needs.same_shape]
        return [
            (body.name, body, body)
            if head is None
            else (
                f"{head.name}, body {body.name}",
                build_method("transport", head.name, {"body": body.name}),
                body,
            )
            for body in bodies
            for head in self.heads()
        ]

    def choosing_seconds(self, method: TransportMethod) -> float:
        """Return about how long the search for a method's strength takes."""
        if self.pace is None or method.body_method is None or self.settings.strength != "auto":
            return 0.0
        draws = self.draws
        fitted = len(draws.head) if method.needs.head or not self.own_head else 0
        judged = len(self.labels if isinstance(self.labels, torch.Tensor) else draws.calibration)
        tried = len(self.settings.grid) * (1 if self.settings.path_steps == 1 else 3)
        return self.pace.target * tried * (judged + fitted)

    def following_seconds(self) -> float:
        """Return about how long it takes to fit the last head and to measure the result."""
        if self.pace is None:
            return 0.0
        pace, draws = self.pace, self.draws
        measured = 0 if self.measured_on is None else len(self.measured_on) + len(draws.calibration)
        compared = 4 * (len(draws.held_out) + len(draws.head)) if self.method is None else len(draws.head)
        return pace.target * (compared + 2 * measured) + pace.source * measured

    def seconds(self) -> float | None:
        """Return about how long all of it takes; None where nothing was timed."""
        if self.pace is None:
            return None
        pace, draws = self.pace, self.draws
        methods = [self.method] if self.method is not None else [method for _, method, _ in self.candidates()]
        bodies = [method.body_method for method in methods]
        passes = COLLECTING * any(body is not None and body.needs.parts for body in bodies)
        passes += BACKWARD * any(body is not None and body.needs.gradients for body in bodies)
        collecting = passes * len(draws.calibration) * (pace.source + pace.target) * self.settings.path_steps
        asked = pace.source * (len(draws.head) + len(draws.held_out))
        choosing = sum(self.choosing_seconds(method) for method in methods)
        return collecting + asked + choosing + self.following_seconds()

    def source_changes(self) -> dict[str, torch.Tensor]:
        names = [name for name, _ in self.source.model.model.named_parameters()]
        return {name: self.update.dense(name) for name in names if name in self.update}

    def matching_for(self, needs: Needs) -> Matching:
        """Return which sites a method moves between.

        Between relatives of other depth, a method that asks for it moves every block's update to its near
        copy alone; `--depth nearest` and `skip` are obeyed.
        """
        if not (needs.near_copies and self.settings.depth == "interpolate" and other_depth(self.matching)):
            return self.matching
        kin = self.kinship or kinship(self.source.model, self.target.model)
        return kin.matched(self.matching, self.source.model.sites) if kin.related else self.matching

    def changed_pairs(self, needs: Needs | None = None) -> Matching:
        """Return the pairs whose source changed, and the blocks that tables need: the others cost nothing."""
        return changed_pairs(self.matching if needs is None else self.matching_for(needs), self.update)

    def forget(self) -> None:
        """Remove the saved statistics."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def result_bytes(self) -> int:
        """About how much the result takes on disk at most.

        An adapter stays one, and small, unless it gets a head, is moved in parts or by a method without maps;
        `auto` may carry a head.
        """
        checkpoint, method = self.target.checkpoint, self.method
        small = self.task in ("features", "language") if method is None else method.keeps_rank
        if checkpoint is None or (self.update.adapter and small and self.settings.path_steps == 1):
            return 0
        return checkpoint.nbytes

    def page(self) -> Page:
        """Return what will be done, in a few lines."""
        settings, draws = self.settings, self.draws
        maps = [pair for pair in self.changed_pairs().pairs if pair.target.kind == "linear"]
        depths = self.matching.depths.items()
        moments = sum(
            8 * (site.in_width * pair.target.in_width + site.out_width * pair.target.out_width)
            for pair in maps
            for site, _ in pair.sources
        )
        missing = Counter(left.reason for left in self.matching.unmatched if left.side == "source")
        lines = {
            "update": f"{self.tuned.name} differs from {self.source.name} by {100 * self.relative:.2f} %"
            + (", as an adapter" if self.update.adapter else ""),
            "target": f"{self.target.name}: {len(maps)} linear maps with partners"
            + "".join(
                f"; {stack or 'blocks'}: {there} blocks to {here}"
                for stack, (there, here) in depths
                if there or here
            ),
            "inputs": f"{len(draws.calibration)} of {draws.name} for the maps" + self._strength_by(),
            "memory": f"about {format_bytes(moments)} of Moments",
            "method": f"{'auto' if self.method is None else self.method.name}, strength {settings.strength}"
            + (f", {settings.path_steps} path steps" if settings.path_steps > 1 else ""),
            **self._time(),
        }
        if missing:
            sites = [
                f"{count} {'site' if count == 1 else 'sites'}: {reason}"
                for reason, count in missing.most_common(5)
            ]
            lines["no partner"] = "; ".join(sites)
        return Page("", "", [Section("", [Facts(lines)])])

    def _time(self) -> dict[str, str]:
        """Return the line about time, where there is one."""
        seconds = self.seconds()
        if seconds is None:
            return {}
        count = len(self.candidates()) if self.method is None else 1
        several = f"; {count} candidates are compared" if count > 1 else ""
        budget = self.settings.budget
        limit = "" if budget is None else f", for which they have {duration(60 * budget)}"
        return {"time": f"about {duration(max(1.0, seconds))}{several}{limit}"}

    def _strength_by(self) -> str:
        """Say which inputs choose the strength, where one is to be found."""
        if isinstance(self.labels, str):
            return f"; its labels choose nothing: {self.labels}"
        return "" if self.labels is None else f", {len(self.labels)} labelled ones for the strength"


def changed_pairs(matching: Matching, update: SourceUpdate) -> Matching:
    """Return the pairs whose source changed, and the blocks that tables need."""
    changed = set(update.changed({name for pair in matching.pairs for name in _names(pair)}))
    tables = any(
        pair.target.kind in ("embedding", "conv", "parameter") and set(_names(pair)) & changed
        for pair in matching.pairs
    )
    queries = {
        (pair.target.stack, pair.target.block)
        for pair in matching.pairs
        if pair.target.role == "embedding.relative" and set(_names(pair)) & changed
    }

    def wanted(pair: SitePair) -> bool:
        site = pair.target
        if site.kind == "block":
            return tables and site.block == 0
        relative = site.role == "attention.query" and (site.stack, site.block) in queries
        return relative or bool(set(_names(pair)) & changed)

    return Matching(
        tuple(pair for pair in matching.pairs if wanted(pair)), matching.unmatched, matching.depths
    )


def _names(pair: SitePair) -> list[str]:
    return [name for site, _ in pair.sources for name in (site.weight, site.bias) if name is not None]


def other_depth(matching: Matching) -> bool:
    return any(there != here for there, here in matching.depths.values())
