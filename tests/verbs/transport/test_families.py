"""Pairs of every family, from folder to folder: transported, saved, loaded again; adapters stay adapters."""

import copy
import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from transship.verbs.transport import transport

WORDS = [
    first + second for first in "bcdfgklm" for second in ("ad", "en", "ip", "og", "un", "ar", "el", "is")
]
VOCABULARY = len(WORDS) + 3


def sentences(count: int, seed: int = 0) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, generator.integers(6, 14))) for _ in range(count)]


def save(model: nn.Module, folder: Path, words: list[str] | None = WORDS) -> str:
    model.eval().save_pretrained(folder)
    if words is not None:
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        vocabulary = {word: row for row, word in enumerate(["<pad>", "<unk>", "</s>", *words])}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            pad_token="<pad>",
            unk_token="<unk>",
            eos_token="</s>",
            model_max_length=32,
        ).save_pretrained(folder)
    return str(folder)


def t5(width: int, heads: int, blocks: int = 2):
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCABULARY,
            d_model=width,
            d_kv=8,
            d_ff=2 * width,
            num_layers=blocks,
            num_heads=heads,
            dropout_rate=0.0,
            decoder_start_token_id=0,
            tie_word_embeddings=True,
        )
    )


def gpt2(width: int, heads: int, blocks: int = 2):
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=width,
            n_layer=blocks,
            n_head=heads,
            n_positions=32,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=2,
            eos_token_id=2,
        )
    )


def llama(width: int, heads: int, blocks: int = 2):
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=blocks,
            num_attention_heads=heads,
            num_key_value_heads=2,
            max_position_embeddings=32,
        )
    )


def clip(width: int, heads: int, blocks: int = 2, text_heads: int | None = None):
    from transformers import CLIPConfig, CLIPModel

    tower = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": blocks,
        "num_attention_heads": heads,
    }
    return CLIPModel(
        CLIPConfig(
            text_config={
                **tower,
                "num_attention_heads": text_heads or heads,
                "vocab_size": VOCABULARY,
                "max_position_embeddings": 16,
                "eos_token_id": 2,
                "bos_token_id": 1,
            },
            vision_config={**tower, "image_size": 28, "patch_size": 7},
            projection_dim=16,
        )
    )


FAMILIES = {"t5": t5, "gpt2": gpt2, "llama": llama, "clip": clip}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_pair_of_other_width_goes_from_folder_to_folder(kit, tmp_path, name):
    build = FAMILIES[name]
    words = None if name == "clip" else WORDS
    torch.manual_seed(0)
    base, wide = kit.spread(build(32, 4), 1), kit.spread(build(48, 6, 3), 2)
    tuned = kit.nudge(base, size=0.05)
    folders = [
        save(model, tmp_path / title, words) for title, model in (("a", base), ("tuned", tuned), ("b", wide))
    ]
    data = kit.pictures(48, channels=3) if name == "clip" else sentences(48)
    result = transport(*folders, data=data, method="theseus", strength=1.0, batches=1)
    result.save(tmp_path / "out")
    loaded = type(wide).from_pretrained(tmp_path / "out")
    before, after = wide.state_dict(), loaded.state_dict()
    assert set(before) == set(after)
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert changed
    wanted = result.model().state_dict()
    assert set(wanted) == set(after)
    for key, expected in wanted.items():
        assert torch.isfinite(after[key]).all()
        torch.testing.assert_close(after[key], expected, atol=1e-6, rtol=1e-5, msg=key)
    reasons = {each.tensor: each.reason for each in result.moved.left}
    names = {key for key, _ in base.named_parameters()}
    sources = {part for layer in result.moved.layers for part in layer.sources}
    assert sources
    if name == "clip":
        assert all("text" in tensor or "logit" in tensor for tensor in reasons), reasons
        assert any("does not run on these inputs" in reason for reason in reasons.values())
        assert any("vision" in key for key in changed)
    else:
        assert not reasons, reasons
        assert len(changed) >= len(names)


@pytest.mark.slow
def test_t5_gpt2_and_llama_twins_of_one_model_get_their_update_back(kit, tmp_path):
    for name in ("t5", "gpt2", "llama"):
        torch.manual_seed(0)
        base = kit.spread(FAMILIES[name](32, 4), 5)
        tuned = kit.nudge(base, size=0.05)
        folders = [
            save(model, tmp_path / f"{name}-{title}") for title, model in (("a", base), ("tuned", tuned))
        ]
        result = transport(
            *folders,
            folders[0],
            data=sentences(256),
            method="theseus",
            strength=1.0,
            batches=8,
            dtype="float64",
            tokens_per_input=0,
        )
        result.save(tmp_path / f"{name}-out")
        loaded = type(base).from_pretrained(tmp_path / f"{name}-out").state_dict()
        for key, wanted in tuned.state_dict().items():
            torch.testing.assert_close(loaded[key], wanted, atol=2e-5, rtol=1e-4, msg=f"{name} {key}")


@pytest.mark.slow
def test_a_rotated_llama_gets_the_rotated_fine_tune(kit, tmp_path):
    torch.manual_seed(0)
    base = kit.spread(llama(32, 4), 7)
    with torch.no_grad():
        for name, parameter in base.named_parameters():
            if "norm" in name:  # a root mean square is the same in every rotated basis; a gain is not
                parameter.fill_(1.0)
    tuned = kit.nudge(base, size=0.05, names=lambda name: "norm" not in name)
    turn = torch.linalg.qr(torch.randn(32, 32, dtype=torch.float64))[0]

    def rotated(model: nn.Module) -> nn.Module:
        twin = copy.deepcopy(model)
        with torch.no_grad():
            for name, parameter in twin.named_parameters():
                if "norm" in name:
                    continue
                writes = name.endswith(("o_proj.weight", "down_proj.weight"))
                wide = parameter.double()
                parameter.copy_(turn.T @ wide if writes else wide @ turn)
        return twin

    models = {"a": base, "tuned": tuned, "b": rotated(base)}
    folders = [save(model, tmp_path / title) for title, model in models.items()]
    options = {"method": "theseus", "strength": 1.0, "batches": 8, "dtype": "float64", "tokens_per_input": 0}
    moved = transport(*folders, data=sentences(256), **options)
    ids = torch.randint(3, VOCABULARY, (8, 11))
    with torch.no_grad():
        output, wanted, before = (model(ids).logits for model in (moved.model().float(), tuned, models["b"]))
    assert float((output - wanted).abs().max()) < 1e-4
    assert float((before - wanted).abs().max()) > 0.05, "the fine-tune does something"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_an_adapter_becomes_an_adapter_that_equals_the_dense_transport(kit, tmp_path, name):
    peft = pytest.importorskip("peft")
    build = FAMILIES[name]
    torch.manual_seed(0)
    base, wide = build(32, 4), build(48, 6)
    kit.spread(base, 1)
    kit.spread(wide, 2)
    folders = [save(model, tmp_path / title) for title, model in (("a", base), ("b", wide))]
    modules = ["c_attn", "c_proj", "c_fc"] if name == "gpt2" else ["q_proj", "v_proj", "down_proj"]
    adapted = peft.get_peft_model(
        type(base).from_pretrained(folders[0]),
        peft.LoraConfig(
            r=3, lora_alpha=5, target_modules=modules, fan_in_fan_out=name == "gpt2", init_lora_weights=False
        ),
    )
    adapted.save_pretrained(tmp_path / "lora")
    merged = adapted.merge_and_unload()
    merged_folder = save(merged, tmp_path / "merged")
    arguments = {"data": sentences(96), "method": "theseus", "strength": 2.0, "batches": 3}
    moved = transport(folders[0], str(tmp_path / "lora"), folders[1], **arguments)
    dense = transport(folders[0], merged_folder, folders[1], **arguments)
    moved.save(tmp_path / "out")
    loaded = peft.PeftModel.from_pretrained(type(wide).from_pretrained(folders[1]), str(tmp_path / "out"))
    ranks = {config.r for config in loaded.peft_config.values()}
    assert ranks == {3}
    merged_target = loaded.merge_and_unload().state_dict()
    wanted = dense.model().state_dict()
    for key, tensor in wanted.items():
        torch.testing.assert_close(merged_target[key], tensor, atol=1e-4, rtol=0, msg=key)
    ids = torch.randint(3, VOCABULARY, (4, 9))
    with torch.no_grad():
        there, here, untouched = (model(ids).logits for model in (dense.model(), loaded, wide))
    assert float((here - there).abs().max()) < 1e-4
    assert float((here - untouched).abs().max()) > 0.1, "the adapter does something"


@pytest.mark.slow
def test_post_norm_encoders_of_other_depth_move_norms_and_maps(kit, tmp_path):
    from transformers import BertConfig, BertModel

    def bert(width: int, blocks: int):
        shape = {"hidden_size": width, "num_hidden_layers": blocks, "num_attention_heads": 4}
        config = BertConfig(
            vocab_size=VOCABULARY, intermediate_size=2 * width, max_position_embeddings=32, **shape
        )
        return kit.spread(BertModel(config, add_pooling_layer=False), blocks)

    base = bert(32, 6)
    models = {"a": base, "tuned": kit.nudge(base), "b": bert(48, 3)}
    folders = [save(model, tmp_path / title) for title, model in models.items()]
    result = transport(*folders, data=sentences(96), method="theseus", strength=1.0, batches=3)
    assert {layer.site for layer in result.moved.layers} >= {"text.1.norm.mlp_out", "text.1.attention.query"}
    assert all("blocks against" in each.reason for each in result.moved.left), result.moved.left


@pytest.mark.slow
def write_narrow_llama(folder, tokens_of):
    """Write a Llama of three blocks with random weights, which reads with the tokenizer of another folder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    for file in tokens_of.glob("*token*"):
        shutil.copyfile(file, folder / file.name)


def test_a_real_llama_moves_its_adapter_to_a_narrower_random_one(models_dir, tmp_path):
    peft = pytest.importorskip("peft")

    from transformers import AutoModelForCausalLM, LlamaForCausalLM

    source = models_dir / "smollm2-135m"
    adapted = peft.get_peft_model(
        AutoModelForCausalLM.from_pretrained(source),
        peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False),
    )
    adapted.save_pretrained(tmp_path / "lora")
    write_narrow_llama(tmp_path / "small", source)
    texts = [
        "The cat sat on the mat.",
        "Rivers run to the sea.",
        "He wrote a short letter.",
        "Rain fell all night.",
    ] * 8
    result = transport(
        str(source),
        str(tmp_path / "lora"),
        str(tmp_path / "small"),
        data=texts,
        method="theseus",
        strength=1.0,
        batches=1,
    )
    assert all("3 blocks against 30" in each.reason for each in result.moved.left)
    result.save(tmp_path / "out")
    loaded = peft.PeftModel.from_pretrained(
        LlamaForCausalLM.from_pretrained(tmp_path / "small"), str(tmp_path / "out")
    )
    merged = loaded.merge_and_unload().state_dict()
    wanted = result.model().state_dict()
    for key, tensor in wanted.items():
        torch.testing.assert_close(merged[key], tensor, atol=1e-4, rtol=1e-3, msg=key)
    dataclasses.replace(result, adapter=False).save(tmp_path / "whole")
    whole = LlamaForCausalLM.from_pretrained(tmp_path / "whole").state_dict()
    for key, tensor in wanted.items():
        torch.testing.assert_close(whole[key], tensor, atol=1e-6, rtol=1e-5, msg=key)
    ranks = {name: factors[0].shape[1] for name, factors in result.moved.factors.items()}
    assert ranks["model.layers.0.self_attn.q_proj.weight"] == 2
    assert ranks["model.layers.1.self_attn.q_proj.weight"] == 4, "it stands between two source blocks"


@pytest.mark.slow
def test_a_clip_fine_tune_moves_under_zero_shot_heads_and_loads_as_clip(kit, tmp_path):
    from transformers import CLIPModel

    from transship.activations import load_model
    from transship.verbs.transport.models import zero_shot

    torch.manual_seed(0)
    base, wide = kit.spread(clip(32, 4), 1), kit.spread(clip(48, 6), 2)
    tuned = kit.nudge(base, size=0.2, names=lambda name: "vision" in name)
    models = {"a": base, "tuned": tuned, "b": wide}
    folders = [save(model, tmp_path / title) for title, model in models.items()]
    names, templates = WORDS[:4], ("{}", f"{WORDS[9]} {{}}")
    headed = [zero_shot(load_model(folder), names, templates) for folder in folders]
    images = kit.pictures(96, channels=3)
    result = transport(*headed, data=images, method="theseus", batches=2)
    assert result.choice.by == "agreement", "the heads of both towers speak of the same classes"
    moved = result.at(2.0).model()
    moved.clip.save_pretrained(tmp_path / "out")
    before, after = wide.state_dict(), CLIPModel.from_pretrained(tmp_path / "out").state_dict()
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert changed
    assert all("vision" in key or "visual" in key for key in changed), "the head's own tower stays"
    assert torch.equal(moved.classifier.weight, headed[2].model.classifier.weight), "the head is frozen"


def test_rebasin_matches_the_heads_of_the_image_tower(kit):
    """A model whose image heads are in another order: the update lands where that order puts it."""
    torch.manual_seed(0)
    base = kit.spread(clip(32, 4, text_heads=2), 1)
    tuned, turned = kit.nudge(base, size=0.05), copy.deepcopy(base)
    order = torch.arange(32).reshape(4, 8)[[2, 0, 3, 1]].reshape(-1)
    with torch.no_grad():
        for model in (turned, wanted := copy.deepcopy(tuned)):
            for layer in model.vision_model.encoder.layers:
                attention = layer.self_attn
                for part in (attention.q_proj, attention.k_proj, attention.v_proj):
                    part.weight.copy_(part.weight[order])
                    part.bias.copy_(part.bias[order])
                attention.out_proj.weight.copy_(attention.out_proj.weight[:, order])
    data = kit.pictures(48, channels=3)
    result = transport(base, tuned, turned, data=data, method="transfusion", strength=1.0, batches=1)
    weights = result.model().vision_model.state_dict()
    for key, expected in wanted.vision_model.state_dict().items():
        if "self_attn" in key:
            torch.testing.assert_close(weights[key], expected, atol=1e-5, rtol=1e-4, msg=key)
