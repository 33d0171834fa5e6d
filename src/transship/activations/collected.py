"""What `collect` returns: Moments per pair of sites and side, shared where the tensors are."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from transship.activations.match import Matching, SitePair, Unmatched
from transship.activations.record import Side
from transship.activations.sites import Part, Site
from transship.atomic import atomic_folder
from transship.errors import DataError, MatchError
from transship.geometry import Moments, load_moments, save_moments

FORMAT = "transship.collected"
VERSION = 1


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
        """Return the Moments of what leaves a pair of sites."""
        return self.of(pair, "output", normalise=normalise)

    def has(self, pair: str | SitePair, side: Side) -> bool:
        """Return whether this side of the pair was collected."""
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
        """The bytes of all accumulators."""
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
        """Write the files into an existing folder."""
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
