"""Where linear maps act in a model: found from the module tree, named by role and block."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import Tensor, nn

from transship.activations import families
from transship.errors import MatchError

# a weight at rest is a numpy array, a weight at work a Tensor: both slice and transpose alike
Weight = TypeVar("Weight")


@dataclass(frozen=True)
class Part:
    """The rows of a fused weight's output axis that belong to one map.

    The axis is `groups` runs of `period` rows; the part has rows `start` to `stop` of each run.
    """

    groups: int
    period: int
    start: int
    stop: int

    @property
    def width(self) -> int:
        """Rows in the part."""
        return self.groups * (self.stop - self.start)

    def slices(self) -> Iterator[tuple[slice, slice]]:
        """Yield (rows in the fused weight, rows in the part), run by run."""
        size = self.stop - self.start
        for group in range(self.groups):
            first = group * self.period + self.start
            yield slice(first, first + size), slice(group * size, (group + 1) * size)

    def columns(self, rows: Tensor) -> Tensor:
        """Return the part's columns of activations `rows` [tokens, groups·period] as [tokens, width]."""
        if self.groups == 1:
            return rows[:, self.start : self.stop]
        runs = rows.reshape(rows.shape[0], self.groups, self.period)
        return runs[:, :, self.start : self.stop].reshape(rows.shape[0], self.width)


@dataclass(frozen=True)
class Site:
    """A place where a linear map acts.

    Attributes:
        path: the module's path in the model.
        role: what it does: `attention.query`, `mlp.in`, `norm.final`, `embedding.token`, `head`, …; the relative
            module name where no role is known.
        block: number of its block in the stack, or None outside of blocks.
        stack: `text`, `vision`, `encoder` or `decoder`; empty where the model has no such thing.
        kind: linear, norm, scale, embedding, conv, parameter (a tensor without a module) or block (the residual stream
            that enters and leaves a block: no weight of its own).
        in_width: width of what enters; for an embedding the number of its rows, for a convolution channels × kernel.
        out_width: width of what leaves.
        weight: name of the weight among the model's parameters.
        bias: name of the bias.
        transposed: the weight is stored as (in, out).
        part: which rows of a fused weight, bias and output it is.
        tied_to: name of the parameter that is the same tensor and comes first in the model.
        functional: the module uses the weight without a submodule (nn.MultiheadAttention).
    """

    path: str
    role: str
    block: int | None
    stack: str
    kind: str
    in_width: int
    out_width: int
    weight: str | None = None
    bias: str | None = None
    transposed: bool = False
    part: Part | None = None
    tied_to: str | None = None
    functional: bool = False

    @property
    def name(self) -> str:
        """Stack, block and role, as reports show it: `text.3.attention.query`."""
        return ".".join(
            str(piece) for piece in (self.stack, self.block, self.role) if piece not in ("", None)
        )


def find_sites(model: Any, config: Any = None) -> list[Site]:
    """Return the sites of `model` (a LoadedModel or any nn.Module) in the order of its module tree.

    A model without recognised blocks works by module names: the role is the path, or, in a list of equal modules,
    the path within the element, whose number is the block.
    """
    module: nn.Module = getattr(model, "model", model) if not isinstance(model, nn.Module) else model
    config = config if config is not None else getattr(module, "config", None)
    return _Finder(module, config).sites()


def read_weight(site: Site, weight: Weight) -> Weight:
    """Return the site's (out, in) matrix of a stored weight, fused or transposed as it may be; a view where possible.

    Works on numpy arrays and Tensors. A convolution's kernel is flattened into the in axis.
    """
    stored: Any = weight
    if stored.ndim > 2:
        stored = stored.reshape(stored.shape[0], -1)
    return _take(site.part, stored.T if site.transposed else stored)


def read_bias(site: Site, bias: Weight) -> Weight:
    """Return the site's part of a stored bias, or of any vector along the output axis."""
    return _take(site.part, bias)


def write_weight(site: Site, weight: Weight, value: Weight) -> None:
    """Put the (out, in) matrix `value` into the site's place of the stored `weight`, in place."""
    stored: Any = weight
    matrix: Any = value
    if stored.ndim > 2:
        stored[...] = matrix.reshape(stored.shape)
    else:
        _put(site, stored.T if site.transposed else stored, matrix)


def write_bias(site: Site, bias: Weight, value: Weight) -> None:
    """Put `value` into the site's place of a stored bias, in place."""
    _put(site, bias, value)


def split_fused(sites: Sequence[Site], weight: Weight) -> dict[str, Weight]:
    """Return role → (out, in) matrix for the sites that share one stored weight."""
    return {site.role: read_weight(site, weight) for site in sites}


def fuse(sites: Sequence[Site], parts: Mapping[str, Weight], like: Weight) -> Weight:
    """Return a weight of the form of `like` whose parts are `parts`; the inverse of `split_fused`."""
    fused: Any = like.clone() if isinstance(like, Tensor) else like.copy()  # type: ignore[attr-defined]
    for site in sites:
        write_weight(site, fused, parts[site.role])
    result: Weight = fused
    return result


def fused_groups(sites: Sequence[Site]) -> dict[str, list[Site]]:
    """Return parameter name → the sites that are parts of it, for every fused weight."""
    groups: dict[str, list[Site]] = defaultdict(list)
    for site in sites:
        if site.part is not None and site.weight is not None:
            groups[site.weight].append(site)
    return dict(groups)


def _take(part: Part | None, stored: Any) -> Any:
    if part is None or _alone(part, stored):
        return stored
    if part.groups == 1:
        return stored[part.start : part.stop]
    runs = stored.reshape(part.groups, part.period, *stored.shape[1:])[:, part.start : part.stop]
    return runs.reshape(part.width, *stored.shape[1:])


def _alone(part: Part, stored: Any) -> bool:
    """Return whether the stored tensor is the part alone: nn.MultiheadAttention may fuse its biases only."""
    return bool(stored.shape[0] != part.groups * part.period and stored.shape[0] == part.width)


def _put(site: Site, stored: Any, value: Any) -> None:
    part = None if site.part is None or _alone(site.part, stored) else site.part
    width = stored.shape[0] if part is None else part.width
    if tuple(value.shape) != (width, *stored.shape[1:]):
        raise MatchError(
            f"a value of shape {tuple(value.shape)} does not fit {(width, *stored.shape[1:])}",
            where=site.name,
            fix="give the site's own (out, in) matrix",
        )
    if part is None:
        stored[...] = value
    else:
        for there, here in part.slices():
            stored[there] = value[here]


def _first(table: Sequence[tuple[str, str]], path: str) -> str | None:
    return next((role for pattern, role in table if re.search(pattern, path)), None)


@dataclass(frozen=True)
class _Leaf:
    """A module with parameters of its own, or a parameter that hangs on a container."""

    path: str
    kind: str
    module: nn.Module
    parameter: str | None = None


class _Finder:
    """One walk over a module tree."""

    def __init__(self, model: nn.Module, config: Any) -> None:
        self.model, self.config = model, config
        self.modules = dict(model.named_modules())
        self.leaves = [leaf for path, module in self.modules.items() for leaf in _leaves(path, module)]
        self.blocks = self._find_blocks()  # block path → (group, number)
        self.stacks = self._name_stacks()  # group → stack
        self.canonical = {name: first for first, names in _tied(model).items() for name in names[1:]}

    def sites(self) -> list[Site]:
        found: list[Site] = []
        for leaf in self.leaves:
            found.extend(self._sites_of(leaf))
        found.extend(self._block_sites(found))
        return _distinct(found)

    def _find_blocks(self) -> dict[str, tuple[str, int]]:
        contents: dict[str, set[str]] = defaultdict(set)
        for leaf in self.leaves:
            for prefix in _numbered_prefixes(leaf.path):
                relative = leaf.path[len(prefix) + 1 :]
                contents[prefix].add(_role(relative, leaf, None).split(".")[0])
        found = [prefix for prefix in self.modules if {"attention", "mlp"} <= contents.get(prefix, set())]
        innermost = [path for path in found if not any(other.startswith(path + ".") for other in found)]
        return _number(innermost or self._equal_elements())

    def _equal_elements(self) -> list[str]:
        """Elements of lists of one class with children: what a block is where no attention is recognised."""
        found = []
        for path, module in self.modules.items():
            elements = list(module.children()) if isinstance(module, nn.ModuleList) else []
            if len({type(element) for element in elements}) == 1 and any(elements[0].children()):
                found.extend(f"{path}.{index}".lstrip(".") for index in range(len(elements)))
        return [path for path in found if not any(path.startswith(other + ".") for other in found)]

    def _name_stacks(self) -> dict[str, str]:
        groups = list(dict.fromkeys(group for group, _ in self.blocks.values()))
        if len(groups) > 1:
            words = [_first(families.STACK_WORDS, group) or group for group in groups]
            return dict(zip(groups, words if len(set(words)) == len(words) else groups, strict=True))
        roles = {
            _first(families.OUTER_ROLES, leaf.path)
            for leaf in self.leaves
            if leaf.kind in ("conv", "embedding") and not self._block_of(leaf.path)
        }
        name = "vision" if "embedding.patch" in roles else "text" if "embedding.token" in roles else ""
        return dict.fromkeys(groups, name)

    def _block_of(self, path: str) -> str | None:
        return next((prefix for prefix in _numbered_prefixes(path) if prefix in self.blocks), None)

    def _stack_of(self, path: str, block: str | None) -> str:
        if block is not None:
            return self.stacks[self.blocks[block][0]]
        names = list(self.stacks.values())
        if len(set(names)) <= 1:
            return names[0] if names else ""
        word = _first(families.STACK_WORDS, path)
        if word is None and "head" in (_first(families.OUTER_ROLES, path) or "") and "decoder" in names:
            return "decoder"
        return word if word in names else ""

    def _sites_of(self, leaf: _Leaf) -> Iterator[Site]:
        block = self._block_of(leaf.path)
        relative = leaf.path if block is None else leaf.path[len(block) + 1 :]
        base = Site(
            path=leaf.path,
            role=_role(relative, leaf, self.modules.get(block) if block is not None else None),
            block=None if block is None else self.blocks[block][1],
            stack=self._stack_of(leaf.path, block),
            kind=leaf.kind,
            in_width=0,
            out_width=0,
        )
        if isinstance(leaf.module, nn.MultiheadAttention) and leaf.parameter is None:
            yield from self._attention_sites(base, leaf.module, relative)
            return
        base = self._with_parameters(base, leaf)
        fusion = self._fusion(relative) if leaf.kind == "linear" else None
        parts = self._parts(fusion, base.out_width) if fusion else None
        if parts is None:
            yield base
            return
        for role, part in parts:
            yield replace(base, role=_crossed(role, relative), part=part, out_width=part.width)

    def _with_parameters(self, site: Site, leaf: _Leaf) -> Site:
        if leaf.parameter is not None:
            tensor = getattr(leaf.module, leaf.parameter)
            return replace(
                site,
                weight=leaf.path,
                in_width=tensor.numel() // tensor.shape[-1] if tensor.ndim else 1,
                out_width=tensor.shape[-1] if tensor.ndim else 1,
                tied_to=self.canonical.get(leaf.path),
            )
        names = {name for name, _ in leaf.module.named_parameters(recurse=False)}
        prefix = f"{leaf.path}." if leaf.path else ""
        own = "weight" if "weight" in names else min(names)
        tensor = getattr(leaf.module, own)
        transposed = leaf.kind == "linear" and type(leaf.module).__name__ == "Conv1D"
        in_width, out_width = _widths(leaf.kind, tuple(tensor.shape), transposed)
        return replace(
            site,
            weight=prefix + own,
            bias=f"{prefix}bias" if "bias" in names else None,
            transposed=transposed,
            in_width=in_width,
            out_width=out_width,
            tied_to=self.canonical.get(prefix + own),
        )

    def _attention_sites(self, base: Site, module: nn.MultiheadAttention, relative: str) -> Iterator[Site]:
        """Sites of nn.MultiheadAttention's own projections; its out_proj is a module and found as one."""
        width = module.embed_dim
        prefix = f"{base.path}." if base.path else ""
        bias = f"{prefix}in_proj_bias" if module.in_proj_bias is not None else None
        in_widths = {"query": width, "key": module.kdim, "value": module.vdim}
        for index, (name, in_width) in enumerate(in_widths.items()):
            fused = module.in_proj_weight is not None
            yield replace(
                base,
                role=_crossed(f"attention.{name}", f"{relative}."),
                kind="linear",
                in_width=in_width,
                out_width=width,
                weight=prefix + ("in_proj_weight" if fused else f"{name[0]}_proj_weight"),
                bias=bias,
                part=Part(1, 3 * width, index * width, (index + 1) * width),
                functional=True,
            )

    def _fusion(self, relative: str) -> families.Fusion | None:
        kind = getattr(self.config, "model_type", "")
        for fusion in families.FUSIONS:
            fits = not fusion.model_types or kind in fusion.model_types
            fits = fits and all(getattr(self.config, field, None) == value for field, value in fusion.when)
            if fits and re.search(fusion.pattern, relative):
                return fusion
        return None

    def _parts(self, fusion: families.Fusion, total: int) -> list[tuple[str, Part]] | None:
        """Return the parts of a fused output of `total` rows, or None where the counts do not add up."""
        groups = self._count(fusion.groups) or 1
        period = total // groups
        lengths = [
            period // len(fusion.parts) if length == "rest" else self._count(length)
            for _, length in fusion.parts
        ]
        if groups * sum(lengths) != total:
            return None
        starts = [sum(lengths[:index]) for index in range(len(lengths))]
        return [
            (role, Part(groups, period, start, start + length))
            for (role, _), start, length in zip(fusion.parts, starts, lengths, strict=True)
        ]

    def _count(self, expression: str) -> int:
        product = 1
        for name in expression.split("*"):
            product *= 1 if name == "one" else self._config_number(name)
        return product

    def _config_number(self, name: str) -> int:
        if name == "heads_per_kv":
            return self._config_number("heads") // max(1, self._config_number("kv_heads"))
        for field in families.CONFIG_NAMES[name]:
            value = getattr(self.config, field, None)
            if isinstance(value, int):
                return value
        if name == "kv_heads":
            # multi-query models that name no count have one pair of key and value
            return 1 if getattr(self.config, "multi_query", False) else self._config_number("heads")
        if name == "head":
            return self._config_number("width") // max(1, self._config_number("heads"))
        return 0

    def _block_sites(self, found: Sequence[Site]) -> Iterator[Site]:
        """The residual stream at every block; its width is what the block's first map reads, its last one writes."""
        for path, (group, number) in self.blocks.items():
            inside = [site for site in found if site.path.startswith(path + ".") and site.kind == "linear"]
            if inside:
                ins = [site for site in inside if site.role == "attention.query"] or inside[:1]
                outs = [site for site in inside if site.role in ("mlp.out", "attention.out")] or inside[-1:]
                yield Site(
                    path, "block", number, self.stacks[group], "block", ins[0].in_width, outs[-1].out_width
                )


def _leaves(path: str, module: nn.Module) -> Iterator[_Leaf]:
    own = dict(module.named_parameters(recurse=False))
    if not own:
        return
    kind = _kind(module, own)
    if kind != "parameter":
        yield _Leaf(path, kind, module)
        return
    for name in own:
        yield _Leaf(f"{path}.{name}".lstrip("."), "parameter", module, name)


def _kind(module: nn.Module, own: Mapping[str, Tensor]) -> str:
    weight = own.get("weight")
    if isinstance(module, nn.MultiheadAttention):
        return "linear"
    if isinstance(module, nn.Embedding):
        return "embedding"
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return "conv"
    if weight is not None and weight.ndim == 2:
        return "linear"
    if weight is not None and weight.ndim == 1 and "norm" in type(module).__name__.lower():
        return "norm"
    if len(own) == 1 and next(iter(own.values())).ndim == 1 and "scale" in type(module).__name__.lower():
        return "scale"
    return "parameter"


def _widths(kind: str, shape: tuple[int, ...], transposed: bool) -> tuple[int, int]:
    if kind in ("norm", "scale"):
        return shape[0], shape[0]
    if kind == "embedding" or transposed:
        return shape[0], shape[1]
    if kind == "conv":
        in_width = 1
        for size in shape[1:]:
            in_width *= size
        return in_width, shape[0]
    return shape[1], shape[0]


def _numbered_prefixes(path: str) -> Iterator[str]:
    """Yield the prefixes of `path` that end in a number, innermost first."""
    pieces = path.split(".")
    for end in range(len(pieces) - 1, 0, -1):
        if pieces[end - 1].isdigit():
            yield ".".join(pieces[:end])


def _number(paths: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Number the blocks of every list; nested lists (stages of blocks) count through."""
    counts: Counter[str] = Counter()
    numbered = {}
    for path in paths:
        group = ".".join(piece for piece in path.split(".") if not piece.isdigit())
        numbered[path] = (group, counts[group])
        counts[group] += 1
    return numbered


def _crossed(role: str, relative: str) -> str:
    crosses = role.startswith("attention.") and re.search(families.CROSS_ATTENTION, relative)
    return f"cross_{role}" if crosses else role


def _role(relative: str, leaf: _Leaf, block: nn.Module | None) -> str:
    """Return the role of a leaf from its path relative to its block; the path itself where none is known."""
    if leaf.kind == "scale" or (leaf.parameter and _first(families.SCALE_ROLES, relative)):
        return _first(families.SCALE_ROLES, relative) or relative
    if leaf.kind == "norm" and block is not None:
        return _norm_role(relative, block)
    crosses = re.search(families.CROSS_ATTENTION, relative)
    attends = crosses or re.search(families.ATTENTION, relative)
    if leaf.kind == "linear" and isinstance(leaf.module, nn.MultiheadAttention):
        return "attention.query"
    if leaf.kind == "linear" and relative != leaf.path:
        if any(re.search(fusion.pattern, relative) for fusion in families.FUSIONS):
            return "attention.query" if attends else "mlp.in"
        if attends:
            part = _first(families.ATTENTION_ROLES, relative)
            return _crossed(f"attention.{part}", relative) if part else relative
        role = _first(families.MLP_ROLES, relative)
        numbered = relative.rsplit(".", 1)[-1].isdigit()
        return role if role and (not numbered or re.search(families.MLP, relative)) else relative
    return _first(families.OUTER_ROLES, relative) or relative or "linear"


def _norm_role(relative: str, block: nn.Module) -> str:
    role = _first(families.NORM_ROLES, relative)
    if role is None and "." in relative:
        # a norm beside the one part it serves, as T5 has them
        parent = block.get_submodule(relative.rsplit(".", 1)[0])
        beside = " ".join(name for name, _ in parent.named_children())
        if re.search(families.CROSS_ATTENTION.replace(r"(\.|$)", ""), beside):
            role = "norm.cross_attention_in"
        elif re.search(families.ATTENTION.replace(r"(\.|$)", ""), beside):
            role = "norm.attention_in"
        elif re.search(families.MLP.replace(r"(\.|$)", ""), beside):
            role = "norm.mlp_in"
    if role and getattr(block, "norm_first", None) is False:
        role = role.replace("_in", "_out")
    return role or relative


def _tied(model: nn.Module) -> dict[str, list[str]]:
    """Return first name → all names of one parameter, for those that have several."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return {group[0]: group for group in names.values() if len(group) > 1}


def _distinct(found: Sequence[Site]) -> list[Site]:
    """Make names unique: where two sites of a block have one role (experts, stages), the path tells them apart."""
    counts = Counter(site.name for site in found)
    return [
        site if counts[site.name] == 1 else replace(site, role=f"{site.role}:{site.path}") for site in found
    ]
