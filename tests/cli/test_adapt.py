"""The command line of adapt: fit, predict, bound, a page, and one sentence for every mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner, Result

from transship.cli import group
from transship.cli.adapt import command
from transship.cli.options import read_settings
from transship.errors import TransshipError
from transship.verbs.adapt import load_adapted
from transship.verbs.adapt.api import check_table
from transship.verbs.adapt.rows.reading import read_rows
from transship.verbs.adapt.settings import COMMAND, CommandSettings, Settings

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
    config.max_position_embeddings = 8
    BertModel(config, add_pooling_layer=False).save_pretrained(folder / "short")
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
    return CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)


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
    return out, fit(place, out, "--report", place / "page.html", "--sensitivity", "0.3,0.8", "--path", "2")


def test_a_fit_prints_the_baselines_beside_the_model_and_says_which_to_use(fitted: tuple[Path, Result]):
    out, done = fitted
    assert done.exit_code == 0, done.output
    for each in ("raw baseline rocket: validation error", "adapted (recraft)", "raw ridge", "raw logistic"):
        assert each in done.output
    assert any(word in done.output for word in ("use the raw", "use the adapted", "show no difference"))
    assert (out / "model.safetensors").is_file()
    assert not list(out.parent.glob(".model.work"))
    shown = CliRunner().invoke(group, ["inspect", str(out)]).output
    assert "adapted model, recraft on" in shown
    assert "raw rocket: 0." in shown


def test_the_advised_model_answers_and_every_model_is_measured_on_test_rows(
    fitted: tuple[Path, Result], place: Path, tmp_path: Path
):
    out, done = fitted
    about = json.loads((out / "adapted.json").read_text())["about"]
    assert {"adapted", "ridge", "rocket", "forest", "minirocket"} < set(about["test"])
    assert "test error" in done.output
    assert "`adapt predict` answers with" in done.output
    asked = ["predict", out, place / "waves.parquet", "--split", "test"]
    default, forest = (json.loads(run(*asked, *more, "--json").stdout) for more in ([], ["--use", "forest"]))
    assert default["model"] == about["advised"]
    assert forest["model"] == "forest"
    for each in (default, forest):
        assert each["metrics"]["error"] == each["models"][each["model"]] == about["test"][each["model"]]
    saved = load_adapted(out).adapted_
    rows = np.stack(pq.read_table(place / "waves.parquet")["series"].to_pylist())[60:]
    scaled = saved.inputs.transform(rows)
    assert forest["predictions"] == saved.targets.classes[saved.raw["forest"].predict(scaled)].tolist()
    with pytest.raises(TransshipError, match=r"--use: .* did you mean 'forest'"):
        run(*asked, "--use", "forst")


def test_symbols_may_come_as_text_and_the_advice_is_right(place: Path, tmp_path: Path):
    """The class is the letter in the middle, where counts say next to nothing."""
    generator = np.random.default_rng(0)
    letters = np.array(list("ACGT"))[generator.integers(0, 4, (200, 12))]
    table = {"sequence": ["".join(row) for row in letters], "label": letters[:, 6].tolist()}
    pq.write_table(pa.table(table | {"split": ["train"] * 120 + ["test"] * 80}), tmp_path / "dna.parquet")
    usual = ["--backbone", place / "bert", "--method", "nft", "--steps", 2, "--tokens", 12]
    done = run("fit", tmp_path / "out", "--train", tmp_path / "dna.parquet", "--kind", "tokens", *usual)
    about = json.loads((tmp_path / "out" / "adapted.json").read_text())["about"]
    assert {"ngrams", "logistic", "forest", "rocket"} < {row["name"] for row in about["baselines"]}
    assert (
        min(about["test"][name] for name in ("logistic", "ridge", "forest")) < 0.05 < about["test"]["ngrams"]
    )
    assert about["advised"] in ("logistic", "ridge", "forest"), done.output
    predicted = run("predict", tmp_path / "out", tmp_path / "dna.parquet", "--split", "test", "--json")
    assert json.loads(predicted.stdout)["metrics"]["error"] < 0.05
    pq.write_table(pa.table({"sequence": ["ACGTACGTACGU"]}), tmp_path / "other.parquet")
    with pytest.raises(TransshipError, match="row 1 has the symbol 'U', which did not occur in training"):
        run("predict", tmp_path / "out", tmp_path / "other.parquet")


def test_sequences_of_a_fasta_file_are_symbols_and_kmers_may_begin_the_network(place: Path, tmp_path: Path):
    generator = np.random.default_rng(0)
    rows = ["".join(generator.choice(list("ACGT"), generator.integers(9, 13))) for _ in range(60)]
    lines = [f">s{number} label={row[4]}\n{row}\n" for number, row in enumerate(rows)]
    (tmp_path / "few.fasta").write_text("".join(lines[:40]))
    (tmp_path / "held.fasta").write_text("".join(lines[40:]))
    usual = ["--backbone", place / "bert", "--method", "nft", "--steps", 2, "--tokens", 12, "--stem", "kmer"]
    data = ["--train", tmp_path / "few.fasta", "--validation", tmp_path / "held.fasta", "--kind", "tokens"]
    done = run("fit", tmp_path / "out", *data, *usual)
    assert done.exit_code == 0, done.output
    predicted = run("predict", tmp_path / "out", tmp_path / "held.fasta", "--json")
    assert json.loads(predicted.stdout)["rows"] == 20
    with pytest.raises(TransshipError, match="stem: k-mers are made of symbols; pass --kind tokens"):
        run("fit", tmp_path / "other", "--train", place / "waves.parquet", *usual)


def test_the_page_has_all_pictures_of_the_paper(fitted: tuple[Path, Result]):
    html = (fitted[0].parent / "page.html").read_text()
    for each in (
        "What to use",
        "Stage 1",
        "Semantic gap",
        "Pearson correlation",
        "Target error against semantic gap (Fig. 3): a whole fit per point",
        "the untrained embedder, from which naive fine-tuning would start",
        "after stage 2 of a fit of its own (no stage 1: NFT), validation error",
        "after stage 2 of a fit of its own (FA), validation error",
        "which chose the weights",
        "A raw model stands under the network",
        "Theorem 7",
        "t-SNE",
        "Sensitivity to ω",
    ):
        assert each in html, each


def test_predictions_are_measured_and_written(fitted: tuple[Path, Result], place: Path, tmp_path: Path):
    out = tmp_path / "predictions.csv"
    done = run("predict", fitted[0], place / "waves.parquet", "--split", "test", "--out", out)
    assert done.exit_code == 0, done.output
    assert "error: " in done.output
    assert "30 predictions in" in done.output
    lines = out.read_text().splitlines()
    assert len(lines) == 31
    assert "p_fast" in lines[0]
    record = json.loads(
        run("predict", fitted[0], place / "waves.parquet", "--split", "test", "--json").output
    )
    assert record["rows"] == 30
    assert set(record["predictions"]) <= {"slow", "fast"}


def test_the_bound_is_measured_on_other_rows(fitted: tuple[Path, Result], place: Path, tmp_path: Path):
    page = tmp_path / "bound.html"
    done = run("bound", fitted[0], place / "waves.parquet", "--split", "test", "--report", page)
    assert done.exit_code == 0, done.output
    for each in (
        "source error",
        "feature alignment",
        "feature-label distortion",
        "target fitting",
        "bound: the sum with the nominal ω",
    ):
        assert each in done.output
    assert "Theorem 7, its terms stacked, and the error they bound, on 30 held-out rows" in page.read_text()
    record = json.loads(run("bound", fitted[0], place / "waves.parquet", "--split", "test", "--json").output)
    terms = ("err_source", "alignment", "distortion", "fitting")
    assert record["total"] == pytest.approx(sum(record[name] for name in terms))


def split_into(place: Path, file: Path, names: dict[str, int], first: int = 0) -> Path:
    """Write rows of the waves from `first` on, so many of each split; `""` for a file without splits."""
    table = pq.read_table(place / "waves.parquet").slice(first, sum(names.values()))
    words = [name for name, count in names.items() for _ in range(count)]
    table = table.drop_columns("split")
    pq.write_table(table if "" in names else table.append_column("split", [words]), file)
    return file


@pytest.mark.parametrize("names", [{"train": 10, "validation": 12, "test": 8}, {"": 30}])
def test_of_other_data_the_validation_split_or_all_rows_are_chosen_by(
    place: Path, tmp_path: Path, names: dict[str, int]
):
    other = split_into(place, tmp_path / "other.parquet", names, first=60)
    done = fit(place, tmp_path / "model", "--validation", other, "--no-baseline", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert rows == {"train": 60, "validation": names.get("validation", 30)}


@pytest.mark.parametrize(
    ("names", "first", "message"),
    [
        ({"train": 20, "test": 10}, 60, "it has the splits train, test and no validation"),
        ({"test": 30}, 60, "it has the splits test and no validation"),
        ({"": 40}, 50, "10 of its 40 rows are also training rows, row 1 first"),
        ({"train": 5, "validation": 20}, 50, "5 of its 20 rows are also training rows, row 1 first"),
    ],
)
def test_training_and_test_rows_do_not_choose(
    place: Path, tmp_path: Path, names: dict[str, int], first: int, message: str
):
    other = split_into(place, tmp_path / "other.parquet", names, first)
    with pytest.raises(TransshipError, match=message):
        fit(place, tmp_path / "model", "--validation", other)


def test_no_baseline_runs_none(place: Path, tmp_path: Path):
    done = fit(place, tmp_path / "model", "--no-baseline", "--stem", "rocket", "--json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["baselines"] == []
    assert record["advice"] == ""


def test_what_the_command_does_without_options_is_what_the_estimator_does_on_the_best_raw_model():
    shortest = ["--backbone", "minilm-l6", "--train", "x", "out"]
    given = command.commands["fit"].make_context("fit", shortest).params
    message = vars(read_settings(CommandSettings, given))
    assert message.pop("compare") is True
    assert message == vars(Settings("minilm-l6")) | COMMAND
    assert COMMAND == {"base": "auto"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--path", "1"], "--path: it is 1; give 2 or more"),
        (["--path", "3", "--method", "nft"], "--path: nft has no path of FA and FLD"),
    ],
)
def test_a_path_that_cannot_be_is_refused_before_any_work(
    place: Path, tmp_path: Path, idle: None, arguments: list[str], message: str
):
    usual = ["--backbone", place / "bert", "--train", place / "waves.parquet"]
    with pytest.raises(TransshipError, match=message):
        run("fit", tmp_path / "model", *usual, *arguments)


def test_missing_values_are_refused_by_the_row_of_the_file_unless_they_are_filled(
    place: Path, tmp_path: Path
):
    rows = [f"{number % 2},{number},2,3,4" for number in range(20)]
    rows[2] = "0,2,,3,4"
    (tmp_path / "holes.csv").write_text("\n".join(["label,t0,t1,t2,t3", *rows]))
    with pytest.raises(TransshipError, match=r"holes\.csv: row 3 holds NaN .* --missing fill"):
        fit(place, tmp_path / "model", "--train", tmp_path / "holes.csv")
    examples, _ = read_rows(tmp_path / "holes.csv")  # what `--missing fill` is handed
    assert np.argwhere(np.isnan(examples.inputs)).tolist() == [[2, 1]]


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
        (["--metric", "speed"], "there is no metric 'speed'"),
    ],
)
def test_mistakes_are_one_sentence(place: Path, tmp_path: Path, arguments: list[str], message: str):
    with pytest.raises(TransshipError, match=message) as error:
        fit(place, tmp_path / "model", *arguments)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("option", ["base", "task", "kind", "stem", "missing", "predictor", "precision"])
def test_what_is_chosen_from_a_list_is_refused_with_the_list(option: str):
    done = CliRunner().invoke(command, ["fit", "out", "--train", "x", f"--{option}", "woods"])
    assert done.exit_code == 2
    assert f"Invalid value for '--{option}': 'woods' is not one of" in done.output


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything that takes long fail the test."""

    def ran(*arguments: Any, **options: Any) -> Any:
        pytest.fail("work began before the mistake was found")

    for name in ("fit.raw_baselines", "fit.fit_base", "fit.open_source", "api.read_adapted"):
        monkeypatch.setattr(f"transship.verbs.adapt.{name}", ran)


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--omega", "foo"], "omega: ω is 'foo'; give a number above 0"),
        (["--omega", "0"], "omega: ω is 0.0"),
        (["--omega", "nan"], "omega: ω is nan"),
        (["--device", "abacus"], "there is no device 'abacus'"),
        (["--backbone", "nowhere"], "nowhere"),
        (["--proxy", "nowhere"], "nowhere"),
        (["--patch", "1", "--backbone", "BERT"], "has 8 positions"),
        (["--sensitivity", "0.3,x"], "--sensitivity: 'x' is no ω; give numbers above 0"),
        (["--sensitivity", "0.3,0"], "'0' is no ω"),
        (["--sensitivity", "nan"], "'nan' is no ω"),
        (["-o", "fa_batch", "0"], "fa_batch: it is 0"),
        (["--metric", "1-auroc", "--validation", "ONE"], "1-auroc is undefined on the 15 validation rows"),
    ],
)
def test_mistakes_are_found_before_any_work(place: Path, tmp_path: Path, arguments: list[str], message: str):
    other = pq.read_table(place / "waves.parquet").slice(60, 30)
    table = other.filter(pa.compute.equal(other["label_name"], "fast")).drop_columns("split")
    pq.write_table(table, tmp_path / "one.parquet")
    short = {"ONE": tmp_path / "one.parquet", "BERT": place / "short"}
    with pytest.raises(TransshipError, match=message):
        fit(place, tmp_path / "model", *(short.get(argument, argument) for argument in arguments))


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("method", ["nft", "scratch", "warm", "orca", "pare"])
def test_sensitivity_to_what_decides_nothing_is_refused(place: Path, tmp_path: Path, method: str):
    usual = ["--backbone", place / "bert", "--train", place / "waves.parquet", "--method", method]
    with pytest.raises(TransshipError, match=f"ω decides nothing in {method}: every fit would be the same"):
        run("fit", tmp_path / "model", *usual, "--sensitivity", "0.3,0.8")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
@pytest.mark.usefixtures("idle")
def test_a_gpu_that_is_not_there_is_not_replaced_by_the_cpu(place: Path, tmp_path: Path):
    for name in ("cuda", "cuda:1"):
        with pytest.raises(TransshipError, match=f"device: this machine has no {name}; choose cpu"):
            fit(place, tmp_path / "model", "--device", name)


def test_places_that_cannot_be_written_are_said_before_the_rows_run(
    fitted: tuple[Path, Result], place: Path, tmp_path: Path, idle: None
):
    page = tmp_path / "page.html"
    page.write_text("mine")
    waves = place / "waves.parquet"
    with pytest.raises(TransshipError, match=r"page\.html: it exists already"):
        run("bound", fitted[0], waves, "--report", page)
    with pytest.raises(TransshipError, match=r"page\.html: it exists already"):
        fit(place, tmp_path / "model", "--report", page)
    with pytest.raises(TransshipError, match=r"'\.txt' is no format for predictions"):
        run("predict", fitted[0], waves, "--out", tmp_path / "x.txt")
    assert page.read_text() == "mine"


def test_texts_are_what_the_backbone_reads_already(place: Path, tmp_path: Path):
    with pytest.raises(TransshipError, match="it holds text, which the backbone reads already"):
        fit(place, tmp_path / "model", "--train", place / "proxy.parquet")


def test_help_names_an_example_to_paste():
    assert "Example: transship adapt fit" in run("fit", "--help").output


def test_fields_in_a_table_are_refused_before_the_rows_run():
    check_table(Path("x.npy"), (8, 8))
    with pytest.raises(TransshipError, match=r"x\.csv: fields do not fit a table; name a \.npy file"):
        check_table(Path("x.csv"), (8, 8))
