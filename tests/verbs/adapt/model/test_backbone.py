"""A body run from embedded tokens is the model itself, for every family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from transship.errors import CheckpointError
from transship.verbs.adapt.model.backbone import Backbone, open_backbone
from transship.verbs.adapt.model.embedder import shape_for
from transship.verbs.adapt.model.network import new_embedder

TEXT = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}


def text_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "DistilBert":
        config: Any = transformers.DistilBertConfig(
            vocab_size=50, dim=16, n_layers=2, n_heads=2, hidden_dim=32
        )
    else:
        more = {"pad_token_id": 0} if name == "ModernBert" else {}
        kind = getattr(transformers, f"{name}Config")
        config = kind(vocab_size=50, max_position_embeddings=40, **TEXT, **more)
    return getattr(transformers, f"{name}Model")(config).eval()


@pytest.mark.parametrize(
    "name", ["Bert", "Roberta", "MPNet", "DistilBert", "XLMRoberta", "Camembert", "ModernBert"]
)
def test_a_text_body_gives_the_models_own_states_from_its_own_embeddings(name: str):
    model = text_model(name)
    ids = torch.randint(4, 50, (3, 7))
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[1, 5:] = False
    ids[1, 5:] = model.config.pad_token_id
    with torch.inference_mode():
        expected = model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        tokens = model.embeddings(input_ids=ids)
        body = open_backbone(model).body()
        torch.testing.assert_close(body(tokens, mask)[mask], expected[mask])


def test_a_body_is_a_copy_and_leaves_the_model_as_it_was(tiny_bert: Backbone):
    before = tiny_bert.fingerprint
    body = tiny_bert.body()
    with torch.no_grad():
        for parameter in body.parameters():
            parameter.add_(1.0)
    again = open_backbone(tiny_bert.loaded)
    assert again.fingerprint == before
    assert not any("word_embeddings" in name for name, _ in body.named_parameters())


def test_tokens_of_the_source_are_those_of_a_whole_pass(tiny_bert: Backbone, monkeypatch: pytest.MonkeyPatch):
    texts = ["red cat", "the dog sees a blue bird"]
    tokens, mask, _ = tiny_bert.source_pass(texts)
    encoder = type(tiny_bert.loaded.model.encoder)
    monkeypatch.setattr(encoder, "forward", lambda *arguments, **options: pytest.fail("the body ran"))
    for _ in range(2):  # the first pass leaves nothing behind
        alone, own_mask = tiny_bert.source_tokens(texts)
        assert torch.equal(alone, tokens)
        assert torch.equal(own_mask, mask)


def vision_model(name: str) -> Any:
    torch.manual_seed(0)
    picture = {"image_size": 16, "patch_size": 4, "num_channels": 2}
    if name == "Swin":
        stages = {"embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
        return transformers.SwinModel(transformers.SwinConfig(**{**picture, "patch_size": 2}, **stages))
    if name == "Sam2Vision":
        inner = {"hidden_size": 8, "num_attention_heads": 1, "num_channels": 3, "image_size": [32, 32]}
        inner |= {"blocks_per_stage": [1, 2, 1, 1], "embed_dim_per_stage": [8, 16, 32, 64]}
        inner |= {"num_attention_heads_per_stage": [1, 2, 4, 8], "window_size_per_stage": [4, 2, 2, 2]}
        inner |= {"global_attention_blocks": [2], "window_positional_embedding_background_size": [4, 4]}
        config = transformers.Sam2VisionConfig(
            backbone_config={"model_type": "sam2_hiera_det_model", **inner},
            backbone_channel_list=[64, 32, 16, 8],
            fpn_hidden_size=8,
        )
        config.image_size = 32
        return transformers.Sam2VisionModel(config)
    more = {} if name in ("ViT", "Dinov2") else {"num_register_tokens": 3}
    config = getattr(transformers, f"{name}Config")(**picture, **TEXT, **more)
    return getattr(transformers, f"{name}Model")(config)


@pytest.mark.parametrize("name", ["ViT", "Swin", "Dinov2", "Dinov2WithRegisters", "DINOv3ViT", "Sam2Vision"])
def test_a_vision_body_gives_the_models_own_states(name: str):
    model = vision_model(name)
    backbone = open_backbone(model.eval())
    side = backbone.theta.image[0]
    channels = backbone.theta.patch_filter.shape[1]
    pictures = [np.random.default_rng(0).random((channels, side, side)).astype(np.float32)] * 3
    tokens, mask, states = backbone.source_pass(pictures)
    patch = backbone.theta.patch_filter.shape[2]
    grid = (side // patch,) * 2
    with torch.inference_mode():
        torch.testing.assert_close(backbone.body()(tokens, mask, grid), states)
    assert backbone.reads == "vision"
    assert backbone.width_out == states.shape[2]


@pytest.mark.parametrize("name", ["Swin", "Dinov2WithRegisters", "DINOv3ViT", "Sam2Vision"])
def test_the_embedder_starts_where_the_models_own_embedding_is(name: str):
    """For pictures of the model's own size φ is θ; overlapping patches of a Hiera are made smaller."""
    backbone = open_backbone(vision_model(name).eval())
    side = backbone.theta.image[0]
    channels = backbone.theta.patch_filter.shape[1]
    shape = shape_for(backbone.theta, (side, side), channels, tokens=32)
    pictures = torch.rand(2, channels, side, side)
    tokens, _, _ = backbone.source_pass(list(pictures.numpy()))
    with torch.inference_mode():
        own = new_embedder(shape, backbone.theta, 0)(pictures)
        assert own.shape == tokens.shape
        if name != "Sam2Vision":
            torch.testing.assert_close(own, tokens)
        states = backbone.body()(own, None, shape.grid)
    high, wide = (side_of // 2**backbone.merges for side_of in shape.grid)
    assert states.shape[1:] == (shape.prefix + high * wide, backbone.width_out)


def test_small_pictures_keep_their_size_before_a_hiera_up_to_whole_windows():
    backbone = open_backbone(vision_model("Sam2Vision").eval())
    shape = shape_for(backbone.theta, (28, 20), 1, tokens=32)
    assert (shape.resize, shape.grid, shape.patch) == ((32, 32), (8, 8), (4, 4))


def whisper() -> Any:
    torch.manual_seed(0)
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    sizes = {"d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_mel_bins": 4}
    config = transformers.WhisperConfig(
        vocab_size=20,
        pad_token_id=0,
        encoder_layers=2,
        decoder_layers=1,
        max_source_positions=12,
        **sizes,
        **heads,
    )
    return transformers.WhisperModel(config).eval()


def test_an_audio_body_gives_the_encoders_own_states_of_any_length():
    model = whisper()
    backbone = open_backbone(model)
    assert (backbone.reads, backbone.width_out, len(backbone.theta.positions)) == ("audio", 16, 12)
    sound = torch.randn(2, 4, 24)
    tokens: list[torch.Tensor] = []
    hook = model.encoder.layers[0].register_forward_pre_hook(lambda module, given: tokens.append(given[0]))
    with torch.inference_mode():
        expected = model.encoder(sound).last_hidden_state
        hook.remove()
        torch.testing.assert_close(backbone.body()(tokens[0]), expected)
    assert backbone.body()(tokens[0][:, :5]).shape == (2, 5, 16)
    assert not any("decoder" in name for name, _ in backbone.body().named_parameters())


@pytest.mark.parametrize(("name", "first"), [("Bert", 0), ("Roberta", 2), ("MPNet", 2)])
def test_positions_begin_where_the_family_counts_from(name: str, first: int):
    model = text_model(name)
    table = model.embeddings.position_embeddings.weight
    torch.testing.assert_close(open_backbone(model).theta.positions, table.detach()[first:])


def test_a_scratch_body_has_other_weights_that_its_seed_decides(tiny_bert: Backbone):
    first, second, other = (tiny_bert.scratch_body(seed) for seed in (1, 1, 2))
    names = [name for name, value in first.named_parameters() if value.dim() > 1]
    assert names
    for name in names:
        assert torch.equal(first.get_parameter(name), second.get_parameter(name))
        assert not torch.equal(first.get_parameter(name), other.get_parameter(name))
        assert not torch.equal(first.get_parameter(name), tiny_bert.body().get_parameter(name))


def test_a_decoder_and_a_plain_module_are_refused_by_name():
    model = transformers.GPT2Model(transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=20))
    with pytest.raises(CheckpointError, match="a gpt2 is a decoder, and adapt needs an encoder"):
        open_backbone(model)
    with pytest.raises(CheckpointError, match="no transformers encoder"):
        open_backbone(nn.Linear(2, 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["minilm-l6", "granite-small", "distilbert-768", "mpnet-base"])
def test_real_encoders_run_from_their_embeddings(name: str, models_dir: Path):
    backbone = open_backbone(str(models_dir / name))
    tokens, mask, states = backbone.source_pass(["a small dog", "a longer sentence about two black cats"])
    with torch.inference_mode():
        torch.testing.assert_close(backbone.body()(tokens, mask)[mask], states[mask])
