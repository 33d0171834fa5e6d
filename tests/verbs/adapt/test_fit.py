"""Whole fits: fields and pictures through ViT and Swin, with pictures as proxy; and mixed precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from transship.data import Dataset
from transship.errors import OptionError
from transship.verbs.adapt import Recraft, load_adapted

pytestmark = pytest.mark.filterwarnings("ignore::transship.errors.TransshipWarning")


def model(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if name == "vit":
        config: Any = transformers.ViTConfig(
            image_size=12,
            patch_size=4,
            num_channels=1,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
        )
        return transformers.ViTModel(config).eval()
    config = transformers.SwinConfig(
        image_size=16,
        patch_size=2,
        num_channels=1,
        embed_dim=8,
        depths=[1, 1],
        num_heads=[2, 2],
        window_size=4,
    )
    return transformers.SwinModel(config).eval()


def pictures(side: int) -> Dataset:
    """Bright or dark left halves."""
    generator = np.random.default_rng(0)
    labels = np.arange(40) % 2
    values = generator.normal(0, 0.3, (40, 1, side, side)).astype(np.float32)
    values[labels == 1, :, :, : side // 2] += 1.0
    return Dataset("halves", "array", values, labels, ("dark", "bright"))


@pytest.mark.parametrize("name", ["vit", "swin"])
@pytest.mark.parametrize("task", ["classification", "dense"])
def test_vision_backbones_take_fields(name: str, task: str, tmp_path: Path):
    generator = np.random.default_rng(1)
    fields = generator.normal(size=(36, 2, 10, 14)).astype(np.float32)
    labels = np.arange(36) % 3
    fields[labels == 1, 0] += 1.0
    wanted: Any = labels if task == "classification" else fields[:, 0].astype(float) + 5.0
    backbone = model(name)
    side = backbone.config.image_size  # type: ignore[union-attr]
    fitted = Recraft(
        backbone,
        task=task,
        proxy=pictures(side),  # type: ignore[arg-type]
        cache=tmp_path / "cache",
        steps=6,
        batch_size=8,
        omega=0.5,
        device="cpu",
        method_options={"fa_steps": 3, "fld_steps": 3},
    ).fit(fields, wanted)
    predictions = fitted.predict(fields)
    assert predictions.shape == wanted.shape
    assert fitted.source_ is not None
    assert fitted.source_.accuracy > 0.7
    probabilities = fitted.source_probabilities(fields)
    np.testing.assert_allclose(probabilities.sum(1), 1.0, atol=1e-5)
    fitted.save(tmp_path / "model")
    np.testing.assert_allclose(
        load_adapted(tmp_path / "model").predict(fields[:4]), predictions[:4], rtol=1e-5
    )


def test_the_same_numbers_in_bfloat16_are_near_and_the_precision_may_change_between_fits(
    quick: dict[str, Any], waves: Any
):
    probabilities = [
        Recraft(**quick | {"steps": 4}, method="nft", precision=precision).fit(*waves).predict_proba(waves[0])
        for precision in ("no", "bf16", "no")
    ]
    np.testing.assert_array_equal(probabilities[0], probabilities[2])
    assert 0 < np.abs(probabilities[0] - probabilities[1]).max() < 0.2


def whisper() -> Any:
    sizes = {"d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_mel_bins": 4, "vocab_size": 20}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "pad_token_id": 0}
    layers = {"encoder_layers": 1, "decoder_layers": 1, "max_source_positions": 12}
    return transformers.WhisperModel(transformers.WhisperConfig(**sizes, **heads, **layers)).eval()


def hiera() -> Any:
    inner: dict[str, Any] = {"hidden_size": 8, "image_size": [32, 32], "blocks_per_stage": [1, 2, 1, 1]}
    inner |= {"embed_dim_per_stage": [8, 16, 32, 64], "num_attention_heads_per_stage": [1, 2, 2, 2]}
    inner |= {"window_size_per_stage": [4, 2, 2, 2], "window_positional_embedding_background_size": [4, 4]}
    inner |= {"model_type": "sam2_hiera_det_model", "global_attention_blocks": [2], "num_attention_heads": 1}
    channels = [64, 32, 16, 8]
    about = {"backbone_channel_list": channels, "fpn_hidden_size": 8}
    config = transformers.Sam2VisionConfig(backbone_config=inner, **about)
    return transformers.Sam2VisionModel(config).eval()


@pytest.mark.parametrize(("body", "shape"), [(whisper, (2, 30)), (hiera, (2, 10, 14))])
@pytest.mark.parametrize("task", ["classification", "dense"])
def test_bodies_of_sound_and_of_sam2_learn_and_come_back(body: Any, shape: Any, task: str, tmp_path: Path):
    generator = np.random.default_rng(1)
    rows = generator.normal(size=(24, *shape)).astype(np.float32)
    wanted: Any = np.arange(24) % 2 if task == "classification" else rows[:, 0].astype(float) + 5.0
    torch.manual_seed(0)
    told: dict[str, Any] = {"task": task, "method": "nft", "steps": 2, "batch_size": 8, "device": "cpu"}
    fitted = Recraft(body(), **told).fit(rows, wanted)
    fitted.save(tmp_path / "model")
    assert fitted.predict(rows).shape == wanted.shape
    again = load_adapted(tmp_path / "model")
    if task == "dense":
        np.testing.assert_allclose(again.predict(rows[:4]), fitted.predict(rows[:4]), rtol=1e-5)
    else:
        assert (again.predict(rows) == fitted.predict(rows)).all()


def test_a_body_of_sound_has_no_source_and_says_which_methods_do_without():
    rows = np.random.default_rng(0).normal(size=(12, 30))
    with pytest.raises(OptionError, match=r"proxy: no source of sound .* choose a method without a source"):
        Recraft(whisper(), method="recraft").fit(rows, np.arange(12) % 2)
