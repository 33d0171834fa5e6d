"""Where linear maps act in a model, named by role and block, and how tensors are seen there.

A tap is a place where a tensor passes; `watching` calls a function for each while a model runs.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from transship.activations.families import PER_HEAD_ROLES
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
        role: what it does: `attention.query`, `mlp.in`, `norm.final`, `embedding.token`, `head`, …; the
            relative module name where no role is known.
        block: number of its block in the stack, or None outside of blocks.
        stack: `text`, `vision`, `encoder` or `decoder`; empty where the model has no such thing.
        kind: linear, norm, scale, embedding, conv, parameter (a tensor without a module) or block (the
            residual stream that enters and leaves a block: no weight of its own).
        in_width: width of what enters; for an embedding the number of its rows, for a convolution channels ×
            kernel.
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


def read_weight(site: Site, weight: Weight) -> Weight:
    """Return the site's (out, in) matrix of a stored weight, fused or transposed as it may be; a view where
    possible.

    Works on numpy arrays and Tensors. A convolution's kernel is flattened into the in axis.
    """
    stored: Any = weight
    if stored.ndim > 2:
        stored = stored.reshape(stored.shape[0], -1)
    own: Weight = _take(site.part, stored.T if site.transposed else stored)
    return own


def read_bias(site: Site, bias: Weight) -> Weight:
    """Return the site's part of a stored bias, or of any vector along the output axis."""
    own: Weight = _take(site.part, bias)
    return own


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


Side = Literal["input", "output"]
Watcher = Callable[["Tap", Tensor], None]
_PROJECTIONS = ("query", "key", "value")


@dataclass(frozen=True)
class Tap:
    """A place where a tensor can be seen: a module's path and `input` or `output`.

    The projections that nn.MultiheadAttention applies without submodules have places of their own, such as
    `query.input`.
    """

    path: str
    place: str


@dataclass(frozen=True)
class SiteView:
    """A tap and, where the tensor is the output of a fused map, which of its columns."""

    tap: Tap
    part: Part | None = None


def view_of(site: Site, side: Side) -> SiteView:
    """Return where a site's input or output is seen."""
    if site.functional:
        return SiteView(Tap(site.path, f"{site.role.rsplit('.', 1)[-1]}.{side}"))
    return SiteView(Tap(site.path, side), site.part if side == "output" else None)


def sides_of(site: Site) -> tuple[Side, ...]:
    """Return the sides of a site whose Moments mean something.

    A norm's or scale's input is the residual stream or another site's output. The rows of an embedding and
    the pixels under a convolution are no space; the classes of a head are no space to rotate.
    """
    if site.role in PER_HEAD_ROLES or site.kind == "parameter":
        return ()
    if site.role == "head":
        return ("input",)
    return ("input", "output") if site.kind in ("linear", "block") else ("output",)


@contextlib.contextmanager
def watching(model: nn.Module, taps: Collection[Tap], watcher: Watcher) -> Iterator[None]:
    """Call `watcher(tap, tensor)` whenever a tensor passes one of `taps` while the block runs."""
    places: dict[str, set[str]] = {}
    for tap in taps:
        places.setdefault(tap.path, set()).add(tap.place)
    handles: list[Any] = []
    replaced: list[nn.Module] = []
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)  # the fused encoder layer runs no submodule
        for path, wanted in places.items():
            module = model.get_submodule(path)
            if "input" in wanted:
                handles.append(
                    module.register_forward_pre_hook(_before(Tap(path, "input"), watcher), with_kwargs=True)
                )
            if "output" in wanted:
                handles.append(module.register_forward_hook(_after(Tap(path, "output"), watcher)))
        for path, module in model.named_modules():
            if not isinstance(module, nn.MultiheadAttention):
                continue
            if any(other == path or other.startswith(f"{path}.") for other in places):
                unfolded = _unfolded(module, path, places.get(path, set()), watcher)
                module.forward = unfolded  # type: ignore[method-assign]
                replaced.append(module)
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module in replaced:
            del module.forward  # the class's own again
        torch.backends.mha.set_fastpath_enabled(fast)


def _before(tap: Tap, watcher: Watcher) -> Callable[..., None]:
    def hook(module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        tensor = next((value for value in positional if isinstance(value, Tensor)), None)
        if tensor is None:
            tensor = named.get("hidden_states")
        if tensor is None:
            tensor = next((value for value in named.values() if isinstance(value, Tensor)), None)
        if tensor is not None:
            watcher(tap, tensor)

    return hook


def _after(tap: Tap, watcher: Watcher) -> Callable[..., None]:
    def hook(module: nn.Module, positional: tuple[Any, ...], made: Any) -> None:
        tensor = made if isinstance(made, Tensor) else _first_tensor(made)
        if tensor is not None:
            watcher(tap, tensor)

    return hook


def _first_tensor(made: Any) -> Tensor | None:
    values = made.values() if hasattr(made, "values") else made
    return (
        next((value for value in values if isinstance(value, Tensor)), None) if values is not None else None
    )


def _unfolded(
    module: nn.MultiheadAttention, path: str, places: Collection[str], watcher: Watcher
) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return nn.MultiheadAttention's forward in steps: its inner tensors are seen, its out_proj is called.

    The result is the original's. Learned extra keys and zero attention are not unfolded.
    """
    if module.bias_k is not None or module.add_zero_attn:
        own: Callable[..., tuple[Tensor, Tensor | None]] = module.forward
        return own

    def show(place: str, tensor: Tensor) -> Tensor:
        if place in places:
            watcher(Tap(path, place), tensor)
        return tensor

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        single = query.dim() == 2
        inputs = [
            tensor.unsqueeze(0 if module.batch_first else 1) if single else tensor
            for tensor in (query, key, value)
        ]
        projected = []
        for name, tensor, (weight, bias) in zip(_PROJECTIONS, inputs, _projections(module), strict=True):
            output = show(f"{name}.output", functional.linear(show(f"{name}.input", tensor), weight, bias))
            output = output if module.batch_first else output.transpose(0, 1)
            projected.append(
                output.reshape(*output.shape[:2], module.num_heads, module.head_dim).transpose(1, 2)
            )
        bias_mask = _additive_mask(attn_mask, key_padding_mask, projected[0])
        mixed, weights = _attend(module, projected, bias_mask, need_weights)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        joined = mixed.transpose(1, 2).flatten(2)
        output = module.out_proj(joined if module.batch_first else joined.transpose(0, 1).contiguous())
        if single:
            output = output.squeeze(0 if module.batch_first else 1)
            weights = None if weights is None else weights.squeeze(0)
        return output, weights

    return forward


def _attend(
    module: nn.MultiheadAttention, projected: list[Tensor], mask: Tensor | None, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    """Return what the heads read, and with which weights where these are needed."""
    query, key, value = projected
    if not need_weights:
        dropout = module.dropout if module.training else 0.0
        read = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return read, None
    scores = query @ key.transpose(-1, -2) * module.head_dim**-0.5
    weights = (scores if mask is None else scores + mask).softmax(-1)
    return functional.dropout(weights, module.dropout, module.training) @ value, weights


def _projections(module: nn.MultiheadAttention) -> list[tuple[Tensor, Tensor | None]]:
    weights = (
        module.in_proj_weight.chunk(3)
        if module.in_proj_weight is not None
        else (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    )
    biases = module.in_proj_bias.chunk(3) if module.in_proj_bias is not None else (None, None, None)
    return list(zip(weights, biases, strict=True))


def _additive_mask(attn_mask: Tensor | None, padding: Tensor | None, like: Tensor) -> Tensor | None:
    """Return both masks as one summand of the scores [inputs, heads, target, source]; True means hidden."""

    def summand(mask: Tensor) -> Tensor:
        if mask.dtype != torch.bool:
            return mask.to(like.dtype)
        return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, float("-inf"))

    mask = None
    if attn_mask is not None:
        mask = summand(attn_mask)
        mask = mask.reshape(*like.shape[:2], *mask.shape[1:]) if mask.dim() == 3 else mask
    if padding is not None:
        hidden = summand(padding)[:, None, None, :] if padding.dim() == 2 else summand(padding)
        mask = hidden if mask is None else mask + hidden
    return mask
