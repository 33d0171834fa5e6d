"""Train two small vision transformers on scikit-learn's digits, then compare them and say where the page is.

`python scripts/demo.py FOLDER`: a second run reuses the models that the first one trained.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import ViTConfig, ViTForImageClassification

from transship.cli import main as transship
from transship.data import Dataset, digits


def train(folder: Path, *, width: int, blocks: int, seed: int) -> float:
    """Train one ViT on the digits' training part, save it to `folder`, and return its test accuracy."""
    train_part, test_part = (digits(mode="L").split(part) for part in ("train", "test"))
    if (folder / "model.safetensors").exists():
        model = ViTForImageClassification.from_pretrained(folder)
        return accuracy(model, *tensors(test_part))
    torch.manual_seed(seed)
    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=blocks,
        num_attention_heads=4,
        intermediate_size=2 * width,
        image_size=8,
        patch_size=2,
        num_channels=1,
        num_labels=10,
    )
    model = ViTForImageClassification(config)
    images, labels = tensors(train_part)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    steps = 300
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in range(steps):
        rows = torch.randint(len(images), (128,))
        loss = torch.nn.functional.cross_entropy(model(images[rows]).logits, labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    model.save_pretrained(folder)
    return accuracy(model, *tensors(test_part))


def tensors(part: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a part of the digits as images (n, 1, 8, 8) in [0, 1] and labels (n,)."""
    images = np.stack([np.asarray(image, dtype=np.float32) for image in part.inputs])
    return torch.from_numpy(images).unsqueeze(1) / 255, torch.from_numpy(part.labels)


@torch.no_grad()
def accuracy(model: ViTForImageClassification, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of images that `model` names rightly."""
    return (model.eval()(images).logits.argmax(-1) == labels).float().mean().item()


def main(folder: Path) -> None:
    """Make the two models and the page."""
    torch.set_num_threads(1)  # products this small cost less than the threads' waiting for each other
    for name, width, blocks in (("narrow", 32, 4), ("wide", 48, 6)):
        share = train(folder / name, width=width, blocks=blocks, seed=width)
        print(f"{name}: {blocks} blocks of width {width}, {share:.1%} of the test digits right")
    page = folder / "compare.html"
    transship(
        [
            "compare",
            str(folder / "narrow"),
            str(folder / "wide"),
            "--data",
            "digits",
            "--report",
            str(page),
            "--force",
        ]
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
