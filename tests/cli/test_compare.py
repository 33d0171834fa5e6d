import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from transformers import ViTConfig, ViTModel

from transship.cli import group
from transship.errors import OutputError


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    for name, width, blocks in (("narrow", 16, 2), ("wide", 24, 3)):
        torch.manual_seed(width)
        config = ViTConfig(
            hidden_size=width,
            num_hidden_layers=blocks,
            num_attention_heads=2,
            intermediate_size=2 * width,
            image_size=8,
            patch_size=2,
            num_channels=1,
        )
        ViTModel(config, add_pooling_layer=False).save_pretrained(folder / name)
    return folder / "narrow", folder / "wide"


def test_two_models_of_other_width_and_depth_are_compared_layer_by_layer(
    models: tuple[Path, Path], tmp_path: Path
):
    page = tmp_path / "page.html"
    result = run("compare", *models, "--data", "digits", "--inputs", 64, "--report", page, "--json")
    record = json.loads(result.stdout)
    (stack,) = record["stacks"]
    assert len(stack["cka"]) == 3  # embedding and two blocks
    assert len(stack["cka"][0]) == 4
    assert record["inputs"] == 64
    assert all(-0.2 <= value <= 1.0001 for row in stack["cka"] for value in row)
    assert "<html" in page.read_text()
    assert "wide" in page.read_text()


def test_a_model_compared_with_itself_agrees_with_itself(models: tuple[Path, Path]):
    record = json.loads(
        run("compare", models[0], models[0], "--data", "digits", "--inputs", 64, "--json").stdout
    )
    (stack,) = record["stacks"]
    assert [stack["cka"][layer][layer] for layer in range(3)] == pytest.approx([1.0] * 3, abs=1e-5)
    assert stack["best_source"] == [0, 1, 2]
    assert max(layer["residual"] for layer in record["layers"]) < 1e-4
    assert record["unmatched"] == []


def test_the_same_seed_gives_the_same_figures(models: tuple[Path, Path]):
    arguments = ("compare", *models, "--data", "digits", "--inputs", 32, "--json", "--seed", 3)
    first, second = (json.loads(run(*arguments).stdout) for _ in range(2))
    assert first | {"seconds": 0} == second | {"seconds": 0}


def test_a_page_is_not_overwritten_unless_asked(models: tuple[Path, Path], tmp_path: Path):
    page = tmp_path / "page.html"
    page.write_text("mine")
    with pytest.raises(OutputError, match="--force"):
        run("compare", *models, "--data", "digits", "--inputs", 8, "--report", page)
    assert page.read_text() == "mine"


def test_people_read_the_best_partner_of_every_layer(models: tuple[Path, Path]):
    text = run("compare", *models, "--data", "digits", "--inputs", 32).stdout
    assert "the last layers agree with a CKA of" in text
    assert "most similar layer of narrow" in text
    assert text.count("block 2") == 1
