"""Encoders with mean pooling, with or without a head, as modules that run through their own tokenizers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from transship.activations import LoadedModel, load_model
from transship.data import find_model

LONGEST = 64


class MeanEncoder(nn.Module):
    """An encoder whose output is the mean of its token states [inputs, width]."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, **inputs: Tensor) -> Tensor:
        states: Tensor = self.encoder(**inputs).last_hidden_state
        mask = inputs["attention_mask"][..., None].to(states.dtype)
        return (states * mask).sum(1) / mask.sum(1)


class Classifier(nn.Module):
    """The same with a linear head."""

    def __init__(self, encoder: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, classes)

    def forward(self, **inputs: Tensor) -> Tensor:
        """Return the logits [inputs, classes]."""
        states: Tensor = self.encoder(**inputs).last_hidden_state
        mask = inputs["attention_mask"][..., None].to(states.dtype)
        logits: Tensor = self.head((states * mask).sum(1) / mask.sum(1))
        return logits


def load_encoder(name: str) -> LoadedModel:
    """Return a local encoder under mean pooling."""
    bare = load_model(find_model(name), name=name)
    return wrapped(bare, MeanEncoder(bare.model))


def wrapped(like: LoadedModel, module: nn.Module) -> LoadedModel:
    """Return `module` with the tokenizer and config of `like`."""
    return LoadedModel(
        like.name,
        module.eval(),
        like.config,
        like.tokenizer,
        folder=None,
        max_length=min(LONGEST, like.max_length),
    )


def fine_tune(
    base: LoadedModel,
    texts: Sequence[str],
    labels: Any,
    classes: int,
    *,
    epochs: int,
    seed: int,
    rate: float = 1e-4,
    batch: int = 32,
) -> Classifier:
    """Train a copy of the encoder and a new head: AdamW with a linear decay, embeddings frozen."""
    torch.manual_seed(seed)
    inner = base.model
    assert isinstance(inner, MeanEncoder)
    tuned = Classifier(copy.deepcopy(inner.encoder), base.config.hidden_size, classes)
    loaded = wrapped(base, tuned)
    for name, parameter in tuned.named_parameters():
        parameter.requires_grad_("embeddings" not in name)
    trained = [parameter for parameter in tuned.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=rate, weight_decay=0.01)
    steps = epochs * (len(texts) // batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: max(0.0, 1 - step / steps))
    generator = torch.Generator().manual_seed(seed)
    wanted = torch.as_tensor(labels)
    tuned.train()
    for _ in range(epochs):
        order = torch.randperm(len(texts), generator=generator)
        for start in range(0, len(texts) - batch + 1, batch):
            rows = order[start : start + batch]
            optimiser.zero_grad(set_to_none=True)
            logits = tuned(**loaded.preprocess([texts[row] for row in rows.tolist()]).inputs)
            nn.functional.cross_entropy(logits, wanted[rows]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
    for parameter in tuned.parameters():
        parameter.requires_grad_(True)
    return tuned.eval()


def predict(model: LoadedModel, texts: Sequence[Any], batch: int = 64) -> Tensor:
    """Return the module's output for every text, in order; batches are of similar length."""
    order = sorted(range(len(texts)), key=lambda row: model.length(texts[row]))
    parts: list[tuple[list[int], Tensor]] = []
    with torch.inference_mode():
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            parts.append((rows, model.model(**model.preprocess([texts[row] for row in rows]).inputs)))
    out = torch.empty(len(texts), parts[0][1].shape[1])
    for rows, part in parts:
        out[rows] = part.clone()
    return out
