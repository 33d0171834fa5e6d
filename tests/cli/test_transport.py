"""`transship transport` from the command line: a plan, a model that loads, JSON, a page, and one sentence on
mistakes.
"""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from transship.cli.transport import command
from transship.errors import TransshipError


def vit(width: int, seed: int):
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(seed)
    return ViTForImageClassification(
        ViTConfig(
            hidden_size=width,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=2 * width,
            image_size=28,
            patch_size=7,
            num_channels=1,
            num_labels=3,
        )
    ).eval()


@pytest.fixture
def folders(tmp_path):
    source = vit(16, 0)
    source.save_pretrained(tmp_path / "a")
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(0.002 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    source.save_pretrained(tmp_path / "tuned")
    vit(24, 1).save_pretrained(tmp_path / "b")
    np.save(
        tmp_path / "images.npy", np.random.default_rng(0).normal(size=(200, 1, 28, 28)).astype(np.float32)
    )
    return tmp_path


def run(folder, *arguments, out="out"):
    places = [str(folder / name) for name in ("a", "tuned", "b", out)]
    given = [
        *places,
        "--data",
        str(folder / "images.npy"),
        "--prepared",
        str(folder / "prepared"),
        "--batches",
        "2",
        *arguments,
    ]
    return CliRunner().invoke(command, given, catch_exceptions=True)


def test_a_plan_is_printed_and_the_model_loads(folders):
    from transformers import ViTForImageClassification

    done = run(folders, "--method", "theseus", "--strength", "2", "--report", str(folders / "page.html"))
    assert done.exit_code == 0, done.output
    for word in ("update", "target", "inputs", "memory", "method"):
        assert word in done.stderr
    assert "theseus at strength 2" in done.stdout
    ViTForImageClassification.from_pretrained(folders / "out")
    assert "What did not move" in (folders / "page.html").read_text(encoding="utf-8")
    card = json.loads((folders / "out" / "transship.json").read_text(encoding="utf-8"))
    assert card["method"] == "theseus"
    assert {one["role"] for one in card["inputs"]} == {"source", "tuned", "target", "data"}


def test_json_holds_every_layer_and_the_curve(folders):
    done = run(folders, "--method", "theseus", "-o", "complete", "identity", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["parameters"]["complete"] == "identity"
    assert found["strength_by"] == "agreement"
    assert found["curve"][0][0] == 0.0
    assert {"kept", "rank_in", "residual_out"} <= set(found["layers"][0])


def test_strength_zero_writes_the_target_bit_for_bit(folders):
    from safetensors.torch import load_file

    assert run(folders, "--method", "theseus", "--strength", "0").exit_code == 0
    before, after = (load_file(folders / name / "model.safetensors") for name in ("b", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_an_existing_target_is_never_replaced_without_force(folders):
    (folders / "out").mkdir()
    (folders / "out" / "mine.txt").write_text("mine")
    done = run(folders, "--method", "theseus", "--strength", "1")
    assert isinstance(done.exception, TransshipError)
    assert "exists already" in str(done.exception)
    assert (folders / "out" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--method", "theseuss"], "did you mean 'theseus'"),
        (["--method", "theseus", "-o", "centr", "yes"], "did you mean 'centre'"),
        (["--strength", "lots"], "is no strength"),
        (["--role", "norm", "keep"], "did you mean 'norms'"),
        (["--path-steps", "0", "--method", "theseus"], "0 path steps"),
    ],
)
def test_mistakes_are_one_sentence_before_any_work(folders, arguments, sentence):
    done = run(folders, *arguments)
    assert isinstance(done.exception, TransshipError)
    assert sentence in str(done.exception)
    assert not (folders / "out").exists()


def test_swapped_models_are_named(folders):
    places = [str(folders / name) for name in ("b", "tuned", "a", "out")]
    done = CliRunner().invoke(
        command, [*places, "--data", str(folders / "images.npy"), "--prepared", str(folders / "p")]
    )
    assert "it is a fine-tune of TARGET" in str(done.exception)
