"""Bodies and heads: what is merged, and one training loop for pre-training, fine-tuning and several tasks.

A body is a module that turns inputs into features [inputs, width]; a head is a Linear on them. The bodies are
a small vision transformer and the upper blocks of a sentence encoder.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from transship.activations import LoadedModel
from transship.numerics import chunks
from transship_suites.materials.small_vision import LabelledRows, VitShape, augment

PROBE_STEPS = 200
Draw = Callable[[], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class LabelledTask:
    """What a task trains and is tested on, and how many classes it tells apart."""

    name: str
    train: LabelledRows
    test: LabelledRows
    classes: int


def encode(body: Callable[[Tensor], Tensor], inputs: Tensor, batch: int = 250) -> Tensor:
    """Return the features of all inputs, without gradients."""
    with torch.no_grad():
        return torch.cat([body(inputs[rows]) for rows in chunks(len(inputs), batch)])


def probe(features: Tensor, labels: Tensor, classes: int, *, seed: int) -> nn.Linear:
    """Return a linear head trained on features by full-batch Adam."""
    head = new_head(features.shape[1], classes, seed=seed)
    optimiser = torch.optim.Adam(head.parameters(), lr=0.01)
    for _ in range(PROBE_STEPS):
        optimiser.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(head(features), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return head


def new_head(width: int, classes: int, *, seed: int) -> nn.Linear:
    """Return a head with weights from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(width, classes)


def tune(
    base: nn.Module,
    tasks: Sequence[LabelledTask],
    read: Callable[[nn.Module, Tensor], Tensor] = encode,
    *,
    steps: int,
    rate: float,
    seed: int,
    batch: int,
) -> tuple[nn.Module, list[nn.Linear]]:
    """Fit a head per task on the frozen base, then train body and heads; tasks take turns, `steps` each.

    One task makes a fine-tune, several make the multi-task reference. `read` gives the base's features.
    """
    body = copy.deepcopy(base)
    heads = [
        probe(read(base, task.train.inputs), task.train.labels, task.classes, seed=seed) for task in tasks
    ]
    generator = torch.Generator().manual_seed(seed)

    def drawn(task: LabelledTask) -> Draw:
        def draw() -> tuple[Tensor, Tensor]:
            rows = task.train.take(torch.randint(len(task.train), (batch,), generator=generator))
            return rows.inputs, rows.labels

        return draw

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of dropout
        return train(body, heads, [drawn(task) for task in tasks], steps=steps, rate=rate), heads


def train(
    body: nn.Module, heads: Sequence[nn.Linear], draws: Sequence[Draw], *, steps: int, rate: float
) -> nn.Module:
    """Train body and heads in place by AdamW with a short warm-up and a linear decay."""
    total = steps * len(heads)
    trained = [parameter for module in (body, *heads) for parameter in module.parameters()]
    optimiser = torch.optim.AdamW(trained, lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, (step + 1) / max(1, total // 10)) * (1 - 0.9 * step / total)
    )
    body.train()
    for step in range(total):
        turn = step % len(heads)
        inputs, labels = draws[turn]()
        optimiser.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(heads[turn](body(inputs)), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    return body.eval()


def to_arrays(body: nn.Module, heads: Sequence[nn.Linear]) -> dict[str, Any]:
    """Return the weights by name, as the cache keeps them."""
    arrays = {f"body.{name}": tensor.numpy() for name, tensor in body.state_dict().items()}
    for place, head in enumerate(heads):
        arrays |= {f"head.{place}.{name}": tensor.numpy() for name, tensor in head.state_dict().items()}
    return arrays


def from_arrays(arrays: Mapping[str, Any], like: nn.Module) -> tuple[nn.Module, list[nn.Linear]]:
    """Return what `to_arrays` was given; `like` is a body of the same shape."""
    body = copy.deepcopy(like)
    body.load_state_dict({name: torch.from_numpy(arrays[f"body.{name}"]) for name in body.state_dict()})
    heads: list[nn.Linear] = []
    while f"head.{len(heads)}.weight" in arrays:
        weight = torch.from_numpy(arrays[f"head.{len(heads)}.weight"])
        head = nn.Linear(weight.shape[1], weight.shape[0])
        head.load_state_dict({"weight": weight, "bias": torch.from_numpy(arrays[f"head.{len(heads)}.bias"])})
        heads.append(head)
    return body.eval(), heads


SHAPE = VitShape(width=64, blocks=4, patch=7)
BASE_CLASSES = 10
DEEP = 3  # blocks that a wide reading takes features from


class Eye(nn.Module):
    """A vision transformer whose output is the state of its class token [inputs, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.vit: nn.Module = SHAPE.build().get_submodule("vit")

    def forward(self, images: Tensor) -> Tensor:
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
        return self.levels(states)[-1]

    def levels(self, states: Tensor) -> list[Tensor]:
        """Return the mean over tokens of what enters and of what leaves each block."""
        tokens = _Tokens((states != 0).any(-1))
        levels = [tokens.packed(states)]
        for block in self.layer:
            levels.append(_run(block, levels[-1], tokens))
        return [tokens.mean(level) for level in levels]


class _Tokens:
    """Which tokens of a batch there are, and their states with padding [inputs, tokens, …] and without."""

    def __init__(self, present: Tensor) -> None:
        self.present, self.places = present, present.flatten().nonzero()[:, 0]
        self.mask = torch.zeros(present.shape).masked_fill(~present, -1e9)[:, None, None, :]

    def packed(self, states: Tensor) -> Tensor:
        """Return the states of the tokens that there are [rows, width]."""
        return states.flatten(0, 1).index_select(0, self.places)

    def padded(self, rows: Tensor) -> Tensor:
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
    states: Tensor = block.output(block.intermediate(attended), attended)
    return states


def pretrained_eye(pictures: LabelledRows, *, steps: int, seed: int, batch: int = 64) -> Eye:
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
        last = body.vit(images, output_hidden_states=True).hidden_states[-DEEP:]
        levels = [body.vit.get_submodule("layernorm")(states) for states in last]
        return torch.cat([part for level in levels for part in (level[:, 0], level[:, 1:].mean(1))], 1)

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
    states = torch.zeros(len(texts), tokens, encoder.config.hidden_size)
    with torch.no_grad():
        for rows in chunks(len(texts), batch):
            read = loaded.tokenizer(
                list(texts[rows]), truncation=True, max_length=tokens, padding=True, return_tensors="pt"
            )
            there = encoder(**read, output_hidden_states=True).hidden_states[places]
            states[rows, : there.shape[1]] = there * read["attention_mask"][..., None]
    return states
