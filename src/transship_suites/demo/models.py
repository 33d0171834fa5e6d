"""Small vision transformers on scikit-learn's digits, trained once and kept as folders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import nn

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
SIDE = 8


@dataclass(frozen=True)
class Digits:
    """Digits as pictures: images [n, 1, 8, 8] in [0, 1] and labels [n]."""

    images: Images
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)

    def changed(self, change: Callable[[Images], Images]) -> Digits:
        """Return the same digits seen otherwise."""
        return Digits(np.ascontiguousarray(change(self.images)), self.labels)


def load_digits(part: str) -> Digits:
    """Return a part of scikit-learn's 1,797 digits, by the split that `transship.data.digits` makes."""
    from transship.data import digits

    chosen = digits(mode="L").split(part)
    images = np.stack([np.asarray(image, dtype=np.float32) for image in chosen.inputs])
    if chosen.labels is None:
        raise ValueError("the digits have no labels")
    return Digits(
        (images[:, None] / np.float32(255)).astype(np.float32), np.asarray(chosen.labels, dtype=np.int64)
    )


def turned(images: Images) -> Images:
    """Turn every picture by a quarter."""
    return np.rot90(images, axes=(2, 3))


def base_model(folder: Path, *, width: int, steps: int, digits: Digits) -> Path:
    """Train a ViT of four blocks on all ten digits, unless `folder` already has it."""
    return _trained(folder, lambda: _new(width, 10), digits, steps=steps, rate=2e-3, seed=width)


def fine_tune(folder: Path, base: Path, digits: Digits, *, steps: int, frozen_head: bool, seed: int) -> Path:
    """Train the base further on a task, unless `folder` already has it.

    With `frozen_head` the base's ten classes stay and only the body moves; otherwise the head is new, with as
    many classes as the task has.
    """

    def start() -> Any:
        from transformers import ViTForImageClassification

        classes = 10 if frozen_head else int(digits.labels.max()) + 1
        return ViTForImageClassification.from_pretrained(
            base, num_labels=classes, ignore_mismatched_sizes=not frozen_head
        )

    return _trained(folder, start, digits, steps=steps, rate=1e-3, seed=seed, frozen_head=frozen_head)


def load(folder: Path) -> nn.Module:
    """Return the model in `folder`, ready to run."""
    from transformers import ViTForImageClassification

    model: nn.Module = ViTForImageClassification.from_pretrained(folder)
    return model.eval()


def accuracy(model: nn.Module, digits: Digits) -> float:
    """Return the share of digits that the model names rightly."""
    import torch

    with torch.inference_mode():
        made = model(torch.from_numpy(digits.images)).logits.argmax(-1).numpy()
    return float((made == digits.labels).mean())


def embed(model: nn.Module, digits: Digits) -> npt.NDArray[np.float32]:
    """Return what the head reads: the class token of the last block, [n, width]."""
    import torch

    with torch.inference_mode():
        hidden = model(torch.from_numpy(digits.images), output_hidden_states=True).hidden_states[-1]
        features: npt.NDArray[np.float32] = model.vit.layernorm(hidden)[:, 0].numpy()  # type: ignore[operator,union-attr]
    return features


def head_of(model: nn.Module) -> Callable[[Any], Any]:
    """Return the model's own head as a function: vectors [n, width] → classes [n]."""
    weight, bias = (part.detach().numpy() for part in model.classifier.parameters())  # type: ignore[union-attr]
    return lambda vectors: (vectors @ weight.T + bias).argmax(1)


def _new(width: int, classes: int) -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=2 * width,
        image_size=SIDE,
        patch_size=2,
        num_channels=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    config.num_labels = classes
    return ViTForImageClassification(config)


def _trained(
    folder: Path,
    start: Callable[[], Any],
    digits: Digits,
    *,
    steps: int,
    rate: float,
    seed: int,
    frozen_head: bool = False,
) -> Path:
    """Train from the seed and keep the model in `folder`, whole or not at all."""
    import torch
    from torch.nn.functional import cross_entropy

    from transship.atomic import atomic_folder

    if (folder / "model.safetensors").exists():
        return folder
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = start().train()
    generator = torch.Generator().manual_seed(seed)
    images, labels = torch.from_numpy(digits.images), torch.from_numpy(digits.labels)
    if frozen_head:
        model.classifier.requires_grad_(False)
    optimiser = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad], lr=rate, weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    for _ in range(steps):
        rows = torch.randint(len(images), (64,), generator=generator)
        optimiser.zero_grad(set_to_none=True)
        cross_entropy(model(images[rows]).logits, labels[rows]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    with atomic_folder(folder) as place:
        model.eval().save_pretrained(place)
    return folder
