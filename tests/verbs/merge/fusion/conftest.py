"""What the fusion tests share: small models of several families with fine-tunes, and a toy in memory."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

WORDS = [f"word{number}" for number in range(40)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>"]


def tokenizer() -> Any:
    import tokenizers
    import transformers

    vocabulary = {word: row for row, word in enumerate([*SPECIAL, *WORDS])}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", eos_token="</s>"
    )


def texts(count: int, seed: int = 0) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, size=random.integers(3, 9))) for _ in range(count)]


def pictures(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 3, 8, 8)).astype(np.float32)


def _text(**more: Any) -> dict[str, Any]:
    sides = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return {"vocab_size": 50, "max_position_embeddings": 32, "pad_token_id": 0, **sides, **more}


def _families() -> dict[str, tuple[Any, Any]]:
    """Family → (base, maker of a fine-tune's module from its number of classes; None: as the base)."""
    import transformers as t

    vit = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    vit |= {"image_size": 8, "patch_size": 4}
    clip = t.CLIPConfig(
        text_config={**_text(), "projection_dim": 8},
        vision_config={**vit, "projection_dim": 8},
        projection_dim=8,
    )
    distil = {"vocab_size": 50, "dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2}
    t5 = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    llama = _text(num_key_value_heads=1)
    return {
        "bert": (
            t.BertModel(t.BertConfig(**_text())),
            lambda n: t.BertForSequenceClassification(t.BertConfig(**_text(), num_labels=n)),
        ),
        "roberta": (
            t.RobertaModel(t.RobertaConfig(**_text(max_position_embeddings=40))),
            lambda n: t.RobertaForSequenceClassification(
                t.RobertaConfig(**_text(max_position_embeddings=40), num_labels=n)
            ),
        ),
        "distilbert": (
            t.DistilBertModel(t.DistilBertConfig(**distil)),
            lambda n: t.DistilBertForSequenceClassification(t.DistilBertConfig(**distil, num_labels=n)),
        ),
        "vit": (
            t.ViTModel(t.ViTConfig(**vit)),
            lambda n: t.ViTForImageClassification(t.ViTConfig(**vit, num_labels=n)),
        ),
        "llama-classes": (
            t.LlamaForCausalLM(t.LlamaConfig(**llama)),
            lambda n: t.LlamaForSequenceClassification(t.LlamaConfig(**llama, num_labels=n)),
        ),
        "clip": (t.CLIPModel(clip), None),
        "t5": (t.T5ForConditionalGeneration(t.T5Config(**t5)), None),
        "llama": (t.LlamaForCausalLM(t.LlamaConfig(**llama)), None),
    }


def _disturbed(module: nn.Module, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in module.parameters():
            spread = max(float(tensor.std(correction=0)), 0.02) if tensor.numel() > 1 else 0.02
            tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.15 * spread)
    return module


def make_family(folder: Path, family: str, tuned: int = 3) -> None:
    """Write `base` and fine-tunes `task-0` … of one family below `folder`."""
    import copy

    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    with contextlib.redirect_stderr(io.StringIO()):
        base, maker = _families()[family]
        base.save_pretrained(folder / "base")
        tokenizer().save_pretrained(folder / "base")
        for number in range(tuned):
            module = copy.deepcopy(base) if maker is None else maker(2 + number)
            if maker is not None:
                inner = getattr(module, module.base_model_prefix)
                known = getattr(base, base.base_model_prefix, base) if family == "llama-classes" else base
                inner.load_state_dict(known.state_dict(), strict=False)
            _disturbed(module, 1 + number).save_pretrained(folder / f"task-{number}")
            tokenizer().save_pretrained(folder / f"task-{number}")


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A maker of small families of models, each made once."""
    by_name: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in by_name:
            by_name[name] = tmp_path_factory.mktemp(name)
            make_family(by_name[name], name)
        return by_name[name]

    return make


@pytest.fixture(scope="session")
def rows() -> Callable[..., Any]:
    """A maker of raw inputs for a family."""

    def make(name: str, count: int, seed: int = 0) -> Any:
        return pictures(count, seed) if name in ("vit", "clip") else texts(count, seed)

    return make
