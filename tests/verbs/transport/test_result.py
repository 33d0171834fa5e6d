"""What is written, and what is reused: heads of bare modules, statistics of one way of reading inputs."""

import numpy as np
import pytest
import torch

from transship.verbs.transport import transport


def test_a_head_carried_to_a_bare_module_is_written_in_the_class_that_holds_it(kit, tmp_path):
    from safetensors.torch import load_file
    from transformers import ViTConfig, ViTForImageClassification, ViTModel

    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 28, "patch_size": 7}
    config = ViTConfig(hidden_size=24, intermediate_size=48, num_channels=1, **shape)
    target = kit.spread(ViTModel(config, add_pooling_layer=False), 5).eval()
    source = kit.tiny_vit(16)
    tuned, images = kit.nudge(source, size=0.3), kit.pictures(64)
    result = transport(source, tuned, target, data=images, method="carry", batches=1, strength=1.0)
    result.save(tmp_path / "out")
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(written["classifier.weight"], result.head.weight)
    assert torch.equal(written["classifier.bias"], result.head.bias)
    loaded = ViTForImageClassification.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(kit.logits(loaded, images), kit.logits(result.model(), images))
    plain = transport(source, tuned, target, data=images, method="theseus", batches=1, strength=1.0)
    plain.save(tmp_path / "plain")
    assert "classifier.weight" not in load_file(tmp_path / "plain" / "model.safetensors")


def test_another_preprocessing_does_not_reuse_the_statistics_of_the_first(kit, tmp_path):
    source, target = kit.tiny_vit(16), kit.tiny_vit(24, seed=4)
    tuned, images = kit.nudge(source), kit.pictures(32)
    given = {"data": images, "method": "theseus", "strength": 1.0, "batches": 1}

    def read(rows):
        return {"pixel_values": torch.from_numpy(np.stack(rows))}

    def mirrored(rows):
        return {"pixel_values": read(rows)["pixel_values"].flip(-1) ** 3}

    def moved(preprocess, prepared=None):
        result = transport(source, tuned, target, preprocess=preprocess, prepared=prepared, **given)
        return result.moved.dense["vit.layers.0.mlp.fc1.weight"]

    first, other = moved(read, tmp_path), moved(mirrored, tmp_path)
    torch.testing.assert_close(other, moved(mirrored))
    assert not torch.allclose(first, other)
    assert len(list(tmp_path.iterdir())) == 2
    torch.testing.assert_close(moved(lambda rows: read(rows), tmp_path), first)
    assert len(list(tmp_path.iterdir())) == 2, "another function that reads alike shares them"


def test_another_tokenizer_does_not_reuse_the_statistics_of_the_first(kit, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = ["<pad>", "<unk>", "bad", "gen", "kip", "log", "mun"]

    def folder(name: str, model, order: list[str]) -> str:
        entries = Tokenizer(
            models.WordLevel({word: row for row, word in enumerate(order)}, unk_token="<unk>")
        )
        entries.pre_tokenizer = pre_tokenizers.Whitespace()
        model.save_pretrained(tmp_path / name)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=entries, pad_token="<pad>", unk_token="<unk>")
        tokenizer.save_pretrained(tmp_path / name)
        return str(tmp_path / name)

    shape = {"intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=7, hidden_size=16, max_position_embeddings=16, **shape)
    base = kit.spread(BertModel(config, add_pooling_layer=False), 1).eval()
    tuned = kit.nudge(base)
    texts = [" ".join(words[2 + (row + place) % 5] for place in range(6)) for row in range(32)]
    entries = []
    for name, order in (("one", words), ("other", [*words[:2], *reversed(words[2:])])):
        places = [folder(f"{name}-{part}", model, order) for part, model in (("a", base), ("t", tuned))]
        transport(
            *places,
            places[0],
            data=texts,
            method="theseus",
            strength=1.0,
            batches=1,
            prepared=tmp_path / "prepared",
        )
        entries.append(len(list((tmp_path / "prepared").iterdir())))
    assert entries == [1, 2]


@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_an_adapter_at_any_strength_is_one_that_peft_loads(kit, tmp_path, strength):
    peft = pytest.importorskip("peft")
    from safetensors.torch import load_file
    from transformers import GPT2Config, GPT2Model

    def gpt2(width: int, seed: int):
        config = GPT2Config(vocab_size=40, n_embd=width, n_layer=2, n_head=2, n_positions=16)
        return kit.spread(GPT2Model(config), seed).eval()

    base, wide = gpt2(16, 1), gpt2(24, 2)
    base.save_pretrained(tmp_path / "a")
    wide.save_pretrained(tmp_path / "b")
    config = peft.LoraConfig(
        r=3, lora_alpha=1, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, init_lora_weights=False
    )
    peft.get_peft_model(base, config).save_pretrained(tmp_path / "lora")

    def preprocess(rows):
        return {"input_ids": torch.stack([torch.as_tensor(row) for row in rows])}

    ids = torch.randint(0, 40, (32, 8), generator=torch.Generator().manual_seed(0))
    result = transport(
        *(str(tmp_path / name) for name in ("a", "lora", "b")),
        data=ids,
        method="theseus",
        strength=strength,
        batches=1,
        preprocess=preprocess,
    )
    assert result.adapter
    result.save(tmp_path / "out", force=strength == 0.0)
    stored = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert {each.shape[0] for name, each in stored.items() if "lora_A" in name} == {3}, "the rank is kept"
    loaded = peft.PeftModel.from_pretrained(GPT2Model.from_pretrained(tmp_path / "b"), str(tmp_path / "out"))
    after = loaded.merge_and_unload().state_dict()
    same = [torch.equal(after[name], tensor) for name, tensor in wide.state_dict().items()]
    assert all(same) == (strength == 0.0)
