"""Tiny models, fine-tunes of them, and twins whose hidden spaces are permuted."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn


def tiny_vit(
    width: int = 32, blocks: int = 2, *, seed: int = 0, patch: int = 7, classes: int = 5
) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(seed)
    model = ViTForImageClassification(
        ViTConfig(
            hidden_size=width,
            num_hidden_layers=blocks,
            num_attention_heads=4,
            intermediate_size=2 * width,
            image_size=28,
            patch_size=patch,
            num_channels=1,
            num_labels=classes,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )
    return spread(model, seed).eval()


def spread(model: nn.Module, seed: int) -> nn.Module:
    """Random weights large enough that every layer matters; norms and biases are not left at one and zero."""
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(0.2 * noise)
    return model


def nudge(
    model: nn.Module, *, size: float = 0.05, seed: int = 3, names: Callable[[str], bool] = lambda name: True
) -> nn.Module:
    """A fine-tune: every chosen weight moved by `size` of its norm, in a random direction."""
    tuned = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if names(name):
                parameter.add_(size * parameter.norm() * noise / noise.norm())
    return tuned


def permuted_vit(model: nn.Module, *, seed: int = 9, heads: int = 4) -> nn.Module:
    """The same function with residual stream, heads and neurons in another order, written out name by
    name.
    """
    twin = copy.deepcopy(model)
    width = model.config.hidden_size
    generator = torch.Generator().manual_seed(seed)
    stream = torch.randperm(width, generator=generator)
    state = twin.state_dict()
    for block in range(model.config.num_hidden_layers):
        head = width // heads
        units = torch.cat(
            [
                h * head + torch.randperm(head, generator=generator)
                for h in torch.randperm(heads, generator=generator)
            ]
        )
        # queries and keys must be permuted alike within a head; values share the order
        neurons = torch.randperm(2 * width, generator=generator)
        at = f"vit.layers.{block}."
        for part in ("q", "k", "v"):
            state[f"{at}attention.{part}_proj.weight"] = state[f"{at}attention.{part}_proj.weight"][units][
                :, stream
            ]
            state[f"{at}attention.{part}_proj.bias"] = state[f"{at}attention.{part}_proj.bias"][units]
        state[f"{at}attention.o_proj.weight"] = state[f"{at}attention.o_proj.weight"][stream][:, units]
        state[f"{at}mlp.fc1.weight"] = state[f"{at}mlp.fc1.weight"][neurons][:, stream]
        state[f"{at}mlp.fc1.bias"] = state[f"{at}mlp.fc1.bias"][neurons]
        state[f"{at}mlp.fc2.weight"] = state[f"{at}mlp.fc2.weight"][stream][:, neurons]
        for name in (
            "attention.o_proj.bias",
            "mlp.fc2.bias",
            *(f"layernorm_{w}.{p}" for w in ("before", "after") for p in ("weight", "bias")),
        ):
            state[at + name] = state[at + name][stream]
    for name in ("cls_token", "position_embeddings"):
        state[f"vit.embeddings.{name}"] = state[f"vit.embeddings.{name}"][..., stream]
    for name in (
        "vit.embeddings.patch_embeddings.projection.weight",
        "vit.embeddings.patch_embeddings.projection.bias",
        "vit.layernorm.weight",
        "vit.layernorm.bias",
    ):
        state[name] = state[name][stream]
    state["classifier.weight"] = state["classifier.weight"][:, stream]
    twin.load_state_dict(state)
    return twin


def pictures(count: int, *, seed: int = 0, channels: int = 1, size: int = 28) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, channels, size, size)).astype(np.float32)


def logits(model: nn.Module, images: np.ndarray) -> Tensor:
    with torch.no_grad():
        return model(torch.from_numpy(images).to(next(model.parameters()).dtype)).logits


@pytest.fixture(scope="session")
def kit():
    """The builders above, as one namespace: test files cannot import each other."""
    from types import SimpleNamespace

    return SimpleNamespace(
        tiny_vit=tiny_vit,
        nudge=nudge,
        permuted_vit=permuted_vit,
        pictures=pictures,
        logits=logits,
        spread=spread,
    )
