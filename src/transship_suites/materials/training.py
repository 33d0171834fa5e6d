"""Bodies and heads: one training loop for pre-training, fine-tuning and the multi-task reference.

A body is a module that turns inputs into features [inputs, width]; a head is a Linear on them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from transship.numerics import chunks

PROBE_STEPS = 200
Draw = Callable[[], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Rows:
    """Inputs of a task and their classes."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> Rows:
        """Return these rows."""
        return Rows(self.inputs[rows], self.labels[rows])


@dataclass(frozen=True, eq=False)
class Task:
    """What a task trains and is tested on, and how many classes it tells apart."""

    name: str
    train: Rows
    test: Rows
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
    tasks: Sequence[Task],
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

    def drawn(task: Task) -> Draw:
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
