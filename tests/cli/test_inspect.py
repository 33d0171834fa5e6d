import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import save_file

from transship.cli import group
from transship.errors import TransshipError
from transship.geometry import LinearMap


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, [str(argument) for argument in arguments], catch_exceptions=False)


def test_a_real_model_shows_what_it_is_and_where_its_maps_act(minilm: Path):
    record = json.loads(run("inspect", minilm, "--json").stdout)
    assert record["kind"] == "checkpoint"
    assert record["architecture"] == "BertModel"
    assert record["settings"]["width"] == 384
    assert record["settings"]["blocks"] == 6
    roles = [(site["role"], site["block"], site["in_width"], site["out_width"]) for site in record["sites"]]
    assert ("mlp.in", 5, 384, 1536) in roles
    assert sum(role == "attention.query" for role, *_ in roles) == 6


def test_the_words_for_people_hold_the_same_figures(minilm: Path):
    text = run("inspect", minilm).stdout
    assert "22,713,728 parameters in 104 tensors" in text
    assert "text.attention.query         6  384 → 384" in text
    assert "text.5.mlp.in" in run("inspect", minilm, "--sites").stdout


def test_what_a_fine_tune_changed_is_shown_by_tensor(minilm: Path, tmp_path: Path):
    from transship.checkpoints import open as open_checkpoint
    from transship.checkpoints import write_checkpoint

    with open_checkpoint(minilm) as base:
        name = "encoder.layer.3.output.dense.weight"
        plans = [
            (tensor, info.shape, info.dtype, lambda t=tensor: base.read(t) * (1.5 if t == name else 1))
            for tensor, info in base.tensors.items()
        ]
        write_checkpoint(tmp_path / "tuned", plans, like=base)
    record = json.loads(run("inspect", tmp_path / "tuned", "--base", minilm, "--json").stdout)
    assert record["update"][0]["tensor"] == name
    assert record["update"][0]["relative"] == pytest.approx(0.5)
    assert record["update"][1]["norm"] == 0
    assert "50.00  encoder.layer.3" in run("inspect", tmp_path / "tuned", "--base", minilm).stdout


def test_a_map_says_how_it_was_fitted(tmp_path: Path):
    LinearMap(torch.eye(3, 2), kind="ridge", rank=2).save(tmp_path / "map.safetensors")
    record = json.loads(run("inspect", tmp_path / "map.safetensors", "--json").stdout)
    assert record["kind"] == "map"
    assert json.loads(record["settings"]["map"])["kind"] == "ridge"


def test_bare_weights_are_shown_without_sites(tmp_path: Path):
    save_file({"a": torch.zeros(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16)}, tmp_path / "x.safetensors")
    record = json.loads(run("inspect", tmp_path / "x.safetensors", "--json").stdout)
    assert (record["kind"], record["parameters"], record["dtypes"]) == (
        "weights",
        10,
        {"float32": 6, "bfloat16": 4},
    )
    assert "sites" not in record


def test_a_path_that_is_not_there_is_one_sentence_and_exit_code_2(tmp_path: Path, warm: Any):
    with pytest.raises(TransshipError):
        run("inspect", tmp_path / "nothing")
    result = warm.run("-m", "transship", "inspect", tmp_path / "nothing")
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1


def test_an_adapter_is_named_with_rank_and_targets(tmp_path: Path):
    import peft
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=40
    )
    model = peft.get_peft_model(LlamaModel(config), peft.LoraConfig(r=4, target_modules=["q_proj"]))
    model.save_pretrained(tmp_path / "adapter")
    record = json.loads(run("inspect", tmp_path / "adapter", "--json").stdout)
    assert record["kind"] == "adapter"
    assert record["settings"]["method"] == "LORA"
    assert record["settings"]["rank"] == 4
    assert record["settings"]["targets"] == ["q_proj"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "family", "query"),
    [
        ("minilm-l6", "bert", 6),
        ("minilm-l6-sre", "bert", 6),
        ("minilm-l3", "bert", 3),
        ("bge-small", "bert", 12),
        ("granite-small", "roberta", 6),
        ("distilbert-768", "distilbert", 6),
        ("mpnet-base", "mpnet", 12),
        ("flan-t5-small", "t5", 16),
        ("smollm2-135m", "llama", 30),
    ],
)
def test_every_local_model_shows_its_sites(models_dir: Path, name: str, family: str, query: int):
    record = json.loads(run("inspect", models_dir / name, "--json").stdout)
    assert record["settings"]["family"] == family
    assert sum(site["role"] == "attention.query" for site in record["sites"]) == query


def test_what_verbs_write_and_read_says_what_it_is(tmp_path: Path):
    rows = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    table = pa.table({"id": [str(n) for n in range(20)], "vector": list(map(list, rows))})
    pq.write_table(table, tmp_path / "store.parquet")
    np.save(tmp_path / "store.npy", rows)
    (tmp_path / "result.json").write_text('{"map": "m", "chosen": "ridge"}')
    (tmp_path / "recipe.yaml").write_text("merge_method: linear")
    (tmp_path / "texts.jsonl").write_text('{"text": "a", "label": 0}\n{"text": "b", "label": 1}')
    (tmp_path / "tables" / "docs.lance").mkdir(parents=True)
    for name, words in {
        "store.parquet": "a store of 20 vectors, 8 wide",
        "store.npy": "a store of 20 vectors, 8 wide",
        "result.json": "it holds map, chosen",
        "recipe.yaml": "a recipe; see `transship merge plan",
        "texts.jsonl": "2 rows of text\nlabels of 2 classes",
        "tables": f"a folder of LanceDB tables\n{tmp_path}/tables/docs.lance",
    }.items():
        assert words in run("inspect", tmp_path / name).output
    assert json.loads(run("inspect", tmp_path / "store.npy", "--json").stdout)["rows"] == 20
