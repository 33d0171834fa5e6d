"""Which unit of the source is which of the target: permutations found from the weights of two models of one
shape.

Units form groups: the residual stream (one group, or one per stretch between two additions), the heads of
every attention, the neurons of every MLP. A weight touches at most one group per axis. Coordinate descent
visits the groups in a drawn order; with all others fixed, the best permutation of a group is a linear
assignment (Ainsworth et al., "Git Re-Basin"; attention in two phases after TransFusion). Convention:
permuted = source[order], order[i] is the source's unit at the target's place i.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from transship.activations import LoadedModel, Site, read_bias, read_weight
from transship.numerics import derive_seed

Orders = dict[str, Int[Tensor, " units"]]
Reader = Callable[[str], Tensor]


@dataclass(frozen=True)
class Axes:
    """The groups that the two axes of a site's weight belong to; None where an axis is not permuted."""

    out: str | None
    into: str | None


@dataclass(frozen=True, eq=False)
class _Weight:
    """One tensor of both models, as (out, in) or (out,), and the groups of its axes."""

    source: Tensor
    target: Tensor
    groups: tuple[str | None, ...]


def site_axes(site: Site, residual: str, last: int) -> Axes:
    """Return the groups of a site: `residual` shared, or segments named by block and place; `last` is the
    block count.
    """
    stack, role = site.stack, site.role
    cross = role.startswith("cross_")

    def stream(block: int, place: int) -> str:
        if residual == "shared":
            return f"{stack}.residual"
        steps = 3 if stack == "decoder" else 2
        return f"{stack}.residual.{block * steps + place}"

    if site.block is None:
        if role == "norm.final" or _in_tail(role):
            return Axes(stream(last, 0) if role == "norm.final" else None, stream(last, 0))
        return Axes(stream(0, 0), None)
    block = site.block
    after_attention = 1
    after_cross = 2 if stack == "decoder" else 1
    after_mlp = 3 if stack == "decoder" else 2
    entering = {"attention": 0, "cross_attention": 1, "mlp": after_cross}
    leaving = {"attention": after_attention, "cross_attention": after_cross, "mlp": after_mlp}
    if role.startswith(("norm.", "scale.")):
        part, _, side = role.partition(".")[2].rpartition("_")
        part = part or role.partition(".")[2]
        if part not in entering:
            return Axes(None, None)
        place = leaving[part] if side == "out" or role.startswith("scale.") else entering[part]
        return Axes(stream(block, place), None)
    part, _, which = role.partition(".")
    if part not in entering:
        return Axes(None, None)
    inner = f"{stack}.{block}.{part}"
    if which == "out":
        return Axes(stream(block, leaving[part]), inner)
    into: str | None = stream(block, entering[part])
    if cross and which in ("key", "value"):
        into = "encoder.residual" if residual == "shared" else None
    return Axes(inner, into)


def _in_tail(role: str) -> bool:
    """Whether a site stands behind the last block, between the stream and the outputs."""
    return role in ("head", "projection", "pooler") or role.startswith("head.transform")


def tail_axes(sites: Sequence[Site], axes: Mapping[str, Axes]) -> dict[str, Axes]:
    """Return the groups of the sites behind the last block, where a head may not read the stream itself.

    A pooler or a transform makes units of its own, which the head reads in their order. A projection leads
    into a space that others are compared in, so its units stay where they are, and so does what reads them.
    What else stands behind a first transform (its norm, a decoder tied to the embeddings) is left alone.
    """
    tail = [site for site in sites if site.block is None and _in_tail(site.role)]
    inner = [site for site in tail if site.kind == "linear" and site.role != "head"]
    groups: dict[str, Axes] = {}
    transformed: set[str] = set()
    for site in tail:
        if site.role.startswith("head.transform"):
            first = site.kind == "linear" and site.stack not in transformed
            groups[site.name] = Axes(None, axes[site.name].into) if first else Axes(None, None)
            transformed.update([site.stack] if first else [])
    for head in (site for site in tail if site.role == "head"):
        fitting = [site for site in inner if site.out_width == head.in_width]
        feeder = next((site for site in reversed(fitting) if site.stack == head.stack), None)
        feeder = feeder or next(iter(reversed(fitting)), None)
        if feeder is None:
            continue
        units = None if feeder.role == "projection" else f"{feeder.stack}.{feeder.role}"
        groups[head.name] = Axes(None, units)
        groups[feeder.name] = Axes(units, groups.get(feeder.name, axes[feeder.name]).into)
    return groups


def match_units(
    sites: Iterable[Site],
    source: Reader,
    target: Reader,
    *,
    heads: int | Callable[[str], int],
    residual: str = "shared",
    sweeps: int = 100,
    seed: int = 0,
) -> tuple[Orders, dict[str, Axes]]:
    """Return the order of every group, and the axes of every site by name.

    Args:
        sites: of either model; both have the same ones.
        source: reads a parameter of the source by name.
        target: likewise.
        heads: attention heads; by stack where a model's towers differ.
        residual: `shared` or `segments`.
        sweeps: most passes over all groups.
        seed: draws the order of visits.
    """
    sites = list(sites)
    depths: dict[str, int] = defaultdict(int)
    for site in sites:
        depths[site.stack] = max(depths[site.stack], 0 if site.block is None else site.block + 1)
    axes = {site.name: site_axes(site, residual, depths[site.stack]) for site in sites}
    axes |= tail_axes(sites, axes)
    weights = list(_weights(sites, axes, source, target))
    if residual == "segments":
        weights.extend(_shortcuts(weights))
    touching: dict[str, list[tuple[_Weight, int]]] = defaultdict(list)
    for weight in weights:
        for axis, group in enumerate(weight.groups):
            if group is not None:
                touching[group].append((weight, axis))
    orders = {
        group: torch.arange(weight.target.shape[axis]) for group, [(weight, axis), *_] in touching.items()
    }
    attentions = {group for group in orders if group.endswith("attention")}
    counts = {group: heads(group.split(".")[0]) if callable(heads) else heads for group in attentions}
    matched = {
        group: _match_heads(touching[group], count)
        for group, count in counts.items()
        if count and orders[group].numel() % count == 0
    }
    _descend(orders, touching, matched, sweeps, seed)
    return orders, axes


def _descend(
    orders: Orders,
    touching: Mapping[str, list[tuple[_Weight, int]]],
    matched: Mapping[str, Tensor],
    sweeps: int,
    seed: int,
) -> None:
    """Improve the orders group by group until a sweep changes nothing; `matched` heads stay matched."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "rebasin"))
    for _ in range(sweeps):
        changed, names = False, list(orders)
        for index in torch.randperm(len(names), generator=generator).tolist():
            group = names[index]
            gain = _gain(touching[group], group, orders)
            order = _within_heads(gain, matched[group]) if group in matched else _assign(gain)
            places = torch.arange(len(order))
            before = float(gain[places, orders[group]].sum())
            if float(gain[places, order].sum()) > before + 1e-9 * float(gain.abs().max()):
                orders[group], changed = order, True
        if not changed:
            break


def _weights(
    sites: Iterable[Site], axes: Mapping[str, Axes], source: Reader, target: Reader
) -> Iterable[_Weight]:
    for site in sites:
        groups = axes[site.name]
        if site.weight is None or (groups.out is None and groups.into is None):
            continue
        both = [reader(site.weight).detach().double() for reader in (source, target)]
        if both[0].shape != both[1].shape or not both[0].ndim:  # a single number has no units
            continue
        if site.kind in ("norm", "scale"):
            yield _Weight(both[0], both[1], (groups.out,))
        elif site.kind in ("embedding", "parameter"):
            flat = [tensor.reshape(-1, tensor.shape[-1]).T for tensor in both]
            yield _Weight(flat[0], flat[1], (groups.out, None))
        else:
            matrices = [read_weight(site, tensor) for tensor in both]
            yield _Weight(matrices[0], matrices[1], (groups.out, groups.into))
        if site.bias is not None and groups.out is not None:
            biases = [read_bias(site, reader(site.bias).detach().double()) for reader in (source, target)]
            yield _Weight(biases[0], biases[1], (groups.out,))


def _shortcuts(weights: Iterable[_Weight]) -> Iterable[_Weight]:
    """Identities between consecutive segments of the residual stream: what ties their permutations
    together.
    """
    widths: dict[str, dict[int, int]] = defaultdict(dict)
    for weight in weights:
        for axis, group in enumerate(weight.groups):
            stem, _, number = (group or "").rpartition(".")
            if stem.endswith("residual") and number.isdigit():
                widths[stem][int(number)] = weight.target.shape[axis]
    for stem, by_number in widths.items():
        for before, after in itertools.pairwise(sorted(by_number)):
            identity = torch.eye(by_number[before], dtype=torch.float64)
            yield _Weight(identity, identity, (f"{stem}.{after}", f"{stem}.{before}"))


def _gain(
    touching: Iterable[tuple[_Weight, int]], group: str, orders: Orders
) -> Float[Tensor, "places units"]:
    """gain[i, j] = Σ over weights of ⟨target's slice i, source's slice j with all other axes permuted⟩."""
    total: Tensor | None = None
    for weight, axis in touching:
        moved = weight.source
        for other, name in enumerate(weight.groups):
            if other != axis and name is not None:
                moved = moved.index_select(other, orders[name])
        left = weight.target.movedim(axis, 0).reshape(weight.target.shape[axis], -1)
        right = moved.movedim(axis, 0).reshape(moved.shape[axis], -1)
        product = left @ right.T
        total = product if total is None else total + product
    assert total is not None
    return total


def _assign(gain: Float[Tensor, "places units"]) -> Int[Tensor, " places"]:
    """Return order with the largest Σ gain[i, order[i]]."""
    return torch.from_numpy(linear_sum_assignment(gain.numpy(), maximize=True)[1])


def _match_heads(touching: Iterable[tuple[_Weight, int]], heads: int) -> Int[Tensor, " heads"]:
    """Match heads by the sorted singular values of their slices, which no permutation within or around them
    changes.
    """
    distance = torch.zeros(heads, heads, dtype=torch.float64)
    for weight, axis in touching:
        if len(weight.groups) < 2:
            continue
        spectra = []
        for tensor in (weight.target, weight.source):
            slices = tensor.movedim(axis, 0).reshape(heads, -1, tensor.shape[1 - axis])
            spectra.append(torch.linalg.svdvals(slices))
        distance += torch.cdist(spectra[0], spectra[1])
    return torch.from_numpy(linear_sum_assignment(distance.numpy())[1])


def _within_heads(
    gain: Float[Tensor, "places units"], heads: Int[Tensor, " heads"]
) -> Int[Tensor, " places"]:
    size = gain.shape[0] // len(heads)
    order = torch.empty(gain.shape[0], dtype=torch.int64)
    for place, head in enumerate(heads.tolist()):
        rows, columns = slice(place * size, (place + 1) * size), slice(head * size, (head + 1) * size)
        order[rows] = head * size + _assign(gain[rows, columns])
    return order


def attention_heads(model: LoadedModel, stack: str = "") -> int:
    """Return the number of attention heads that the config names; 0 where it names none.

    Towers may differ: `vision` asks for those of the image tower.
    """
    towers = [getattr(model.config, f"{name}_config", None) for name in ("text", "vision")]
    for part in (model.config, *(reversed(towers) if stack == "vision" else towers)):
        for name in ("num_attention_heads", "num_heads", "n_head", "n_heads"):
            value = getattr(part, name, None)
            if isinstance(value, int):
                return value
    return 0
