"""What a module of a block is for, from its name and the tables in `families`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from torch import nn

from transship.activations import families
from transship.activations.sites import Site


@dataclass(frozen=True)
class Leaf:
    """A module with parameters of its own, or a parameter that hangs on a container."""

    path: str
    kind: str
    module: nn.Module
    parameter: str | None = None


def no_role(site: Site) -> str | None:
    """Return why a map of a block has no role and is named by its path; None where it has one."""
    role = site.role.partition(":")[0]  # without the path that tells sites of one role apart
    if site.block is None or site.kind not in ("linear", "conv") or families.MAP_ROLES.fullmatch(role):
        return None
    return first_role(families.NO_ROLE, role) or families.UNKNOWN


def first_role(table: Sequence[tuple[str, str]], path: str) -> str | None:
    """Return the role of the first pattern that fits; a role may quote the pattern's groups."""
    for pattern, role in table:
        if match := re.search(pattern, path):
            return match.expand(role)
    return None


def crossed(role: str, relative: str) -> str:
    crosses = role.startswith("attention.") and re.search(families.CROSS_ATTENTION, relative)
    return f"cross_{role}" if crosses else role


def role_of(relative: str, leaf: Leaf, block: nn.Module | None) -> str:
    """Return the role of a leaf from its path relative to its block; the path itself where none is known."""
    if leaf.kind == "scale" or (leaf.parameter and first_role(families.SCALE_ROLES, relative)):
        return first_role(families.SCALE_ROLES, relative) or relative
    if leaf.kind == "norm" and block is not None:
        return _norm_role(relative, block)
    if isinstance(leaf.module, nn.MultiheadAttention) and leaf.kind == "linear":
        return "attention.query"
    if relative != leaf.path:
        if leaf.kind == "linear" or (
            leaf.kind == "conv" and set(cast(tuple[int, ...], leaf.module.kernel_size)) == {1}
        ):
            return _map_role(relative) or relative
        if leaf.kind == "conv":
            return first_role(families.SPECIAL_ROLES, relative) or relative
    pools = re.search(families.POOLING, relative)
    if pools and leaf.kind in ("linear", "norm", "parameter"):
        pooled = _map_role(relative[pools.end() :]) if leaf.kind == "linear" else None
        return f"pooling.{pooled or relative[pools.end() :]}"
    return first_role(families.OUTER_ROLES, relative) or relative or "linear"


def _is_pointwise(leaf: Leaf) -> bool:
    return leaf.kind == "conv" and set(cast(tuple[int, ...], leaf.module.kernel_size)) == {1}


def _map_role(relative: str) -> str | None:
    """Return the role of a linear map from its path in its block, or in a pooling head."""
    relative = re.sub(families.WRAPPER, "", relative)
    attends = re.search(families.CROSS_ATTENTION, relative) or re.search(families.ATTENTION, relative)
    if any(re.search(fusion.pattern, relative) for fusion in families.FUSIONS):
        fused = first_role(families.SPECIAL_ROLES, relative) or first_role(
            families.PLAIN_ATTENTION_ROLES, relative
        )
        if fused is None:
            return "attention.query" if attends else "mlp.in"
    if role := first_role(families.SPECIAL_ROLES, relative):
        return crossed(role, relative)
    part = first_role(families.ATTENTION_ROLES if attends else families.PLAIN_ATTENTION_ROLES, relative)
    if part:
        return crossed(f"attention.{part}", relative)
    if attends:
        return None
    role = first_role(families.MLP_ROLES, relative)
    if role is None and re.search(families.MLP, relative):
        role = first_role(families.INNER_MLP_ROLES, relative)
    return role


def _norm_role(relative: str, block: nn.Module) -> str:
    role = first_role(families.NORM_ROLES, relative)
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
