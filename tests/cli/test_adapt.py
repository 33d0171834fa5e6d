"""The command line of adapt: fit, predict, bound, a page, and one sentence for every mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner, Result

from transship.cli import group
from transship.cli.adapt import command
from transship.errors import TransshipError

pytestmark = pytest.mark.filterwarnings("ignore::transship.errors.TransshipWarning")
WORDS = ["red", "green", "blue", "cat", "dog", "bird", "one", "two", "three", "runs", "sees", "is"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small encoder, a proxy and series in two splits."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("adapt")
    tokenizer = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate(["[PAD]", "[UNK]", *WORDS])}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=64
    )
    fast.save_pretrained(folder / "bert")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=14, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder / "bert")
    generator = np.random.default_rng(0)
    labels = np.arange(60) % 3
    texts = [
        " ".join([WORDS[3 * label + generator.integers(3)], *generator.choice(WORDS[9:], 3)])
        for label in labels
    ]
    pq.write_table(pa.table({"text": texts, "label": labels.tolist()}), folder / "proxy.parquet")
    classes = np.arange(90) % 2
    series = np.sin(np.outer(0.3 + 0.5 * classes, np.arange(24)) + generator.uniform(0, 6, (90, 1)))
    series = series + generator.normal(0, 0.2, series.shape)
    columns = {"series": series.tolist(), "label_name": np.array(["slow", "fast"])[classes].tolist()}
    columns["split"] = ["train"] * 60 + ["test"] * 30
    pq.write_table(pa.table(columns), folder / "waves.parquet")
    return folder


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(command, [str(one) for one in arguments], catch_exceptions=False)


def fit(place: Path, out: Path, *more: Any) -> Result:
    usual = [
        "--backbone",
        place / "bert",
        "--train",
        place / "waves.parquet",
        "--proxy",
        place / "proxy.parquet",
    ]
    short = [
        "--steps",
        6,
        "--tokens",
        8,
        "--omega",
        0.5,
        "-o",
        "fa_steps",
        4,
        "-o",
        "fld_steps",
        4,
        "--method",
        "recraft",
    ]
    return run("fit", out, *usual, *short, *more)


@pytest.fixture(scope="module")
def fitted(place: Path) -> tuple[Path, Result]:
    out = place / "model"
    return out, fit(place, out, "--report", place / "page.html", "--sensitivity", "0.3,0.8")


def test_a_fit_prints_the_baselines_beside_the_model_and_says_which_to_use(fitted: tuple[Path, Result]):
    out, done = fitted
    assert done.exit_code == 0, done.output
    for said in ("raw baseline rocket: validation error", "adapted (recraft)", "raw ridge", "raw logistic"):
        assert said in done.output
    assert any(word in done.output for word in ("use the raw", "use the adapted", "show no difference"))
    assert (out / "model.safetensors").is_file()
    assert not list(out.parent.glob(".model.work"))
    shown = CliRunner().invoke(group, ["inspect", str(out)]).output
    assert "adapted model, recraft on" in shown
    assert "raw rocket: 0." in shown


def test_the_page_has_all_pictures_of_the_paper(fitted: tuple[Path, Result]):
    html = (fitted[0].parent / "page.html").read_text()
    for said in (
        "What to use",
        "Stage 1",
        "Semantic gap",
        "Pearson correlation",
        "Theorem 7",
        "t-SNE",
        "Sensitivity to ω",
    ):
        assert said in html, said


def test_predictions_are_measured_and_written(fitted: tuple[Path, Result], place: Path, tmp_path: Path):
    out = tmp_path / "predictions.csv"
    done = run("predict", fitted[0], place / "waves.parquet", "--split", "test", "--out", out)
    assert done.exit_code == 0, done.output
    assert "error: " in done.output
    assert "30 predictions in" in done.output
    lines = out.read_text().splitlines()
    assert len(lines) == 31
    assert "p_fast" in lines[0]
    found = json.loads(run("predict", fitted[0], place / "waves.parquet", "--split", "test", "--json").output)
    assert found["rows"] == 30
    assert set(found["predictions"]) <= {"slow", "fast"}


def test_the_bound_is_measured_on_other_rows(fitted: tuple[Path, Result], place: Path, tmp_path: Path):
    page = tmp_path / "bound.html"
    done = run("bound", fitted[0], place / "waves.parquet", "--split", "test", "--report", page)
    assert done.exit_code == 0, done.output
    for said in (
        "source error:",
        "feature alignment:",
        "feature-label distortion:",
        "target fitting:",
        "bound:",
    ):
        assert said in done.output
    assert "Theorem 7 on 30 held-out rows" in page.read_text()
    found = json.loads(run("bound", fitted[0], place / "waves.parquet", "--split", "test", "--json").output)
    terms = ("err_source", "alignment", "distortion", "fitting")
    assert found["total"] == pytest.approx(sum(found[name] for name in terms))


def test_no_baseline_runs_none(place: Path, tmp_path: Path):
    done = fit(place, tmp_path / "model", "--no-baseline", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["baselines"] == []
    assert found["advice"] == ""


def test_an_existing_folder_is_kept_without_force(fitted: tuple[Path, Result], place: Path):
    with pytest.raises(TransshipError, match="it exists already; pass --force"):
        fit(place, fitted[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backbone", "nowhere"], "nowhere"),
        (["--train", "nothing"], "nothing"),
        (["--label", "colour"], "colour"),
        (["--task", "regression"], "regression needs numbers and the targets are text"),
        (["--base", "forest"], "base: it is 'forest'"),
        (["--metric", "speed"], "there is no metric 'speed'"),
    ],
)
def test_mistakes_are_one_sentence(place: Path, tmp_path: Path, arguments: list[str], message: str):
    with pytest.raises(TransshipError, match=message) as error:
        fit(place, tmp_path / "model", *arguments)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "model").exists()


def test_texts_are_what_the_backbone_reads_already(place: Path, tmp_path: Path):
    with pytest.raises(TransshipError, match="it holds text, which the backbone reads already"):
        fit(place, tmp_path / "model", "--train", place / "proxy.parquet")


def test_help_names_an_example_to_paste():
    assert "Example: transship adapt fit" in run("fit", "--help").output
