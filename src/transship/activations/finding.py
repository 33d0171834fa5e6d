"""How sites are found: blocks from the shape of the module tree, roles from the tables in `families`.

Of a checkpoint they are found in a module without memory for weights.
"""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from transship.activations import families
from transship.activations.fused import fused_parts, fused_weight
from transship.activations.loading import model_class, quiet, sentences
from transship.activations.roles import Leaf, crossed, first_role, role_of
from transship.activations.sites import Part, Site
from transship.checkpoints import Checkpoint
from transship.checkpoints.claims import check_code
from transship.checkpoints.renaming import held_names
from transship.errors import CheckpointError


def find_sites(model: Any, config: Any = None) -> list[Site]:
    """Return the sites of `model` (a LoadedModel or any nn.Module) in the order of its module tree.

    A model without recognised blocks works by module names: the role is the path, or, in a list of equal
    modules, the path within the element, whose number is the block.
    """
    module: nn.Module = model if isinstance(model, nn.Module) else model.model
    config = config if config is not None else getattr(module, "config", None)
    return _Finder(module, config).sites()


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
        """Return all sites, in the tree's order, the residual streams last."""
        sites: list[Site] = []
        for leaf in self.leaves:
            sites.extend(self._sites_of(leaf))
        sites.extend(self._block_sites(sites))
        return _distinct(sites)

    def _find_blocks(self) -> dict[str, tuple[str, int]]:
        contents: dict[str, set[str]] = defaultdict(set)
        for leaf in self.leaves:
            for prefix in _numbered_prefixes(leaf.path):
                relative = leaf.path[len(prefix) + 1 :]
                contents[prefix].add(role_of(relative, leaf, None).split(".")[0])
        blocks = [prefix for prefix in self.modules if {"attention", "mlp"} <= contents.get(prefix, set())]
        innermost = [path for path in blocks if not any(other.startswith(path + ".") for other in blocks)]
        return _number(self._with_siblings(innermost) or self._equal_elements())

    def _with_siblings(self, blocks: Sequence[str]) -> list[str]:
        """Add the other elements of the blocks' lists: in hybrid models not every block has an attention."""
        lists = {path.rpartition(".")[0] for path in blocks if path.rpartition(".")[2].isdigit()}
        return [
            path
            for path, module in self.modules.items()
            if path in blocks
            or (
                path.rpartition(".")[0] in lists
                and path.rpartition(".")[2].isdigit()
                and next(module.parameters(), None) is not None
            )
        ]

    def _equal_elements(self) -> list[str]:
        """Elements of lists of one class with children: what a block is where no attention is recognised."""
        paths: list[str] = []
        for path, module in self.modules.items():
            elements = list(module.children()) if isinstance(module, nn.ModuleList) else []
            if len({type(element) for element in elements}) == 1 and any(elements[0].children()):
                paths.extend(f"{path}.{index}".lstrip(".") for index in range(len(elements)))
        return [path for path in paths if not any(path.startswith(other + ".") for other in paths)]

    def _name_stacks(self) -> dict[str, str]:
        groups = list(dict.fromkeys(group for group, _ in self.blocks.values()))
        if len(groups) > 1:
            words = [first_role(families.STACK_WORDS, group) or group for group in groups]
            return dict(zip(groups, words if len(set(words)) == len(words) else groups, strict=True))
        roles = {
            "embedding.sound"
            if isinstance(leaf.module, nn.Conv1d)
            else first_role(families.OUTER_ROLES, leaf.path)
            for leaf in self.leaves
            if leaf.kind in ("conv", "embedding") and not self._block_of(leaf.path)
        }
        kinds = {"embedding.patch": "vision", "embedding.token": "text", "embedding.sound": "audio"}
        name = next((word for role, word in kinds.items() if role in roles), "")
        return dict.fromkeys(groups, name)

    def _block_of(self, path: str) -> str | None:
        return next((prefix for prefix in _numbered_prefixes(path) if prefix in self.blocks), None)

    def _stack_of(self, path: str, block: str | None) -> str:
        if block is not None:
            return self.stacks[self.blocks[block][0]]
        names = list(self.stacks.values())
        if len(set(names)) <= 1:
            return names[0] if names else ""
        word = first_role(families.STACK_WORDS, path)
        if word is None and "head" in (first_role(families.OUTER_ROLES, path) or "") and "decoder" in names:
            return "decoder"
        return word if word in names else ""

    def _sites_of(self, leaf: Leaf) -> Iterator[Site]:
        block = self._block_of(leaf.path)
        relative = leaf.path if block is None else leaf.path[len(block) + 1 :]
        base = Site(
            path=leaf.path,
            role=role_of(relative, leaf, self.modules.get(block) if block is not None else None),
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
        config = self._config_of(leaf.path)
        fusion = fused_weight(relative, config) if leaf.kind == "linear" else None
        parts = fused_parts(fusion, base.out_width, config) if fusion else None
        if parts is None:
            yield base
            return
        for role, part in parts:
            yield replace(base, role=crossed(role, relative), part=part, out_width=part.width)

    def _with_parameters(self, site: Site, leaf: Leaf) -> Site:
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
                role=crossed(f"attention.{name}", f"{relative}."),
                kind="linear",
                in_width=in_width,
                out_width=width,
                weight=prefix + ("in_proj_weight" if fused else f"{name[0]}_proj_weight"),
                bias=bias,
                part=Part(1, 3 * width, index * width, (index + 1) * width),
                functional=True,
            )

    def _config_of(self, path: str) -> Any:
        """Return the config of the innermost module around `path` that has one: towers have their own."""
        pieces = path.split(".")
        for end in range(len(pieces), 0, -1):
            config = getattr(self.modules.get(".".join(pieces[:end])), "config", None)
            if getattr(config, "model_type", None):
                return config
        return self.config

    def _block_sites(self, found: Sequence[Site]) -> Iterator[Site]:
        """The residual stream at every block, as wide as what the first map reads and the last one writes."""
        for path, (group, number) in self.blocks.items():
            within = [site for site in found if site.path.startswith(path + ".")]
            inside = [
                site
                for site in within
                if site.kind == "linear" or site.role in ("attention.query", "mlp.out")
            ]
            if inside:
                ins = [site for site in inside if site.role == "attention.query"] or inside[:1]
                outs = [site for site in inside if site.role in ("mlp.out", "attention.out")] or inside[-1:]
                yield Site(
                    path, "block", number, self.stacks[group], "block", ins[0].in_width, outs[-1].out_width
                )


def _leaves(path: str, module: nn.Module) -> Iterator[Leaf]:
    own = dict(module.named_parameters(recurse=False))
    if not own:
        return
    kind = _kind(module, own)
    if kind != "parameter":
        yield Leaf(path, kind, module)
        return
    for name in own:
        yield Leaf(f"{path}.{name}".lstrip("."), "parameter", module, name)


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


def _tied(model: nn.Module) -> dict[str, list[str]]:
    """Return first name → all names of one parameter, for those that have several."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return {group[0]: group for group in names.values() if len(group) > 1}


def _distinct(found: Sequence[Site]) -> list[Site]:
    """Make names unique: where sites of a block have one role (experts, stages), the path tells."""
    counts = Counter(site.name for site in found)
    return [
        site if counts[site.name] == 1 else replace(site, role=f"{site.role}:{site.path}") for site in found
    ]


def skeleton(checkpoint: Checkpoint) -> nn.Module:
    """Return the checkpoint's model with the head that its config names, without memory for weights."""
    import transformers

    if checkpoint.folder is None or not checkpoint.config:
        raise CheckpointError(
            "there is no config to build a model from", where=checkpoint.name, fix="give the model's folder"
        )
    trusted = checkpoint.trust_remote_code
    with quiet(), sentences(checkpoint.name):
        check_code(checkpoint.config, checkpoint.name, trusted=trusted)
        config = transformers.AutoConfig.from_pretrained(
            checkpoint.folder, trust_remote_code=trusted, local_files_only=True
        )
        kind: Any = transformers.AutoModel
        with contextlib.suppress(CheckpointError):
            kind = model_class(config, True, checkpoint.name)
        with torch.device("meta"):
            build = getattr(kind, "from_config", None) or kind._from_config
            model: nn.Module = build(config)
    return model.eval()


def checkpoint_sites(checkpoint: Checkpoint) -> list[Site]:
    """Return the sites whose weights the checkpoint has; no weight is read.

    A config may name a head, or a family bring a pooler, that the file does not hold.
    """
    model = skeleton(checkpoint)
    held = held_names([*checkpoint.tensors, *checkpoint.tied], model)
    # a residual stream has no weight of its own
    return [site for site in find_sites(model) if site.weight is None or {site.weight, site.tied_to} & held]
