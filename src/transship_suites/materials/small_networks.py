"""Vision transformers of a few thousand parameters, trained from their seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transship.numerics import chunks
from transship_suites.materials.shifts import augment
from transship_suites.materials.small_pictures import CLASSES, Pictures

if TYPE_CHECKING:
    from torch import Tensor, nn

HEAD_WIDTH = 16


@dataclass(frozen=True)
class Network:
    """The shape of a network: ViT with pre-norm blocks, MLP ratio 2, a class token and a head of twenty
    classes.
    """

    width: int = 64
    blocks: int = 4
    patch: int = 7

    def build(self) -> nn.Module:
        """Return it with weights from torch's current seed."""
        from transformers import ViTConfig, ViTForImageClassification

        config = ViTConfig(
            hidden_size=self.width,
            num_hidden_layers=self.blocks,
            num_attention_heads=self.width // HEAD_WIDTH,
            intermediate_size=2 * self.width,
            image_size=28,
            patch_size=self.patch,
            num_channels=1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        config.num_labels = CLASSES
        network: nn.Module = ViTForImageClassification(config)
        return network

    def load(self, arrays: Mapping[str, Any]) -> nn.Module:
        """Return it with given weights, ready to run."""
        import torch

        network = self.build()
        network.load_state_dict({name: torch.as_tensor(array) for name, array in arrays.items()})
        return network.eval()


def pretrain(network: Network, pictures: Pictures, *, steps: int, seed: int, batch: int = 64) -> nn.Module:
    """Train on all twenty classes with mild augmentation: AdamW, one cycle, from the seed."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network.build()
    generator = torch.Generator().manual_seed(seed)

    def draw() -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(pictures), (batch,), generator=generator)
        return augment(pictures.images[rows], generator), pictures.labels[rows]

    return _train(model, list(model.parameters()), draw, steps=steps, rate=1e-3)


def fine_tune(model: nn.Module, pictures: Pictures, *, steps: int, seed: int, batch: int = 64) -> nn.Module:
    """Train a copy on a task's pictures with the head frozen: AdamW at 3e-4."""
    import copy

    import torch

    tuned = copy.deepcopy(model).train()
    generator = torch.Generator().manual_seed(seed)

    def draw() -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(pictures), (batch,), generator=generator)
        return pictures.images[rows], pictures.labels[rows]

    body = [parameter for name, parameter in tuned.named_parameters() if not name.startswith("classifier")]
    return _train(tuned, body, draw, steps=steps, rate=3e-4)


def _train(
    model: nn.Module,
    parameters: list[Any],
    draw: Callable[[], tuple[Tensor, Tensor]],
    *,
    steps: int,
    rate: float,
) -> nn.Module:
    import torch
    from torch.nn.functional import cross_entropy

    model.train()
    optimiser = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, (step + 1) / max(1, steps // 10)) * (1 - 0.9 * step / steps)
    )
    for _ in range(steps):
        images, labels = draw()
        optimiser.zero_grad(set_to_none=True)
        cross_entropy(model(images).logits, labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    return model.eval()


def accuracy(model: nn.Module, pictures: Pictures, batch: int = 500) -> float:
    """Return the share of pictures whose class is the largest output."""
    import torch

    right = 0
    with torch.inference_mode():
        for rows in chunks(len(pictures), batch):
            made = model(pictures.images[rows]).logits.argmax(1)
            right += int((made == pictures.labels[rows]).sum())
    return right / len(pictures)
