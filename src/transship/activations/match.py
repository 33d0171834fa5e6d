"""Which site of one model corresponds to which of another: by stack, role and block."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from transship.activations.families import STACK_PARTNERS
from transship.activations.finding import find_sites
from transship.activations.sites import Site
from transship.errors import MatchError, OptionError
from transship.types import Depth


@dataclass(frozen=True)
class SitePair:
    """A target site and the source sites that stand for it, with weights that sum to 1.

    One source site where depths are equal; two neighbours where the target's block falls between two of the
    source's.
    """

    target: Site
    sources: tuple[tuple[Site, float], ...]

    @property
    def name(self) -> str:
        """The target site's name, unique in a matching."""
        return self.target.name

    @property
    def source(self) -> Site:
        """The source site of largest weight, the earlier one of equals."""
        return max(self.sources, key=lambda weighted: weighted[1])[0]


@dataclass(frozen=True)
class Unmatched:
    """A site without a partner, the model that it is in, and why."""

    side: Literal["source", "target"]
    site: Site
    reason: str


@dataclass(frozen=True)
class Matching:
    """The pairs in the target's order, and what has no partner.

    Attributes:
        pairs: one per target site that has a partner.
        unmatched: sites of either model that are in no pair, with the reason.
        depths: stack of the target → (blocks in the source, blocks in the target).
    """

    pairs: tuple[SitePair, ...]
    unmatched: tuple[Unmatched, ...]
    depths: Mapping[str, tuple[int, int]]

    def __getitem__(self, name: str) -> SitePair:
        for pair in self.pairs:
            if pair.name == name:
                return pair
        raise MatchError(
            f"no pair is named '{name}'", where="matching", fix="names are stack.block.role of the target"
        )


def match_sites(
    source: Any,
    target: Any,
    *,
    depth: Depth = "interpolate",
) -> Matching:
    """Match two models, or two lists of sites.

    Args:
        source: a model (LoadedModel, nn.Module) or its sites.
        target: likewise.
        depth: what to do with stacks of other depth. `interpolate`: target block j of L_B stands at
            p = j (L_A − 1)/(L_B − 1) between source blocks ⌊p⌋ and ⌈p⌉, weights (1 − f, f); `nearest`: the
            closer one (the earlier of two); `skip`: block j with block j, and those beyond have no partner.
    """
    sites_a, sites_b = (
        list(model) if isinstance(model, Sequence) else find_sites(model) for model in (source, target)
    )
    stacks_a, stacks_b = (list(dict.fromkeys(site.stack for site in sites)) for sites in (sites_a, sites_b))
    partners = _pair_stacks(stacks_a, stacks_b)
    index = {(site.stack, site.block, site.role): site for site in sites_a}
    blocks_a, blocks_b = _depths(sites_a), _depths(sites_b)
    pairs: list[SitePair] = []
    unmatched: list[Unmatched] = []
    for site in sites_b:
        stack = partners.get(site.stack)
        if stack is None:
            unmatched.append(Unmatched("target", site, f"the source has no stack like '{site.stack}'"))
            continue
        counts = blocks_a.get(stack, 0), blocks_b.get(site.stack, 0)
        wanted = [(None, 1.0)] if site.block is None else block_weights(site.block, *counts, depth=depth)
        candidates = [(index.get((stack, block, site.role)), weight) for block, weight in wanted]
        sources = tuple((partner, weight) for partner, weight in candidates if partner is not None)
        if sources and len(sources) == len(candidates):
            pairs.append(SitePair(site, sources))
        else:
            unmatched.append(Unmatched("target", site, _reason(site, stack, sites_a, counts, "source")))
    used = {partner.name for pair in pairs for partner, _ in pair.sources}
    unmatched += _unused([site for site in sites_a if site.name not in used], sites_b, partners, blocks_a)
    if not any(pair.target.kind in ("linear", "block", "conv") for pair in pairs):
        raise MatchError(
            "the two models have no linear map with the same role",
            where="matching",
            fix="choose models of related families",
        )
    depths = {here: (blocks_a.get(there, 0), blocks_b.get(here, 0)) for here, there in partners.items()}
    return Matching(tuple(pairs), tuple(unmatched), depths)


def _unused(
    sites: Sequence[Site], targets: Sequence[Site], partners: Mapping[str, str], depths: Mapping[str, int]
) -> list[Unmatched]:
    """Return why sites of the source stand for no site of the target; partners: target → source stack."""
    back, others = {there: here for here, there in partners.items()}, _depths(targets)
    unmatched = []
    for site in sites:
        here = back.get(site.stack)
        reason = f"the target has no stack like '{site.stack}'"
        if here is not None:
            counts = others.get(here, 0), depths.get(site.stack, 0)
            reason = _reason(site, here, targets, counts, "target")
        unmatched.append(Unmatched("source", site, reason))
    return unmatched


def block_weights(
    block: int, source: int, target: int, *, depth: Depth = "interpolate"
) -> list[tuple[int, float]]:
    """Return the source blocks that stand for target block `block`, weights summing to 1; [] for none."""
    if depth not in ("interpolate", "nearest", "skip"):
        raise OptionError(
            f"there is no depth '{depth}'", where="depth", fix="choose interpolate, nearest or skip"
        )
    if source < 1 or (depth == "skip" and block >= source):
        return []
    if source == target or depth == "skip":
        return [(block, 1.0)]
    # a single target block stands for the middle of the source
    numerator, denominator = (block * (source - 1), target - 1) if target > 1 else (source - 1, 2)
    low, rest = divmod(numerator, denominator)
    fraction = rest / denominator
    if depth == "nearest":
        return [(low if fraction <= 0.5 else low + 1, 1.0)]
    return [(low, 1.0)] if rest == 0 else [(low, 1.0 - fraction), (low + 1, fraction)]


def _depths(sites: Sequence[Site]) -> dict[str, int]:
    depths: dict[str, int] = defaultdict(int)
    for site in sites:
        if site.block is not None:
            depths[site.stack] = max(depths[site.stack], site.block + 1)
    return dict(depths)


def _pair_stacks(source: Sequence[str], target: Sequence[str]) -> dict[str, str]:
    """Return target stack → source stack: by name, and `text` stands for `encoder` and so on."""
    paired = {name: name for name in target if name in source}
    for name in target:
        if name in paired:
            continue
        for candidate in STACK_PARTNERS.get(name, ()):
            if candidate in source and candidate not in paired.values():
                paired[name] = candidate
                break
    return paired


def _reason(site: Site, stack: str, others: Sequence[Site], counts: tuple[int, int], other: str) -> str:
    where = f"the {other}'s stack '{stack}'" if stack else f"the {other}"
    if not any(partner.role == site.role and partner.stack == stack for partner in others):
        return f"{where} has no {site.role}"
    if site.block is not None and counts[0] != counts[1]:
        return (
            f"{where} has {counts[0]} blocks against {counts[1]}, and none that stands for block {site.block}"
        )
    return f"{where} has no {site.role} in every block that stands for this one"
