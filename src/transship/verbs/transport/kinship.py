"""Whether two models share coordinates: cosines of their weights, block by block."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from transship.activations import LoadedModel, Site, read_weight
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
        partners: target block → (source block of largest cosine, the cosine).
    """

    cosines: tuple[tuple[float, ...], ...]
    partners: dict[int, tuple[int, float]]

    @property
    def related(self) -> bool:
        """Whether most source blocks have a near copy in the target."""
        best = sorted((max(row) for row in self.cosines), reverse=True)
        return bool(best) and best[len(best) // 2] >= RELATED

    def sentence(self) -> str:
        """Say what was found."""
        if not self.cosines:
            return "the two models have blocks of different shapes, so they share no coordinates"
        best = [max(row) for row in self.cosines]
        if not self.related:
            return f"their blocks are strangers: weight cosines of at most {max(best):.2f}"
        pairs = ", ".join(
            f"{max(range(len(row)), key=row.__getitem__)} is like {place} ({max(row):.2f})"
            for place, row in enumerate(self.cosines)
        )
        return f"the models are relatives: of the target's blocks, {pairs} of the source by weight cosines"


def kinship(source: LoadedModel, target: LoadedModel) -> Kinship:
    """Compare all blocks of the first stack that both have."""
    blocks_a, blocks_b = _blocks(source), _blocks(target)
    if not blocks_a or not blocks_b:
        return Kinship((), {})
    first = blocks_a[0].keys() & blocks_b[0].keys()
    if not first or any(blocks_a[0][role].shape != blocks_b[0][role].shape for role in first):
        return Kinship((), {})
    cosines = tuple(tuple(_cosine(a, b) for b in blocks_b) for a in blocks_a)
    partners = {}
    for place in range(len(blocks_b)):
        column = [row[place] for row in cosines]
        best = max(range(len(column)), key=column.__getitem__)
        partners[place] = (best, column[best])
    return Kinship(cosines, partners)


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
