"""`collect`, and what it returns: Moments per pair of sites and side, shared where the tensors are.

They are streamed over any number of inputs, in memory of fixed size.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sized
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from transship.activations.batches import Batches, SavedState, run_shared, signature, unit_size
from transship.activations.match import Matching, SitePair, Unmatched, match_sites
from transship.activations.models import load_model
from transship.activations.plan import KINDS, CollectionPlan, Entry, MomentKeeper, Skipped
from transship.activations.sites import Part, Side, Site
from transship.activations.step import StepOptions
from transship.atomic import atomic_folder
from transship.errors import DataError, MatchError, OptionError
from transship.geometry import Moments, load_moments, save_moments
from transship.types import Align

FORMAT = "transship.collected"
VERSION = 1


@dataclass(frozen=True, eq=False)
class CollectedMoments:
    """The Moments of two models over the same inputs.

    Attributes:
        matching: the pairs of sites.
        kept: name → Moments: of pairs (aᵀb), and of one side alone (aᵀa, bᵀb) where these were asked for.
        entries: (pair's name, side) → what in `kept` it is made of; pairs that see one tensor share an entry.
        skipped: sides without Moments.
        inputs: how many inputs were read.
        about: options and model names, as they are saved.
    """

    matching: Matching
    kept: Mapping[str, Moments]
    entries: Mapping[tuple[str, Side], Entry]
    skipped: tuple[Skipped, ...]
    inputs: int
    about: Mapping[str, Any]

    def input(self, pair: str | SitePair, *, normalise: bool = False) -> Moments:
        """Return the Moments of what enters a pair of sites; side a is the source's."""
        return self.of(pair, "input", normalise=normalise)

    def output(self, pair: str | SitePair, *, normalise: bool = False) -> Moments:
        return self.of(pair, "output", normalise=normalise)

    def has(self, pair: str | SitePair, side: Side) -> bool:
        return (_name(pair), side) in self.entries

    def of(self, pair: str | SitePair, side: Side, *, normalise: bool = False) -> Moments:
        """Return the Moments of one side of a pair.

        Where they were kept per source block (`blend=False`), the blocks' are summed with the pair's weights;
        with `normalise` each is first scaled to ‖ab‖ = 1, so that no block owns the sum.
        """
        entry = self.entries.get((_name(pair), side))
        if entry is None:
            reason = next(
                (skip.reason for skip in self.skipped if (skip.pair, skip.side) == (_name(pair), side)), None
            )
            raise MatchError(
                f"its {side} was not collected" + (f": it {reason}" if reason else ""),
                where=_name(pair),
                fix="collect this pair and side",
            )
        total: Moments | None = None
        for (name, weight), aa in zip(entry.moments, entry.aa, strict=True):
            moments = self.kept[name]
            sides = (
                None if aa is None else self.kept[aa].part("aa"),
                None if entry.bb is None else self.kept[entry.bb].part("bb"),
            )
            where = moments.sum_a.device  # a source's own part may lie where its layer does
            moments = moments.with_sides(*(None if side is None else side.to(where) for side in sides))
            if normalise:
                weight /= max(float(moments.part("ab").norm()), 1e-300)
            if len(entry.moments) > 1 or normalise:
                moments = moments.scaled(weight)
            total = moments if total is None else total.__iadd__(moments)
        assert total is not None
        return total

    def shared(self) -> dict[Entry, list[tuple[str, Side]]]:
        """Return every distinct entry with the sides that share it: a map is fitted once for each."""
        groups: dict[Entry, list[tuple[str, Side]]] = {}
        for key, entry in self.entries.items():
            groups.setdefault(entry, []).append(key)
        return groups

    @property
    def rows(self) -> float:
        """The largest number of rows that any Moments count."""
        return max((moments.count for moments in self.kept.values()), default=0.0)

    @property
    def nbytes(self) -> int:
        return sum(moments.nbytes for moments in self.kept.values())

    def __add__(self, other: "CollectedMoments") -> "CollectedMoments":
        """Return the Moments over both sets of inputs."""
        if self.entries != other.entries or set(self.kept) != set(other.kept):
            raise DataError(
                "these Moments are of other pairs of sites",
                where="collected moments",
                fix="add Moments that were collected with the same models and options",
            )
        kept = {name: moments + other.kept[name] for name, moments in self.kept.items()}
        return replace(self, kept=kept, inputs=self.inputs + other.inputs)

    def check(self) -> "CollectedMoments":
        """Return these Moments; raise NumericalError by the site's name where a number is not finite."""
        for name, moments in self.kept.items():
            moments.check(name)
        return self

    def save(self, folder: str | Path, *, force: bool = False) -> None:
        """Write a folder with the Moments and one JSON; beside the target, then renamed."""
        with atomic_folder(Path(folder), force=force) as place:
            self.write(place)

    def write(self, place: Path) -> None:
        save_moments(place / "moments.safetensors", dict(self.kept))
        entries = [[*key, asdict(entry)] for key, entry in self.entries.items()]
        described = {
            "format": FORMAT,
            "version": VERSION,
            "inputs": self.inputs,
            "about": dict(self.about),
            "pairs": [asdict(pair) for pair in self.matching.pairs],
            "unmatched": [asdict(left) for left in self.matching.unmatched],
            "depths": dict(self.matching.depths),
            "entries": entries,
            "skipped": [asdict(skip) for skip in self.skipped],
        }
        (place / "collected.json").write_text(json.dumps(described), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> "CollectedMoments":
        """Read what `save` wrote."""
        place = Path(folder)
        try:
            described = json.loads((place / "collected.json").read_text(encoding="utf-8"))
            if described["format"] != FORMAT or described["version"] > VERSION:
                raise ValueError("another format or a newer version")
            matching = Matching(
                tuple(_pair(pair) for pair in described["pairs"]),
                tuple(
                    Unmatched(left["side"], _site(left["site"]), left["reason"])
                    for left in described["unmatched"]
                ),
                {stack: (depths[0], depths[1]) for stack, depths in described["depths"].items()},
            )
            entries = {(name, side): _entry(entry) for name, side, entry in described["entries"]}
            skipped = tuple(Skipped(**skip) for skip in described["skipped"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"does not hold collected Moments ({error})", where=str(folder), fix="collect them again"
            ) from error
        kept = load_moments(place / "moments.safetensors")
        return cls(matching, kept, entries, skipped, described["inputs"], described["about"])


def _name(pair: str | SitePair) -> str:
    return pair if isinstance(pair, str) else pair.name


def _site(found: Mapping[str, Any]) -> Site:
    part = found["part"]
    return Site(**{**found, "part": None if part is None else Part(**part)})


def _pair(found: Mapping[str, Any]) -> SitePair:
    return SitePair(_site(found["target"]), tuple((_site(site), weight) for site, weight in found["sources"]))


def _entry(found: Mapping[str, Any]) -> Entry:
    moments = tuple((name, weight) for name, weight in found["moments"])
    return Entry(moments, tuple(found["aa"]), found["bb"])


# Tokens per input: with every token, Moments of two base-sized encoders cost more than their forward passes.
DEFAULT_TOKENS = 4


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
    parts: Collection[str] = ("ab",),
    kinds: Collection[str] = KINDS,
    blend: bool = True,
    batch_size: int = 32,
    first_number: int = 0,
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
        tokens_per_input: at most so many tokens of each input, drawn with `seed` and the input's number, the
            same for every site; None for all. Moments cost more than the forward passes when every token
            counts.
        seed: of the draw.
        skip_first: leave out first tokens, whose states are outliers in causal models; None for "if one is
            causal".
        parts: `ab` (the cross moment), `aa`, `bb`.
        kinds: kinds of sites.
        blend: where a target block stands between two source blocks, mix their rows and keep one Moments
            (ab and sums equal the mixed ones exactly); otherwise keep both, and mix when they are read.
        batch_size: inputs per forward pass.
        first_number: the number of the first input, when the inputs are a shard of more.
        folder: keep the state there, to go on after a kill; the same call continues it to the same result.
        save_every: batches between two saved states.
        progress: called with the number of inputs done.

    Processes of one launch share the batches and all return the Moments over all inputs; see `parallel`.

    Sites that share a tensor (q, k and v; a norm's output and what reads it) share its Moments. NaN and Inf
    are errors with the site's name. Memory does not depend on the number of inputs.
    """
    if tokens_per_input is not None and tokens_per_input < 1:
        raise OptionError(
            f"{tokens_per_input} tokens of an input are none",
            where="tokens_per_input",
            fix="give 1 or more, or None for all",
        )
    models = load_model(source), load_model(target)
    matching = match_sites(*models) if matching is None else matching
    first, stream = read_first(inputs)
    options = StepOptions(align=align, tokens_per_input=tokens_per_input, seed=seed, skip_first=skip_first)
    plan = CollectionPlan(*models, matching, options, first, kinds=kinds, blend=blend)
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
    unit = unit_size(inputs, batch_size, tokens_per_input)
    state = None
    if folder is not None:
        unit = min(unit, save_every)
        # rows of a unit are multiplied together, so its size is part of what makes two runs the same
        weights = [signature(model.model) for model in models]
        saved = {**about, "weights": weights, "unit": unit, "names": sorted(kept.moments)}
        state = SavedState(Path(folder), kept, saved, save_every)
        state.resume()
    count = run_shared(
        Batches(stream, batch_size, models[1].length, first_number),
        lambda items: plan.stepper.step(items, kept.buffers),
        kept,
        unit=unit,
        state=state,
        progress=progress,
    )
    return CollectedMoments(matching, kept.moments, plan.entries(kept), plan.skipped, count, about).check()


def read_first(inputs: Iterable[Any]) -> tuple[Any, Iterable[Any]]:
    """Return the first input and all of them; an error when there is none."""
    if hasattr(inputs, "__getitem__") and isinstance(inputs, Sized) and len(inputs):
        return inputs[0], inputs
    stream = iter(inputs)
    for first in stream:
        return first, chain([first], stream)
    raise DataError("there are no inputs", where="data", fix="give at least one input")


def _checked_parts(parts: Collection[str]) -> Collection[str]:
    unknown = sorted(set(parts) - {"aa", "bb", "ab"})
    if unknown:
        raise OptionError(f"there is no part '{unknown[0]}'", where="parts", fix="choose from ab, aa and bb")
    return parts
