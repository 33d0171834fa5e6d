"""Sentence encoders: prompts and trained modules, with the vectors of sentence-transformers."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from transship.activations import features
from transship.activations.sentences import sentence_layers, sentence_prompt
from transship.errors import CheckpointError, OptionError

TEXTS = ["A cat sits on the mat.", "Ships move cargo over the sea, slowly but surely.", "query", "yes"]
BGE = {"prompts": {"query": "Represent this sentence: ", "document": ""}}
E5 = {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": None}


def encoder(source: Path, folder: Path, *, kinds: tuple[str, ...] = (), prompts: Any = None) -> Path:
    """A real encoder with trained modules behind its pooling."""
    folder.mkdir()
    for file in source.iterdir():
        if file.is_file() and file.name not in ("modules.json", "README.md"):
            shutil.copyfile(file, folder / file.name)
    modules = [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
        *((f"{n}_{k}", k) for n, k in enumerate(kinds, 2)),
    ]
    listed = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed), "utf-8")
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 384, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), "utf-8")
    torch.manual_seed(0)
    width = 384
    for number, kind in enumerate(kinds, 2):
        place = folder / f"{number}_{kind}"
        place.mkdir()
        settings: dict[str, Any] = {}
        if kind == "Dense":
            settings = {
                "in_features": width,
                "out_features": 32,
                "bias": True,
                "activation_function": "torch.nn.modules.activation.Tanh",
            }
            weights = {"linear.weight": torch.randn(32, width) * 0.2, "linear.bias": torch.randn(32)}
            width = 32
        elif kind == "LayerNorm":
            settings, weights = (
                {"dimension": width},
                {"norm.weight": torch.rand(width), "norm.bias": torch.rand(width)},
            )
        else:
            continue
        save_file(weights, place / "model.safetensors")
        (place / "config.json").write_text(json.dumps(settings), "utf-8")
    if prompts is not None:
        (folder / "config_sentence_transformers.json").unlink(missing_ok=True)
        (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts), "utf-8")
    return folder


STACKS = {"plain": (), "dense": ("Dense",), "norm": ("LayerNorm", "Dense"), "unit": ("Dense", "Normalize")}


@pytest.mark.parametrize("stack", STACKS)
def test_vectors_are_those_of_sentence_transformers(minilm: Path, tmp_path: Path, stack: str):
    sentences = pytest.importorskip("sentence_transformers", reason="the dev extra brings it")
    folder = encoder(minilm, tmp_path / "encoder", kinds=STACKS[stack])
    wanted = sentences.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    result = features(str(folder), TEXTS, batch_size=2)
    # entries of a dense layer reach 1 and round by 2e-6 with the kernels of SSE; unit vectors have small ones
    np.testing.assert_allclose(
        result, wanted, atol=1e-5 if STACKS[stack][-1:] == ("Dense",) else 1e-6, rtol=1e-5
    )


def test_a_module_that_does_not_run_here_is_refused_by_name(minilm: Path, tmp_path: Path):
    folder = encoder(minilm, tmp_path / "encoder", kinds=("WeightedLayerPooling",))
    with pytest.raises(OptionError, match="module WeightedLayerPooling, which is not run here"):
        features(str(folder), TEXTS)
    assert len(sentence_layers(None)) == 0


def test_prompts_are_found_by_what_the_texts_are(tmp_path: Path):
    file = tmp_path / "config_sentence_transformers.json"
    assert sentence_prompt(tmp_path) == sentence_prompt(None, "query") == ""
    file.write_text(json.dumps(E5), "utf-8")
    assert [sentence_prompt(tmp_path, name) for name in (None, "query", "document", "passage")] == [
        "passage: ",
        "query: ",
        "passage: ",
        "passage: ",
    ]
    with pytest.raises(OptionError, match=r"no prompt 'title'.*query, document, passage"):
        sentence_prompt(tmp_path, "title")
    file.write_text(json.dumps(E5 | {"default_prompt_name": "query"}), "utf-8")
    assert sentence_prompt(tmp_path) == "query: "
    file.write_text("[]", "utf-8")
    with pytest.raises(CheckpointError, match="not a JSON object"):
        sentence_prompt(tmp_path)


def test_a_module_outside_the_folder_is_not_read(minilm: Path, tmp_path: Path):
    folder = encoder(minilm, tmp_path / "encoder", kinds=("Dense",))
    (folder / "2_Dense").rename(tmp_path / "elsewhere")
    modules = json.loads((folder / "modules.json").read_text("utf-8"))
    modules[2]["path"] = "../elsewhere"
    (folder / "modules.json").write_text(json.dumps(modules), "utf-8")
    with pytest.raises(CheckpointError, match="outside the folder"):
        sentence_layers(folder)


def test_an_activation_that_is_none_is_refused(minilm: Path, tmp_path: Path):
    folder = encoder(minilm, tmp_path / "encoder", kinds=("Dense",))
    settings = folder / "2_Dense/config.json"
    changed = json.loads(settings.read_text("utf-8")) | {"activation_function": "torch.nn.Transformer"}
    settings.write_text(json.dumps(changed), "utf-8")
    with pytest.raises(OptionError, match="no activation 'Transformer'"):
        sentence_layers(folder)
