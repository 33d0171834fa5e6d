"""Watching a model run: hooks that hand over the tensors at chosen places."""

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from transship.activations.families import PER_HEAD_ROLES
from transship.activations.sites import Part, Site

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
