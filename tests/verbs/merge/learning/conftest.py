"""A small network in memory and its fine-tunes, for the methods that run models."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch


@pytest.fixture(scope="session")
def _picture_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ViT without a head, and two classifiers made of it: `shape` of 2 classes and `tone` of 3."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("pictures")
    sides = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2}
    torch.manual_seed(0)
    config = transformers.ViTConfig(image_size=8, patch_size=4, **sides)
    base = transformers.ViTModel(config, add_pooling_layer=False)
    base.save_pretrained(folder / "base")
    for number, name in enumerate(("shape", "tone")):
        task = copy.deepcopy(config)
        task.id2label = {place: f"{name}-{place}" for place in range(2 + number)}
        task.label2id = {label: place for place, label in task.id2label.items()}
        model = transformers.ViTForImageClassification(task)
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for key, tensor in base.named_parameters():
                spread = max(float(tensor.std(correction=0)), 0.02)
                noise = torch.randn(tensor.shape, generator=generator) * 0.3 * spread
                model.vit.get_parameter(key).copy_(tensor + noise)
            model.classifier.weight.copy_(torch.randn(2 + number, 16, generator=generator))
        model.save_pretrained(folder / name)
        random = np.random.default_rng(number)
        np.savez(
            folder / f"{name}.npz",
            inputs=random.standard_normal((24, 3, 8, 8)).astype(np.float32) + number,
            labels=np.arange(24) % (2 + number),
        )
    return folder


@pytest.fixture
def pictures(_picture_models: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the small classifiers, which is also the working folder."""
    monkeypatch.chdir(_picture_models)
    return _picture_models
