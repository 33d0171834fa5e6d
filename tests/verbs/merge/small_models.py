"""Small random checkpoints of three families and their fine-tunes, for recipes to run on."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

WORDS = [f"word{number}" for number in range(52)]


def make(folder: Path) -> None:
    """Write all models below `folder`: llama (bfloat16), bert (float16), gpt2, t5, vit and clip (float32)."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    with contextlib.redirect_stderr(io.StringIO()):
        llama = transformers.LlamaForCausalLM(_llama(60))
        _family(folder, "llama", llama, torch.bfloat16, "abc")
        _tokenizers(folder)
        _other_words(folder, llama)
        _adapters(folder)
        gpt2 = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=60, n_positions=32, n_embd=32, n_layer=3, n_head=4)
        )
        _family(folder, "gpt2", gpt2, torch.float32, "ab")
        bert = transformers.BertForSequenceClassification(_bert(3))
        _family(folder, "bert", bert, torch.float16, "ab")
        _tasks(folder, bert)
        t5 = transformers.T5ForConditionalGeneration(
            transformers.T5Config(
                vocab_size=60,
                d_model=32,
                d_kv=8,
                d_ff=48,
                num_layers=2,
                num_decoder_layers=3,
                num_heads=4,
                feed_forward_proj="gated-gelu",
                tie_word_embeddings=False,
            )
        )
        _family(folder, "t5", t5, torch.float32, "a")
        _pictures(folder)


def _pictures(folder: Path) -> None:
    import torch
    import transformers

    sides = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "projection_dim": 16}
    vit = transformers.ViTConfig(image_size=8, patch_size=4, num_hidden_layers=2, num_labels=3, **sides)
    _family(folder, "vit", transformers.ViTForImageClassification(vit), torch.float32, "ab")
    clip = transformers.CLIPConfig(
        text_config={"vocab_size": 60, "num_hidden_layers": 2, "max_position_embeddings": 16, **sides},
        vision_config={"image_size": 8, "patch_size": 4, "num_hidden_layers": 3, **sides},
        projection_dim=16,
    )
    _family(folder, "clip", transformers.CLIPModel(clip), torch.float32, "ab")


def _llama(words: int) -> Any:
    import transformers

    return transformers.LlamaConfig(
        vocab_size=words,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
    )


def _bert(labels: int) -> Any:
    import transformers

    return transformers.BertConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=32,
        num_labels=labels,
    )


def _family(folder: Path, name: str, base: Any, dtype: Any, tuned: str) -> None:
    """Write a base and its fine-tunes: the base with noise, a tenth of each tensor's spread."""
    import copy

    base.to(dtype).save_pretrained(folder / f"{name}-base")
    for letter in tuned:
        model = copy.deepcopy(base)
        _disturb(model, ord(letter))
        model.to(dtype).save_pretrained(folder / f"{name}-{letter}")


def _disturb(model: Any, seed: int) -> None:
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in dict(model.named_parameters()).values():
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.copy_(tensor.float() + noise * 0.1 * max(float(tensor.float().std(correction=0)), 0.02))


def _tokenizers(folder: Path) -> None:
    for name in ("base", "a", "b", "c"):
        tokenizer(WORDS).save_pretrained(folder / f"llama-{name}")


def tokenizer(words: list[str]) -> Any:
    """Return a fast tokenizer whose vocabulary is eight special signs and `words`."""
    import tokenizers
    import transformers

    special = ["<s>", "</s>", "<unk>", "<pad>", "a", "b", "c", "d"]
    vocabulary = {token: row for row, token in enumerate([*special, *words])}
    plain = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="<unk>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )


def _other_words(folder: Path, llama: Any) -> None:
    """Write a fine-tune whose vocabulary has the same words in another order, and four new ones."""
    import torch
    import transformers

    words = [*WORDS[26:], "new0", "new1", "new2", "new3", *WORDS[:26]]
    model = transformers.LlamaForCausalLM(_llama(64)).to(torch.bfloat16)
    old = dict(llama.named_parameters())
    rows = [WORDS.index(word) + 8 if word in WORDS else None for word in words]
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.shape == old[name].shape:
                tensor.copy_(old[name])
                continue
            for row, place in enumerate([*range(8), *rows]):
                if place is not None:
                    tensor[row] = old[name][place]
    _disturb(model, 7)
    model.save_pretrained(folder / "llama-words")
    tokenizer(words).save_pretrained(folder / "llama-words")


def _adapters(folder: Path) -> None:
    import peft
    import torch
    import transformers

    for seed, name in enumerate(("lora-a", "lora-b")):
        model = transformers.LlamaForCausalLM.from_pretrained(folder / "llama-base")
        wrapped = peft.get_peft_model(
            model, peft.LoraConfig(r=3 + seed, lora_alpha=8, target_modules=["q_proj", "down_proj"])
        )
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for key, tensor in wrapped.named_parameters():
                if "lora_" in key:
                    tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.1)
        wrapped.save_pretrained(folder / f"llama-{name}")


def _tasks(folder: Path, bert: Any) -> None:
    """Write two fine-tunes of one encoder with label sets of their own."""
    import torch
    import transformers

    for labels, name in ((2, "mood"), (4, "topic")):
        config = _bert(labels)
        config.id2label = {number: f"{name}-{number}" for number in range(labels)}
        model = transformers.BertForSequenceClassification(config).to(torch.float16)
        with torch.no_grad():
            for key, tensor in model.named_parameters():
                if not key.startswith("classifier"):
                    tensor.copy_(dict(bert.named_parameters())[key])
        _disturb(model, labels)
        model.save_pretrained(folder / f"bert-{name}")
