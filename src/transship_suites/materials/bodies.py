"""The two bodies that are merged: a small vision transformer, and the upper blocks of a sentence encoder."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from transship.numerics import chunks
from transship_suites.materials.shifts import augment
from transship_suites.materials.small_networks import Network
from transship_suites.materials.training import Draw, Rows, new_head, train

if TYPE_CHECKING:
    from transship.activations import LoadedModel

SHAPE = Network(width=64, blocks=4, patch=7)
BASE_CLASSES = 10
DEEP = 3  # blocks that a wide reading takes features from


class Eye(nn.Module):
    """A vision transformer whose output is the state of its class token [inputs, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.vit: nn.Module = SHAPE.build().get_submodule("vit")

    def forward(self, images: Tensor) -> Tensor:
        """Return one row per image."""
        states: Tensor = self.vit(images).last_hidden_state
        return states[:, 0]


class Upper(nn.Module):
    """Blocks of a BERT encoder and the mean over tokens.

    It reads token states [inputs, tokens, width] that are zero where padded. Padding enters no linear map: it
    would be a seventh of the work on short texts, and count in statistics of what the maps read.
    """

    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.layer = layers

    def forward(self, states: Tensor) -> Tensor:
        """Return one row per input."""
        return self.levels(states)[-1]

    def levels(self, states: Tensor) -> list[Tensor]:
        """Return the mean over tokens of what enters and of what leaves each block."""
        tokens = _Tokens((states != 0).any(-1))
        levels = [tokens.packed(states)]
        for block in self.layer:
            levels.append(_run(block, levels[-1], tokens))
        return [tokens.mean(one) for one in levels]


class _Tokens:
    """Which tokens of a batch there are, and their states with padding [inputs, tokens, …] and without."""

    def __init__(self, present: Tensor) -> None:
        self.present, self.places = present, present.flatten().nonzero()[:, 0]
        self.mask = torch.zeros(present.shape).masked_fill(~present, -1e9)[:, None, None, :]

    def packed(self, states: Tensor) -> Tensor:
        """Return the states of the tokens that there are [rows, width]."""
        return states.flatten(0, 1).index_select(0, self.places)

    def padded(self, rows: Tensor) -> Tensor:
        """Return the states with zeros where padded."""
        whole = rows.new_zeros(self.present.numel(), rows.shape[1]).index_copy(0, self.places, rows)
        return whole.view(*self.present.shape, -1)

    def mean(self, rows: Tensor) -> Tensor:
        """Return the mean over each input's tokens."""
        return self.padded(rows).sum(1) / self.present.sum(1, keepdim=True)


def _run(block: Any, rows: Tensor, tokens: _Tokens) -> Tensor:
    """Return what a BERT layer makes of packed states; only attention sees the batch with its padding."""
    attention = block.attention.self
    shape = (*tokens.present.shape, attention.num_attention_heads, -1)
    query, key, value = (
        tokens.padded(side(rows)).view(shape).transpose(1, 2)
        for side in (attention.query, attention.key, attention.value)
    )
    dropout = attention.dropout.p if block.training else 0.0
    mixed = nn.functional.scaled_dot_product_attention(query, key, value, tokens.mask, dropout)
    attended = block.attention.output(tokens.packed(mixed.transpose(1, 2).flatten(2)), rows)
    made: Tensor = block.output(block.intermediate(attended), attended)
    return made


def pretrained_eye(pictures: Rows, *, steps: int, seed: int, batch: int = 64) -> Eye:
    """Train from the seed on the ten classes of pre-training, with mild augmentation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = Eye()
    generator = torch.Generator().manual_seed(seed)

    def draw() -> tuple[Tensor, Tensor]:
        rows = pictures.take(torch.randint(len(pictures), (batch,), generator=generator))
        return augment(rows.inputs, generator), rows.labels

    draws: list[Draw] = [draw]
    train(body, [new_head(SHAPE.width, BASE_CLASSES, seed=seed)], draws, steps=steps, rate=1e-3)
    return body


def wide(body: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return a reader of features of the last three blocks: mean tokens and, of an eye, class tokens too."""
    if isinstance(body, Upper):
        return lambda states: torch.cat(body.levels(states)[-DEEP:], 1)
    assert isinstance(body, Eye)

    def read(images: Tensor) -> Tensor:
        found = body.vit(images, output_hidden_states=True).hidden_states[-DEEP:]
        levels = [body.vit.get_submodule("layernorm")(states) for states in found]
        return torch.cat([part for one in levels for part in (one[:, 0], one[:, 1:].mean(1))], 1)

    return read


def upper_blocks(loaded: LoadedModel, blocks: int) -> Upper:
    """Return a copy of the last `blocks` of a pooled encoder."""
    layers: Any = loaded.model.get_submodule("encoder.encoder.layer")
    return Upper(copy.deepcopy(layers[-blocks:])).eval()


def lower_states(
    loaded: LoadedModel, blocks: int, texts: Sequence[str], *, tokens: int, batch: int = 64
) -> Tensor:
    """Return what enters the last `blocks` for each text, cut or padded with zeros to `tokens`."""
    encoder: Any = loaded.model.get_submodule("encoder")
    places = len(encoder.encoder.layer) - blocks
    made = torch.zeros(len(texts), tokens, encoder.config.hidden_size)
    with torch.no_grad():
        for rows in chunks(len(texts), batch):
            read = loaded.tokenizer(
                list(texts[rows]), truncation=True, max_length=tokens, padding=True, return_tensors="pt"
            )
            states = encoder(**read, output_hidden_states=True).hidden_states[places]
            made[rows, : states.shape[1]] = states * read["attention_mask"][..., None]
    return made
