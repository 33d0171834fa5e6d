"""Tiny models of every family, built from their configs with random weights."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers as hf

from transship.activations import CollectedMoments, LoadedModel, load_model

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
VISION = {"image_size": 16, "patch_size": 4, **SMALL}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

BUILDERS: dict[str, Callable[[], torch.nn.Module]] = {
    "bert": lambda: hf.BertModel(hf.BertConfig(vocab_size=50, **SMALL), add_pooling_layer=False),
    "roberta": lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(vocab_size=50, **SMALL)),
    "mpnet": lambda: hf.MPNetModel(hf.MPNetConfig(vocab_size=50, **SMALL), add_pooling_layer=False),
    "distilbert": lambda: hf.DistilBertModel(
        hf.DistilBertConfig(vocab_size=50, dim=16, n_layers=2, n_heads=2, hidden_dim=24)
    ),
    "vit": lambda: hf.ViTModel(hf.ViTConfig(**VISION), add_pooling_layer=False),
    "dinov2": lambda: hf.Dinov2Model(hf.Dinov2Config(mlp_ratio=2, **VISION)),
    "dinov2-swiglu": lambda: hf.Dinov2Model(hf.Dinov2Config(mlp_ratio=2, use_swiglu_ffn=True, **VISION)),
    "swin": lambda: hf.SwinModel(
        hf.SwinConfig(
            image_size=32,
            patch_size=4,
            embed_dim=8,
            depths=[2, 2],
            num_heads=[2, 2],
            window_size=2,
            mlp_ratio=2,
        ),
        add_pooling_layer=False,
    ),
    "clip": lambda: hf.CLIPModel(
        hf.CLIPConfig(
            text_config={"vocab_size": 50, "max_position_embeddings": 20, **SMALL, **SPECIAL},
            vision_config=VISION,
            projection_dim=8,
        )
    ),
    "t5": lambda: hf.T5Model(
        hf.T5Config(
            vocab_size=50,
            d_model=16,
            d_kv=8,
            d_ff=24,
            num_layers=2,
            num_heads=2,
            decoder_start_token_id=0,
            feed_forward_proj="gated-gelu",
        )
    ),
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, **SPECIAL)
    ),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=50, num_key_value_heads=1, **SMALL)),
    "mistral": lambda: hf.MistralModel(hf.MistralConfig(vocab_size=50, num_key_value_heads=1, **SMALL)),
    "qwen2": lambda: hf.Qwen2Model(hf.Qwen2Config(vocab_size=50, num_key_value_heads=1, **SMALL)),
    "qwen3": lambda: hf.Qwen3Model(hf.Qwen3Config(vocab_size=50, num_key_value_heads=1, head_dim=8, **SMALL)),
    "neox": lambda: hf.GPTNeoXModel(hf.GPTNeoXConfig(vocab_size=50, **SMALL, **SPECIAL)),
    "bloom": lambda: hf.BloomModel(hf.BloomConfig(vocab_size=50, hidden_size=16, n_layer=2, n_head=2)),
    "phi3": lambda: hf.Phi3Model(hf.Phi3Config(vocab_size=50, num_key_value_heads=1, **SMALL, **SPECIAL)),
    "falcon": lambda: hf.FalconModel(
        hf.FalconConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, **SPECIAL)
    ),
}
VISION_FAMILIES = ("vit", "dinov2", "dinov2-swiglu", "swin")


def pad_ids(inputs: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
    """Lists of token numbers → padded ids and mask."""
    longest = max(len(ids) for ids in inputs)
    ids = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in inputs])
    mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids in inputs])
    return {"input_ids": ids, "attention_mask": mask}


@pytest.fixture
def tiny() -> Callable[..., LoadedModel]:
    """tiny(family, seed=0): a small random model that reads lists of token numbers, or pixel arrays."""

    def build(family: str, seed: int = 0, dtype: Any = torch.float32) -> LoadedModel:
        torch.manual_seed(seed)
        model = BUILDERS[family]().to(dtype)
        if family in VISION_FAMILIES:
            return load_model(model, name=family)
        return load_model(model, name=family, preprocess=pad_ids)

    return build


@pytest.fixture
def sentences() -> list[list[int]]:
    """Twelve inputs of 3 to 9 token numbers."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 10, (12,), generator=generator).tolist()
    return [torch.randint(3, 50, (length,), generator=generator).tolist() for length in lengths]


@pytest.fixture
def pictures() -> Callable[[int], list[Any]]:
    """pictures(size): four float images [3, size, size], as a model takes them."""

    def draw(size: int) -> list[Any]:
        return list(torch.rand(4, 3, size, size, generator=torch.Generator().manual_seed(1)).numpy())

    return draw


@pytest.fixture
def assert_same() -> Callable[[CollectedMoments, CollectedMoments, float], None]:
    """A check that two collections hold the same Moments of the same entries."""

    def check(a: CollectedMoments, b: CollectedMoments, tolerance: float) -> None:
        assert a.entries == b.entries
        for name, moments in a.kept.items():
            assert moments.count == b.kept[name].count
            for part in ("sum_a", "sum_b", "square_a", "square_b", *moments.parts):
                torch.testing.assert_close(
                    getattr(moments, part), getattr(b.kept[name], part), rtol=tolerance, atol=tolerance
                )

    return check
