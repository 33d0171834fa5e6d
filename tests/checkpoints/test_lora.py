"""Adapters made by the real PEFT: read as updates, refused where they are no sum, written and loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transship.checkpoints import Update, applied, write_adapter, write_checkpoint
from transship.checkpoints import open as open_checkpoint
from transship.errors import CheckpointError


def load(folder: Path, architecture: str | None = None):
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    return getattr(transformers, architecture or config.architectures[0]).from_pretrained(folder).eval()


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        if model.config.model_type == "vit":
            return model(pixel_values=torch.linspace(-1, 1, 3 * 64).reshape(1, 3, 8, 8)).logits
        return model(input_ids=torch.tensor([[5, 9, 33, 2, 60]])).logits


def train(folder: Path, out: Path, architecture: str | None = None, **options: Any) -> Path:
    """Save an adapter with random factors, as if trained."""
    torch.manual_seed(7)
    model = peft.get_peft_model(load(folder, architecture), peft.LoraConfig(**options))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3 if "lora_" in name else 0.1)
    model.save_pretrained(out)
    return out


PATTERNS = {
    "rank_pattern": {"^model.layers.0.self_attn.q_proj": 5, "v_proj": 2},
    "alpha_pattern": {"layers.1.self_attn.q_proj": 11},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama-tied", {"r": 4, "lora_alpha": 10, "target_modules": ["q_proj", "v_proj"]}),
    "rslora": ("llama-untied", {"r": 4, "lora_alpha": 10, "use_rslora": True, "target_modules": ["lm_head"]}),
    "patterns": ("llama-untied", {"r": 3, "lora_alpha": 7, "target_modules": "all-linear", **PATTERNS}),
    "embeddings": ("llama-untied", {"r": 4, "target_modules": ["embed_tokens", "o_proj"]}),
    "saved": ("llama-untied", {"r": 4, "target_modules": ["o_proj"], "modules_to_save": ["lm_head", "norm"]}),
    "transposed": ("gpt2", {"r": 4, "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
    "positions": ("gpt2", {"r": 2, "target_modules": ["wpe", "c_attn"], "fan_in_fan_out": True}),
    "bert": ("bert", {"r": 4, "target_modules": ["query", "value", "dense"]}),
    "biased": ("bert", {"r": 4, "lora_alpha": 10, "target_modules": ["query", "value"], "lora_bias": True}),
    "vit": ("vit", {"r": 4, "target_modules": "all-linear", "modules_to_save": ["classifier"]}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_base_plus_adapter_is_what_peft_computes(case: str, tiny: Callable[[str], Path], tmp_path: Path):
    family, options = CASES[case]
    folder = train(tiny(family), tmp_path / "adapter", **options)
    base = open_checkpoint(tiny(family))
    update = Update.from_adapter(open_checkpoint(folder), base)
    assert update.names
    assert not update.added
    model = peft.PeftModel.from_pretrained(load(tiny(family)), folder)
    merged = write_checkpoint(tmp_path / "merged", applied(base, update), like=base)
    torch.testing.assert_close(logits(load(merged)), logits(model), rtol=1e-4, atol=1e-5)
    assert (logits(load(merged)) - logits(load(tiny(family)))).abs().max() > 1e-2
    for name in update.names:
        pair = update.factors(name)
        if pair is not None:
            np.testing.assert_allclose(
                (pair[0] @ pair[1]).reshape(update.shape(name)), update.dense(name), atol=1e-5
            )


@pytest.mark.parametrize("case", CASES)
def test_peft_loads_a_written_adapter(case: str, tiny: Callable[[str], Path], tmp_path: Path):
    family, options = CASES[case]
    base = open_checkpoint(tiny(family))
    first = Update.from_adapter(open_checkpoint(train(tiny(family), tmp_path / "in", **options)), base)
    out = write_adapter(tmp_path / "out", first, dense="save")
    model = peft.PeftModel.from_pretrained(load(tiny(family)), out)
    merged = write_checkpoint(tmp_path / "merged", applied(base, first), like=base)
    torch.testing.assert_close(logits(model), logits(load(merged)), rtol=1e-4, atol=1e-5)
    again = Update.from_adapter(open_checkpoint(out), base)
    assert set(again.names) >= set(first.names)
    for name in first.names:
        np.testing.assert_allclose(again.dense(name), first.dense(name), atol=1e-5)
    dense = model.merge_and_unload()
    torch.testing.assert_close(logits(dense), logits(load(merged)), rtol=1e-4, atol=1e-5)


def test_ranks_and_layouts_come_from_the_update(tiny: Callable[[str], Path], tmp_path: Path):
    base = open_checkpoint(tiny("gpt2"))
    rng = np.random.default_rng(0)
    changes = {}
    for number, name in enumerate(
        ("transformer.h.0.attn.c_attn.weight", "transformer.h.1.attn.c_proj.weight", "transformer.wpe.weight")
    ):
        rows, columns = base.info(name).shape
        rank = number + 2
        changes[name] = (
            rng.standard_normal((rows, rank)).astype(np.float32),
            rng.standard_normal((rank, columns)).astype(np.float32),
        )
    update = Update.from_arrays(changes, base=base) * 0.1
    assert [update.layout(name) for name in update.names] == ["conv1d", "conv1d", "embedding"]
    out = write_adapter(tmp_path / "out", update + update * 0.5)
    assert json.loads((out / "adapter_config.json").read_text())["fan_in_fan_out"] is True
    model = peft.PeftModel.from_pretrained(load(tiny("gpt2")), out)
    merged = write_checkpoint(tmp_path / "merged", applied(base, update * 1.5), like=base)
    torch.testing.assert_close(logits(model), logits(load(merged)), rtol=1e-4, atol=1e-5)


def test_a_new_head_is_added_not_refused(tiny: Callable[[str], Path], tmp_path: Path):
    folder = train(
        tiny("bert-bare"),
        tmp_path / "a",
        "BertForSequenceClassification",
        target_modules=["query"],
        task_type="SEQ_CLS",
    )
    base = open_checkpoint(tiny("bert-bare"))
    update = Update.from_adapter(open_checkpoint(folder), base)  # the base's names have no `bert.`
    assert set(update.names) == {f"encoder.layer.{n}.attention.self.query.weight" for n in range(2)}
    assert set(update.added) == {"classifier.weight", "classifier.bias"}
    with pytest.raises(CheckpointError, match=r"no low-rank factors, such as 'classifier\.(weight|bias)'"):
        write_adapter(tmp_path / "b", update)


def test_a_prefix_brings_a_bare_models_update_onto_a_headed_one(tiny: Callable[[str], Path], tmp_path: Path):
    base = open_checkpoint(tiny("bert-bare"))
    name = "encoder.layer.0.attention.self.query.weight"
    pair = (np.ones((16, 1), np.float32), np.ones((1, 16), np.float32))
    out = write_adapter(tmp_path / "out", Update.from_arrays({name: pair}, base=base), prefix="bert.")
    headed = load(tiny("bert-classifier"))
    before = headed.bert.encoder.layer[0].attention.self.query.weight.detach().clone()
    merged = peft.PeftModel.from_pretrained(headed, out).merge_and_unload()
    torch.testing.assert_close(merged.bert.encoder.layer[0].attention.self.query.weight, before + 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "LOKR"}, "LOKR adapter"),
        ({"peft_type": "IA3"}, "IA3 adapter"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "changes biases"),
        ({"init_lora_weights": "pissa"}, "changed base .*pissa"),
        ({"init_lora_weights": "olora"}, "olora"),
        ({"loftq_config": {"bits": 4}}, "LoftQ"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "layer replication"),
        ({"trainable_token_indices": [1]}, "trainable tokens"),
        ({"something_of_next_year": True}, "'something_of_next_year', which is not known"),
        ({"r": 3}, "not rank 3"),
        ({"r": "four"}, "gives 'four'"),
        ({"lora_alpha": None}, "gives 'None'"),
        ({"rank_pattern": {"(": 3}}, "invalid pattern"),
        ({"rank_pattern": [3]}, "is no table"),
        ({"rank_pattern": {"(a+)+" + "x": 3}}, "too intricate"),
        ({"alpha_pattern": {".*.*.*.*.*x": 3}}, "too intricate"),
    ],
)
def test_what_is_no_low_rank_sum_is_refused_by_name(
    change: dict[str, Any], message: str, tiny: Callable[[str], Path], tmp_path: Path
):
    folder = train(tiny("llama-tied"), tmp_path / "a", r=4, target_modules=["q_proj"])
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | change))
    with pytest.raises(CheckpointError, match=message):
        Update.from_adapter(open_checkpoint(folder), open_checkpoint(tiny("llama-tied")))


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.text(max_size=8) | st.just("q_proj"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = [
    "r",
    "lora_alpha",
    "rank_pattern",
    "alpha_pattern",
    "use_rslora",
    "fan_in_fan_out",
    "bias",
    "peft_type",
    "init_lora_weights",
    "modules_to_save",
    "base_model_name_or_path",
    "ensure_weight_tying",
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(change=st.dictionaries(st.sampled_from(KEYS), anything, max_size=2))
def test_any_settings_are_used_or_refused(
    change: dict[str, Any], tiny: Callable[[str], Path], tmp_path: Path
):
    folder = tmp_path / "a"
    if not folder.exists():
        train(tiny("llama-tied"), folder, r=4, target_modules=["q_proj"])
        (folder / "original.json").write_bytes((folder / "adapter_config.json").read_bytes())
    config = json.loads((folder / "original.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | change))
    base = open_checkpoint(tiny("llama-tied"))
    try:
        update = Update.from_adapter(open_checkpoint(folder), base)
        assert all(update.dense(name).shape == base.info(name).shape for name in update.names)
    except CheckpointError:
        pass


def test_dora_is_refused_even_if_its_config_is_silent(tiny: Callable[[str], Path], tmp_path: Path):
    folder = train(tiny("llama-tied"), tmp_path / "a", target_modules=["q_proj"], use_dora=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"use_dora": False}))
    with pytest.raises(CheckpointError, match=r"uses DoRA .*magnitude"):
        Update.from_adapter(open_checkpoint(folder), open_checkpoint(tiny("llama-tied")))


def test_an_adapter_for_another_base_is_noticed(tiny: Callable[[str], Path], tmp_path: Path):
    adapter = open_checkpoint(train(tiny("llama-tied"), tmp_path / "a", r=4, target_modules=["q_proj"]))
    with pytest.raises(
        CheckpointError,
        match=r"changes 'model\.layers\.0\.self_attn\.q_proj', which .* does not have; give the base",
    ):
        Update.from_adapter(adapter, open_checkpoint(tiny("gpt2")))
    wide = tmp_path / "wide"
    load(tiny("llama-tied")).save_pretrained(wide)
    import transformers

    config = transformers.AutoConfig.from_pretrained(wide)
    config.hidden_size = 32
    transformers.LlamaForCausalLM(config).save_pretrained(wide)
    with pytest.raises(CheckpointError, match=r"is \[16, 16\], and .* has \[\d+, 32\] there; give the base"):
        Update.from_adapter(adapter, open_checkpoint(wide))


def test_one_side_of_a_tie_cannot_change_alone(tiny: Callable[[str], Path], tmp_path: Path):
    for number, target in enumerate(("embed_tokens", "lm_head")):
        folder = train(tiny("llama-tied"), tmp_path / str(number), r=4, target_modules=[target])
        with pytest.raises(CheckpointError, match=r"alone, which .* ties to"):
            Update.from_adapter(open_checkpoint(folder), open_checkpoint(tiny("llama-tied")))


def test_half_an_adapter_is_refused(tiny: Callable[[str], Path], tmp_path: Path):
    from safetensors.torch import load_file, save_file

    folder = train(tiny("llama-tied"), tmp_path / "a", r=4, target_modules=["q_proj"])
    tensors = load_file(folder / "adapter_model.safetensors")
    tensors.pop(next(iter(tensors)))
    save_file(tensors, folder / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match="only one of the two factors"):
        Update.from_adapter(open_checkpoint(folder), open_checkpoint(tiny("llama-tied")))
