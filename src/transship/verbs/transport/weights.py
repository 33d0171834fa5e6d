"""What the weights of three models say: the update, whether two are kin, and one with an update added."""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from transship.activations import (
    LoadedModel,
    Matching,
    Site,
    SitePair,
    Unmatched,
    parameter_names,
    read_bias,
    read_weight,
)
from transship.activations.loading import resting, values_of
from transship.checkpoints import Adapter, Checkpoint, Update
from transship.checkpoints.pairing import translation
from transship.errors import CheckpointError

# A fine-tune moves its weights by a few percent; another model of the same shape lies at about √2.
_STRANGER = 0.7


@dataclass(frozen=True, eq=False)
class SourceUpdate:
    """τ_A by parameter name.

    Attributes:
        dense_tensors: in memory, when the models were given as modules.
        update: lazy, when they were given as checkpoints.
        names: parameter of the source's module → tensor of the checkpoint.
        strays: tensors of the update that no parameter of the module holds.
        resized: tensors of another shape in the fine-tune, such as a head with more classes, and the shapes.
        adapter: whether it came as low-rank factors.
    """

    dense_tensors: dict[str, Tensor] = field(default_factory=dict)
    update: Update | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    strays: tuple[str, ...] = ()
    resized: Mapping[str, str] = field(default_factory=dict)
    adapter: bool = False

    @classmethod
    def between_modules(cls, source: nn.Module, tuned: nn.Module) -> "SourceUpdate":
        """Return the difference of two modules' parameters; names may differ by a prefix."""
        before, after = dict(source.named_parameters()), dict(tuned.named_parameters())
        names = translation(list(before), list(after))
        both = {name: (before[name], after[other]) for name, other in names.items()}
        fits = {name: pair for name, pair in both.items() if pair[0].shape == pair[1].shape}
        dense = {name: (b.detach().float() - a.detach().float()).cpu() for name, (a, b) in fits.items()}
        strays = tuple(name for name in after if name not in set(names.values()))
        resized = {name: _resized(*both[name]) for name in both if name not in fits}
        return cls(dense_tensors=dense, strays=strays, resized=resized)

    @classmethod
    def between_checkpoints(cls, source: Checkpoint, tuned: Checkpoint, model: LoadedModel) -> "SourceUpdate":
        """Return the update of `tuned` (a checkpoint or an adapter) over `source`."""
        adapter = isinstance(tuned, Adapter)
        update = (
            Update.from_adapter(tuned, source) if adapter else Update.between(source, tuned, unmatched="skip")
        )
        names = parameter_names(model, source)
        held = set(names.values())
        strays = tuple(name for name in (*update.names, *update.added) if name not in held)
        resized = {}
        for name, other in (
            {} if adapter else translation(list(source.tensors), list(tuned.tensors))
        ).items():
            if source.info(name).shape != tuned.info(other).shape:
                resized[name] = _resized(source.info(name), tuned.info(other))
        return cls(update=update, names=names, strays=strays, resized=resized, adapter=adapter)

    def __contains__(self, name: str) -> bool:
        return name in self.dense_tensors or (self.update is not None and self.names.get(name) in self.update)

    def dense(self, name: str) -> Tensor:
        """Return the change of one parameter, float32."""
        if self.update is None:
            return self.dense_tensors[name]
        return torch.from_numpy(self.update.dense(self.names[name]))

    def factors(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Return factors whose product is the stored change, or None where it is dense."""
        if self.update is None:
            return None
        factors = self.update.factors(self.names[name])
        if factors is None:
            return None
        up, down = (torch.from_numpy(np.array(factor)) for factor in factors)
        return up, down

    def changed(self, names: Iterable[str]) -> dict[str, float]:
        """Return parameter → norm of its change, for those that changed at all."""
        norms = {name: float(self.dense(name).double().norm()) for name in names if name in self}
        return {name: norm for name, norm in norms.items() if norm > 0}


def _resized(before: Any, after: Any) -> str:
    shapes = [" × ".join(map(str, tensor.shape)) for tensor in (before, after)]
    return f"it is {shapes[0]} in the source and {shapes[1]} in its fine-tune"


def not_finite(where: str, tensor: str) -> CheckpointError:
    """Return the error for weights that hold NaN or infinity."""
    return CheckpointError(
        f"its tensor '{tensor}' holds NaN or infinity",
        where=where,
        fix="give finite weights: the file is damaged, or its training diverged",
    )


def check_relation(update: SourceUpdate, source: nn.Module, names: tuple[str, str]) -> float:
    """Return ‖τ_A‖ / ‖θ_A‖; raise when the two are no base and fine-tune.

    Weights of an unrelated model are about orthogonal and of equal size, which gives √2. An adapter names the
    tensors that it was made for, and may change them by as much as it likes.
    """
    moved = before = 0.0
    for name, parameter in values_of(source):
        if name in update and parameter.ndim >= 2:
            size = float(update.dense(name).double().square().sum())
            if not math.isfinite(size):
                raise not_finite(names[1], update.names.get(name, name))
            moved += size
            before += float(parameter.detach().double().square().sum())
    if before == 0.0:
        raise CheckpointError(
            f"it shares no weights with {names[0]}",
            where=names[1],
            fix="give a fine-tune of SOURCE, or an adapter for it",
        )
    relative = math.sqrt(moved / before)
    if relative > _STRANGER and not update.adapter:
        raise CheckpointError(
            f"its weights differ from {names[0]} by {100 * relative:.0f} %, so it is no fine-tune of it",
            where=names[1],
            fix="check the order of arguments: SOURCE TUNED TARGET",
        )
    if relative == 0.0:
        raise CheckpointError(
            f"its weights equal those of {names[0]}", where=names[1], fix="give the fine-tuned model as TUNED"
        )
    return relative


class Changes:
    """Reads τ_A for pairs of sites."""

    def __init__(self, source: LoadedModel, target: LoadedModel, update: SourceUpdate) -> None:
        self.source, self.target, self.update = source, target, update
        self.parameters = dict(target.model.named_parameters())
        self.source_shapes = {name: tuple(tensor.shape) for name, tensor in source.model.named_parameters()}

    def names(self, pair: SitePair, bias: bool) -> list[str]:
        """Return the source's weights, or biases, that a pair reads."""
        names = [site.bias if bias else site.weight for site, _ in pair.sources]
        return [name for name in names if name is not None]

    def of(self, pair: SitePair, vector: bool, *, flat: bool = False) -> Tensor:
        """Return Σ weight · τ_A over the pair's source sites: layer space is linear."""
        total: Tensor | None = None
        for site, weight in pair.sources:
            name = site.bias if vector else site.weight
            if name is None or name not in self.update:
                continue
            change = self.update.dense(name)
            if not flat or site.kind == "conv":
                change = read_bias(site, change) if vector or change.ndim < 2 else read_weight(site, change)
            total = change * weight if total is None else total + change * weight
        assert total is not None
        return total


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
        partners = {}
        for here in range(len(self.cosines[0]) if self.cosines else 0):
            column = [row[here] for row in self.cosines]
            there = max(range(len(column)), key=column.__getitem__)
            row = self.cosines[there]
            if max(row) == row[here] >= RELATED:
                partners[here] = there
        return partners

    @property
    def related(self) -> bool:
        """Whether most blocks of the shallower model have a near copy in the other."""
        columns = tuple(zip(*self.cosines, strict=True))
        best = sorted(max(row) for row in min(self.cosines, columns, key=len))
        return bool(best) and best[(len(best) - 1) // 2] >= RELATED

    def sentence(self) -> str:
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
        unmatched = [left for left in unmatched if left.side == "target" or left.site.name not in used]
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
    blocks: dict[int, dict[str, Tensor]] = {}
    for site in model.sites:
        if (
            site.stack == stacks[0]
            and site.block is not None
            and site.role in _ROLES
            and site.weight is not None
        ):
            blocks.setdefault(site.block, {})[site.role] = _unit(site, parameters)
    return [blocks[block] for block in sorted(blocks)]


def _unit(site: Site, parameters: Mapping[str, Tensor]) -> Tensor:
    weight = read_weight(site, parameters[site.weight or ""].detach()).float().cpu()
    unit: Tensor = weight / weight.norm().clamp_min(1e-30)
    return unit


def _cosine(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    both = [role for role in a if role in b and a[role].shape == b[role].shape]
    return float(torch.stack([(a[role] * b[role]).sum() for role in both]).mean()) if both else 0.0


@contextlib.contextmanager
def shifted(model: nn.Module, update: Mapping[str, Tensor], strength: float = 1.0) -> Iterator[None]:
    """Add strength × update to the parameters while the block runs; the old values come back bit for bit.

    A parameter that a device map left on disk is shifted on its way to the module that runs.
    """
    parameters = dict(model.named_parameters())
    kept: dict[str, Tensor] = {}
    with contextlib.ExitStack() as stack:
        try:
            with torch.no_grad():
                for name, change in update.items() if strength != 0.0 else ():
                    parameter = parameters[name]
                    if parameter.is_meta:
                        stack.enter_context(_on_its_way(model, name, strength * change.float()))
                        continue
                    kept[name] = parameter.detach().clone()
                    parameter.copy_(parameter.float() + strength * change.to(parameter.device).float())
            yield
        finally:
            with torch.no_grad():
                for name, before in kept.items():
                    parameters[name].copy_(before)


@contextlib.contextmanager
def _on_its_way(model: nn.Module, name: str, change: Tensor) -> Iterator[None]:
    hook, leaf = resting(model, name)
    before = hook.weights_map
    hook.weights_map = _Shifted(before, leaf, change)
    try:
        yield
    finally:
        hook.weights_map = before


class _Shifted(Mapping[str, Tensor]):
    """A module's stored weights, one of them with a change added."""

    def __init__(self, stored: Any, leaf: str, change: Tensor) -> None:
        self.stored, self.leaf, self.change = stored, leaf, change

    def __getitem__(self, name: str) -> Tensor:
        value: Tensor = self.stored[name]
        if name != self.leaf:
            return value
        return (value.float() + self.change.to(value.device)).to(value.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)
