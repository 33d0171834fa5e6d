"""LoRA on the body, through `peft`: factors while it trains, plain weights afterwards."""

from typing import Any

import torch
from torch import nn

from transship.errors import MissingError


def add_lora(body: nn.Module, rank: int, seed: int) -> None:
    """Put LoRA factors (alpha = 2·rank) on every linear map of the body."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise MissingError("LoRA needs peft", where="lora_rank", fix="pip install peft, or pass 0") from error
    names = sorted(
        {name.rpartition(".")[2] for name, part in body.named_modules() if isinstance(part, nn.Linear)}
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(
            LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=names), body
        )
    body.eval()


@torch.no_grad()
def merge_lora(body: nn.Module) -> None:
    """Add the factors into the weights and take them out."""
    for _, _, layer in _factored(body):
        layer.merge()
    drop_lora(body)


def drop_lora(body: nn.Module) -> None:
    """Take the factors out; unless they were merged, the weights are what they were without them."""
    for parent, name, layer in _factored(body):
        setattr(parent, name, layer.get_base_layer())
    if hasattr(body, "peft_config"):
        del body.peft_config  # peft would take the next factors for further ones


def _factored(body: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    return [
        (parent, name, part)
        for parent in body.modules()
        for name, part in parent.named_children()
        if hasattr(part, "lora_A") and hasattr(part, "get_base_layer")
    ]


__all__ = ["add_lora", "drop_lora", "merge_lora"]
