import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from safetensors.torch import load_file, save_file

from transship.activations import LoadedModel, collect, load_model
from transship.errors import CheckpointError, DataError, MissingError, OptionError

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
# name → sites that show the family: (stack, roles of a block that must be there, blocks)
REAL = {
    "minilm-l6": ("text", "norm.attention_out", 6),
    "minilm-l6-sre": ("text", "norm.attention_out", 6),
    "minilm-l3": ("text", "norm.attention_out", 3),
    "bge-small": ("text", "norm.attention_out", 12),
    "granite-small": ("text", "norm.attention_out", 6),
    "distilbert-768": ("text", "norm.attention_out", 6),
    "mpnet-base": ("text", "norm.attention_out", 12),
    "flan-t5-small": ("decoder", "cross_attention.value", 8),
    "smollm2-135m": ("text", "mlp.gate", 30),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_a_real_model_opens_shows_its_sites_and_runs(name: str, models_dir: Path):
    model = load_model(models_dir / name)
    stack, role, depth = REAL[name]
    assert sum(site.stack == stack and site.role == role for site in model.sites) == depth
    texts = ["An animal that barks.", "A tall plant with one trunk", "to run"]
    collected = collect(model, model, None, texts, tokens_per_input=None, kinds=("block",))
    moments = collected.output(f"{stack}.{depth - 1}.block")
    assert moments.count > 0
    torch.testing.assert_close(moments.sum_a, moments.sum_b)
    missing = [each for each in collected.skipped if "does not run" in each.reason]
    assert not missing


def test_a_pooler_that_is_not_in_the_file_is_not_invented(tmp_path: Path):
    hf.BertModel(hf.BertConfig(vocab_size=30, **SMALL), add_pooling_layer=False).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert not any("pooler" in name for name, _ in model.model.named_parameters())
    stored = load_file(tmp_path / "model.safetensors")
    for name, tensor in model.model.named_parameters():
        torch.testing.assert_close(tensor.detach(), stored[name])


def test_a_weight_that_is_missing_is_an_error_not_a_random_number(tmp_path: Path):
    hf.BertModel(hf.BertConfig(vocab_size=30, **SMALL)).save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    del stored["encoder.layer.1.output.dense.weight"]
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks 'encoder\.layer\.1\.output\.dense\.weight'"):
        load_model(tmp_path)


def test_a_tensor_without_a_place_is_an_error(tmp_path: Path):
    hf.BertModel(hf.BertConfig(vocab_size=30, **SMALL)).save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    stored["encoder.layer.2.output.dense.weight"] = stored["encoder.layer.1.output.dense.weight"].clone()
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"for which BertModel has no place"):
        load_model(tmp_path)


def test_the_head_is_loaded_when_asked_for(tmp_path: Path):
    torch.manual_seed(0)
    model = hf.DistilBertForSequenceClassification(
        hf.DistilBertConfig(vocab_size=30, dim=16, n_layers=1, n_heads=2, hidden_dim=24)
    )
    model.save_pretrained(tmp_path)
    bare, whole = load_model(tmp_path), load_model(tmp_path, head=True)
    assert type(bare.model).__name__ == "DistilBertModel"
    assert set(bare.unused) == {
        "classifier.weight",
        "classifier.bias",
        "pre_classifier.weight",
        "pre_classifier.bias",
    }
    assert whole.unused == ()
    assert any(site.role == "head" and site.out_width == 2 for site in whole.sites)


def test_a_head_that_is_not_in_the_file_is_refused(tmp_path: Path):
    hf.MPNetModel(hf.MPNetConfig(vocab_size=30, **SMALL)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = ["MPNetForMaskedLM"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert type(load_model(tmp_path).model).__name__ == "MPNetModel"
    with pytest.raises(CheckpointError, match="lacks"):
        load_model(tmp_path, head=True)


def test_references_that_are_no_model_are_one_sentence(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        load_model(tmp_path)
    (tmp_path / "one.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="one weight file has no config"):
        load_model(tmp_path / "one.safetensors")
    with pytest.raises(MissingError, match="there is no such file or folder"):
        load_model(tmp_path / "not" / "here")


def test_dtypes_are_chosen_by_name(tmp_path: Path):
    hf.BertModel(hf.BertConfig(vocab_size=30, **SMALL)).to(torch.bfloat16).save_pretrained(tmp_path)
    assert next(load_model(tmp_path).model.parameters()).dtype == torch.float32
    assert next(load_model(tmp_path, dtype="auto").model.parameters()).dtype == torch.bfloat16
    with pytest.raises(OptionError, match="is no dtype"):
        load_model(tmp_path, dtype="float17")


def test_half_precision_models_are_collected_in_float32(
    tiny: Callable[..., LoadedModel], sentences: list[list[int]]
):
    collected = collect(tiny("bert", 0, torch.bfloat16), tiny("t5", 1, torch.bfloat16), None, sentences)
    assert collected.output("encoder.1.mlp.out").ab.dtype == torch.float64
    collected.check()


def test_the_decoder_reads_the_same_text_shifted_right(tiny: Callable[..., LoadedModel]):
    batch = tiny("t5").preprocess([[7, 8, 9], [5]])
    assert batch.inputs["decoder_input_ids"].tolist() == [[0, 7, 8], [0, 5, 0]]
    assert batch.layout("decoder").mask.tolist() == [[True, True, True], [True, False, False]]
    assert batch.layout("decoder").causal


def test_causal_models_are_known_by_their_family(tiny: Callable[..., LoadedModel]):
    causal = {
        family: tiny(family).causal
        for family in ("bert", "roberta", "t5", "vit", "gpt2", "llama", "qwen3", "bloom")
    }
    assert [family for family, is_causal in causal.items() if is_causal] == [
        "gpt2",
        "llama",
        "qwen3",
        "bloom",
    ]


def test_a_text_without_tokens_is_refused(models_dir: Path):
    model = load_model(models_dir / "smollm2-135m")
    with pytest.raises(DataError, match="has no tokens"):
        model.preprocess(["words", ""])


def test_a_model_of_sound_or_of_texts_says_what_it_reads(minilm: Path):
    sizes = {"d_model": 8, "encoder_attention_heads": 1, "encoder_ffn_dim": 8, "encoder_layers": 1}
    sound = hf.WhisperConfig(**sizes, decoder_layers=1, decoder_attention_heads=1, decoder_ffn_dim=8)
    hearing = LoadedModel("whisper", hf.WhisperModel(sound), tokenizer=object())
    assert hearing.kind == "array"
    with pytest.raises(DataError, match="the model reads sound, and the inputs are texts"):
        hearing.preprocess(["a text"])
    with pytest.raises(DataError, match="the model reads texts, and the inputs are numbers"):
        load_model(minilm).preprocess([np.zeros(4)])


def test_images_take_the_folders_own_processor(tmp_path: Path):
    torch.manual_seed(0)
    config = hf.ViTConfig(image_size=16, patch_size=4, **SMALL)
    hf.ViTModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "image_processor_type": "ViTImageProcessor",
                "size": {"height": 16, "width": 16},
                "image_mean": [0.5, 0.4, 0.3],
                "image_std": [0.5, 0.5, 0.5],
                "do_resize": True,
                "do_rescale": True,
                "do_normalize": True,
            }
        )
    )
    model = load_model(tmp_path)
    array = np.full((16, 16, 3), 255, dtype=np.uint8)
    pixels = model.preprocess([Image.fromarray(array)]).inputs["pixel_values"]
    expected = torch.tensor([1.0, 1.2, 1.4])[None, :, None, None].expand(1, 3, 16, 16)
    torch.testing.assert_close(pixels, expected)
    assert model.preprocess([Image.fromarray(array).resize((40, 30))]).inputs["pixel_values"].shape == (
        1,
        3,
        16,
        16,
    )


def test_images_without_a_processor_are_scaled_to_one(tiny: Callable[..., LoadedModel]):
    model = tiny("vit")
    gray = np.full((20, 20), 51, dtype=np.uint8)
    batch = model.preprocess([gray, Image.fromarray(gray)])
    torch.testing.assert_close(batch.inputs["pixel_values"], torch.full((2, 3, 16, 16), 0.2))
    assert batch.layout("vision").grids == ((4, 4),)


def test_arrays_of_any_model_are_stacked_and_ragged_ones_refused():
    model = load_model(torch.nn.Linear(3, 2))
    assert model.preprocess([np.zeros(3), np.ones(3)]).inputs[""].dtype == torch.float32
    with pytest.raises(DataError, match="different shapes"):
        model.preprocess([np.zeros(3), np.zeros(4)])


def test_a_preprocess_that_returns_nonsense_is_named():
    model = load_model(torch.nn.Linear(3, 2), preprocess=lambda inputs: "words")
    with pytest.raises(DataError, match="preprocess returned a str"):
        model.preprocess([1])


@pytest.mark.parametrize("family", ["clip"])
def test_pairs_of_image_and_text_run_both_towers(
    family: str, tiny: Callable[..., LoadedModel], pictures: Any, minilm: Path
):
    model = tiny(family)
    model.custom = None
    model.tokenizer = load_model(minilm).tokenizer
    model.max_length = 8
    batch = model.preprocess([(picture, "text") for picture in pictures(16)])
    assert set(batch.layouts) == {"vision", "text"}
    assert {"pixel_values", "input_ids"} <= set(batch.inputs)


def test_pairs_of_texts_are_read_as_two_texts_with_offsets_that_count_through(minilm: Path):
    loaded = load_model(minilm)
    pairs = [("a dog runs", "the animal is running"), ("no", "yes, but later")]
    batch = loaded.preprocess(pairs)
    joined = loaded.tokenizer(*zip(*pairs, strict=True), padding=True, return_tensors="pt")
    assert torch.equal(batch.inputs["input_ids"], joined["input_ids"])
    assert torch.equal(batch.inputs["token_type_ids"], joined["token_type_ids"])
    layout = batch.layout("text")
    assert layout.offsets is not None
    assert layout.mask is not None
    assert layout.special is not None
    for row, (first, other) in enumerate(pairs):
        both = f"{first} {other}"
        kept = layout.mask[row] & ~layout.special[row]
        words = [both[start:stop] for start, stop in layout.offsets[row][kept]]
        assert "".join(words) == both.replace(" ", "")
    assert loaded.length(pairs[0]) == len("".join(pairs[0]))


def test_pairs_of_texts_align_between_tokenizers_text_by_text(minilm: Path, models_dir: Path):
    from transship.activations import align_tokens

    source, target = load_model(minilm), load_model(models_dir / "granite-small")
    pair = ("unmistakably the bank of the river", "a riverbank is unmistakable")
    batches = source.preprocess([pair]), target.preprocess([pair])
    lengths = [batch.inputs["input_ids"].shape[1] for batch in batches]
    alignment = align_tokens(*(batch.layout("text") for batch in batches), *lengths)
    # offsets are mixed like activations: the two sides of a row must then lie at the same place of the texts
    centres = []
    for operator, batch in zip((alignment.source, alignment.target), batches, strict=True):
        offsets = batch.layout("text").offsets
        assert offsets is not None
        centres.append(operator.apply(torch.from_numpy(offsets[0]).double()).mean(1))
    seen = centres[1] > 0
    border = len(pair[0])
    assert int((centres[1][seen] > border).sum()) >= 4
    assert torch.equal(centres[0][seen] > border, centres[1][seen] > border)
    assert float((centres[0] - centres[1])[seen].abs().max()) < len("unmistakably")
