"""Whether two models share coordinates: cosines of their weights, block by block."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transship.activations import LoadedModel, Matching, Site, SitePair, Unmatched, read_weight
from transship.activations.loading import values_of

# Random weights of a few thousand entries have cosines of about 0.01; descendants keep well above this.
RELATED = 0.2
_ROLES = ("attention.query", "attention.key", "attention.value", "attention.out", "mlp.in", "mlp.out")


@dataclass(frozen=True)
class Kinship:
    """How alike the weights of two models are.

    Attributes:
        cosines: [source blocks][target blocks], the mean cosine of the linear weights; empty where shapes
            differ.
        stack: the target's stack whose blocks were compared.
    """

    cosines: tuple[tuple[float, ...], ...]
    stack: str = ""

    @property
    def partners(self) -> dict[int, int]:
        """Target block → source block, for pairs that are each other's nearest and no strangers."""
        found = {}
        for here in range(len(self.cosines[0]) if self.cosines else 0):
            column = [row[here] for row in self.cosines]
            there = max(range(len(column)), key=column.__getitem__)
            row = self.cosines[there]
            if max(row) == row[here] >= RELATED:
                found[here] = there
        return found

    @property
    def related(self) -> bool:
        """Whether most blocks of the shallower model have a near copy in the other."""
        columns = tuple(zip(*self.cosines, strict=True))
        best = sorted(max(row) for row in min(self.cosines, columns, key=len))
        return bool(best) and best[(len(best) - 1) // 2] >= RELATED

    def sentence(self) -> str:
        """Say what was found."""
        if not self.cosines:
            return "the two models have blocks of different shapes, so they share no coordinates"
        best = [max(row) for row in self.cosines]
        if not self.related:
            return f"their blocks are strangers: weight cosines of at most {max(best):.2f}"
        pairs = ", ".join(
            f"{here} is like {there} ({self.cosines[there][here]:.2f})"
            for here, there in self.partners.items()
        )
        return f"the models are relatives: of the target's blocks, {pairs} of the source by weight cosines"

    def matched(self, matching: Matching, sites: Sequence[Site]) -> Matching:
        """Return the matching with the compared stack's blocks paired by likeness: each with its near copy,
        or with none. `sites` are the source's.
        """
        partners = self.partners
        named = {site.name: site for site in sites}
        pairs: list[SitePair] = []
        unmatched = list(matching.unmatched)
        for pair in matching.pairs:
            site = pair.target
            if site.stack != self.stack or site.block is None:
                pairs.append(pair)
                continue
            block = partners.get(site.block)
            there = None if block is None else dataclasses.replace(pair.source, block=block).name
            if there in named:
                pairs.append(SitePair(site, ((named[there], 1.0),)))
            else:
                unmatched.append(Unmatched("target", site, "no block of the source is like its block"))
        used = {site.name for pair in pairs for site, _ in pair.sources}
        lost = {
            site.name: site for pair in matching.pairs for site, _ in pair.sources if site.name not in used
        }
        reason = "no block of the target is like its block"
        unmatched = [one for one in unmatched if one.side == "target" or one.site.name not in used]
        unmatched += [Unmatched("source", site, reason) for site in lost.values()]
        return Matching(tuple(pairs), tuple(unmatched), matching.depths)


def kinship(source: LoadedModel, target: LoadedModel) -> Kinship:
    """Compare all blocks of the first stack that both have."""
    blocks_a, blocks_b = _blocks(source), _blocks(target)
    if not blocks_a or not blocks_b:
        return Kinship(())
    first = blocks_a[0].keys() & blocks_b[0].keys()
    if not first or any(blocks_a[0][role].shape != blocks_b[0][role].shape for role in first):
        return Kinship(())
    stack = next(site.stack for site in target.sites if site.kind == "block")
    return Kinship(tuple(tuple(_cosine(a, b) for b in blocks_b) for a in blocks_a), stack)


def _blocks(model: LoadedModel) -> list[dict[str, Tensor]]:
    stacks = [site.stack for site in model.sites if site.kind == "block"]
    if not stacks:
        return []
    parameters = dict(values_of(model.model))
    found: dict[int, dict[str, Tensor]] = {}
    for site in model.sites:
        if (
            site.stack == stacks[0]
            and site.block is not None
            and site.role in _ROLES
            and site.weight is not None
        ):
            found.setdefault(site.block, {})[site.role] = _unit(site, parameters)
    return [found[block] for block in sorted(found)]


def _unit(site: Site, parameters: Mapping[str, Tensor]) -> Tensor:
    weight = read_weight(site, parameters[site.weight or ""].detach()).float().cpu()
    made: Tensor = weight / weight.norm().clamp_min(1e-30)
    return made


def _cosine(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    both = [role for role in a if role in b and a[role].shape == b[role].shape]
    return float(torch.stack([(a[role] * b[role]).sum() for role in both]).mean()) if both else 0.0
