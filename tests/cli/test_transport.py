"""`transship transport` from the command line: a plan, a model that loads, JSON, a page, and one sentence on
mistakes.
"""

import json
import re
from pathlib import Path

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
    assert "by theseus at strength 2 (as given)" in done.stdout
    ViTForImageClassification.from_pretrained(folders / "out")
    assert "What did not move" in (folders / "page.html").read_text(encoding="utf-8")
    card = json.loads((folders / "out" / "transship.json").read_text(encoding="utf-8"))
    assert card["method"] == "theseus"
    assert {row["role"] for row in card["inputs"]} == {"source", "tuned", "target", "data"}


def test_json_holds_every_layer_and_the_curve(folders):
    done = run(folders, "--method", "theseus", "-o", "complete", "identity", "--json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["parameters"]["complete"] == "identity"
    assert record["strength_by"] == "agreement"
    assert record["curve"][0][0] == 0.0
    assert {"kept", "rank_in", "residual_out"} <= set(record["layers"][0])


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
        (["-o", "centre", "yes"], "auto chooses the method"),
        (["--method", "theseus", "--keep", "KEPT"], "only a carried head keeps"),
        (["--method", "identity"], "choose theseus"),
        (["--method", "gradient", "-o", "blend", "2"], "blend is 2; choose from 0 to 1"),
        (["--method", "theseus", "--strength", "nan"], "the strength is nan"),
        (["--method", "theseus", "--strength", "inf"], "the strength is inf"),
        (["--method", "theseus", "--tokens-per-input", "-3"], "-3 tokens per input"),
        (["--method", "carry", "--head-inputs", "-5"], "-5 inputs"),
        (["--device", "nowhere"], "no device 'nowhere'"),
        (["--prepared", "KEPT"], "no folder that can be written to"),
        (["--report", "KEPT", "--force"], "it is --data"),
        (["--report", "CONFIG", "--force"], "it is a file of SOURCE"),
        (["--report", "OUT"], "it is OUT"),
    ],
)
def test_mistakes_are_one_sentence_before_any_work(folders, arguments, sentence):
    files = {"KEPT": "images.npy", "CONFIG": "a/config.json", "OUT": "out"}
    places = {word: str(folders / name) for word, name in files.items()}
    before = {name: (folders / name).read_bytes() for name in ("images.npy", "a/config.json")}
    done = run(folders, *(places.get(argument, argument) for argument in arguments))
    assert isinstance(done.exception, TransshipError)
    assert sentence in str(done.exception)
    assert not (folders / "out").exists()
    assert all((folders / name).read_bytes() == content for name, content in before.items())


def test_a_folder_that_holds_the_models_is_not_replaced_by_force(folders):
    places = [str(folders / name) for name in ("a", "tuned", "b")]
    for out, sentence in ((folders, "it holds SOURCE"), (folders / "b", "it is TARGET")):
        given = [*places, str(out), "--data", str(folders / "images.npy"), "--force"]
        done = CliRunner().invoke(command, [*given, "--prepared", str(folders / "p")])
        assert isinstance(done.exception, TransshipError)
        assert sentence in str(done.exception)
        assert (folders / "b" / "model.safetensors").is_file()


def test_a_full_disk_is_refused_before_the_work(folders, monkeypatch):
    import shutil

    usage = shutil.disk_usage(folders)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    done = run(folders, "--method", "theseus", "--strength", "1")
    assert isinstance(done.exception, TransshipError)
    assert "the disk has 10 B left" in str(done.exception)
    assert "activations" not in done.stderr
    assert not (folders / "out").exists()


def test_swapped_models_are_named(folders):
    places = [str(folders / name) for name in ("b", "tuned", "a", "out")]
    done = CliRunner().invoke(
        command, [*places, "--data", str(folders / "images.npy"), "--prepared", str(folders / "p")]
    )
    assert "it is a fine-tune of TARGET" in str(done.exception)


def test_auto_prints_its_table_with_baselines_and_says_why(folders):
    done = run(folders)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert any("share no coordinates" in line for line in lines)
    assert any("was taken: it agrees with the fine-tuned source" in line for line in lines)
    at = lines.index("Agreement with the fine-tuned source on 45 inputs that no map or head was fitted on.")
    assert lines[at + 1].split() == ["method", "strength", "agreement", "validation"]
    rows = [re.split(" {2,}", line) for line in lines[at + 2 : lines.index("", at)]]
    agreement = {row[0]: float(row[2]) for row in rows}
    assert set(agreement) >= {
        "untouched target",
        "theseus",
        "gradient",
        "carry, body theseus",
        "carry, body gradient",
    }
    assert any(name.startswith("random-aligned") for name in agreement)
    assert all(0.0 <= value <= 1.0 for value in agreement.values())


def test_a_carried_head_keeps_what_the_target_said_about_other_inputs(folders):
    from transformers import ViTForImageClassification

    old = np.random.default_rng(5).normal(size=(300, 1, 28, 28)).astype(np.float32) + 3.0
    np.save(folders / "old.npy", old)
    for name, more in (("plain", []), ("kept", ["--keep", str(folders / "old.npy")])):
        done = run(folders, "--method", "carry", "-o", "body", "none", "--json", *more, out=name)
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["head"]["kept"] == (300 if more else 0)
    models = [ViTForImageClassification.from_pretrained(folders / name) for name in ("b", "plain", "kept")]
    with torch.no_grad():
        before, plain, kept = (model.eval()(torch.from_numpy(old)).logits.argmax(1) for model in models)
    assert float((kept == before).double().mean()) > float((plain == before).double().mean())


def test_path_steps_are_walked_by_auto_too(folders):
    done = run(folders, "--path-steps", "2", "--strength", "1", "--json")
    assert done.exit_code == 0, done.output
    single = run(folders, "--strength", "1", "--json", out="single")
    entries = [
        {candidate["method"]: candidate["agreement"] for candidate in json.loads(each.stdout)["candidates"]}
        for each in (done, single)
    ]
    assert entries[0].keys() == entries[1].keys()
    kept = [(folders / name / "model.safetensors").read_bytes() for name in ("out", "single")]
    assert kept[0] != kept[1]


def test_models_without_a_common_role_are_named(folders):
    from transformers import BertConfig, BertModel

    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=40, **shape)).save_pretrained(folders / "text")
    places = [str(folders / name) for name in ("a", "tuned", "text", "out")]
    done = CliRunner().invoke(
        command, [*places, "--data", str(folders / "images.npy"), "--prepared", str(folders / "p")]
    )
    assert isinstance(done.exception, TransshipError)
    assert str(folders / "text") in str(done.exception)
    assert "no linear map with the same role" in str(done.exception)


def labelled(folder, name: str, model: str, *, seed: int, count: int = 60):
    """Fresh images with the answers of a model as labels."""
    from transformers import ViTForImageClassification

    images = np.random.default_rng(seed).normal(size=(count, 1, 28, 28)).astype(np.float32)
    with torch.no_grad():
        result = ViTForImageClassification.from_pretrained(folder / model).eval()(torch.from_numpy(images))
    np.savez(folder / name, array=images, label=result.logits.argmax(1).numpy())
    return str(folder / name)


def test_test_rows_are_measured_printed_and_put_on_the_page(folders):
    test = labelled(folders, "test.npz", "tuned", seed=7)
    page = folders / "page.html"
    done = run(folders, "--method", "theseus", "--strength", "1", "--test", test, "--report", str(page))
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    at = next(row for row, line in enumerate(lines) if line.startswith("accuracy on 60 rows of"))
    assert "which nothing was chosen on" in lines[at]
    assert lines[at].endswith("the original domain was not measured: give --original")
    assert lines[at + 1].split("  ")[-1].strip() == "reused head", "there are no labels for a probe"
    assert lines[at + 2].split()[:3] == ["source,", "fine-tuned", "1.0000"]
    assert lines[at + 3].startswith("target, untouched")
    assert lines[at + 4].startswith("target, transported")
    shown = page.read_text(encoding="utf-8")
    assert "target, transported" in shown
    assert "not measured: give --original" in shown


def test_the_original_domain_stands_beside_the_task_in_json_and_card(folders):
    test = labelled(folders, "test.npz", "tuned", seed=7)
    old = labelled(folders, "old.npz", "b", seed=8)
    arguments = ["--method", "carry", "--strength", "4", "--test", test, "--original", old, "--json"]
    done = run(folders, *arguments)
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)["measured"]
    assert [row["model"] for row in record["rows"]] == [
        "source, fine-tuned",
        "target, untouched",
        "target, transported",
    ]
    assert record["rows"][1]["original"] == 1.0
    assert record["rows"][2]["original_carried"] is not None
    assert record["rows"][2]["carried_head"] is not None
    card = json.loads((folders / "out" / "transship.json").read_text(encoding="utf-8"))
    assert card["metrics"]["original domain, target, untouched"] == 1.0
    assert {"test", "original"} <= {row["role"] for row in card["inputs"]}


NAMES, TEMPLATES = ["cat", "dog", "bird"], ["a photo of a {}", "a drawing of a {}"]


def clip(width: int, seed: int):
    """Return a small CLIP with random weights, which reads a text at its highest token: the class's name."""
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(seed)
    tower = {"hidden_size": width, "intermediate_size": 32, "num_hidden_layers": 1}
    tower["num_attention_heads"] = 2
    text = {**tower, "vocab_size": 10, "max_position_embeddings": 16, "eos_token_id": 2}
    vision = {**tower, "image_size": 28, "patch_size": 14}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return model


def clip_folders(folder: Path) -> list[str]:
    """Write a source, a fine-tune of its image tower, and a wider target."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<unk>", "</s>", "a", "photo", "of", "drawing", "cat", "dog", "bird"]
    vocabulary = Tokenizer(models.WordLevel({word: row for row, word in enumerate(words)}, unk_token="<unk>"))
    vocabulary.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = PreTrainedTokenizerFast(
        tokenizer_object=vocabulary, pad_token="<pad>", unk_token="<unk>", eos_token="</s>"
    )

    def save(model, name: str) -> str:
        model.save_pretrained(folder / name)
        tokens.save_pretrained(folder / name)
        return str(folder / name)

    source = clip(16, 0)
    places = [save(source, "a")]
    with torch.no_grad():
        for name, parameter in source.named_parameters():
            if "vision_model.encoder" in name:
                parameter.add_(0.2 * torch.randn_like(parameter) * parameter.std())
    return [*places, save(source, "tuned"), save(clip(24, 1), "b")]


def zero_shot_answers(folder: str, images) -> np.ndarray:
    """Return which of the names a saved CLIP gives each image."""
    from transship.activations import load_model
    from transship.activations.readout import Readout
    from transship.verbs.transport.models import zero_shot

    output = zero_shot(load_model(folder), NAMES, TEMPLATES)
    return Readout(output).all(list(images)).outputs.argmax(1).numpy()


def clip_job(folder: Path) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return the arguments of a transport whose data the fine-tune has labelled, and the images."""
    places = [*clip_folders(folder), str(folder / "out")]
    (folder / "classes.txt").write_text("cat\ndog\n\nbird\n", encoding="utf-8")
    images = {
        name: np.random.default_rng(seed).normal(size=(count, 3, 28, 28)).astype(np.float32)
        for seed, (name, count) in enumerate({"data": 120, "test": 40}.items())
    }
    for name, rows in images.items():
        label = np.array(NAMES)[zero_shot_answers(places[1], rows)]
        np.savez(folder / f"{name}.npz", array=rows, label=label)
    arguments = [*places, "--data", str(folder / "data.npz"), "--test", str(folder / "test.npz")]
    arguments += ["--classes", str(folder / "classes.txt"), "--batches", "2", "--method", "theseus", "--json"]
    arguments += ["--prepared", str(folder / "p")]
    return [*arguments, *(word for template in TEMPLATES for word in ("--template", template))], images


def answered(arguments: list[str]) -> dict:
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def test_class_names_make_zero_shot_heads_of_clip_models(tmp_path):
    from safetensors.torch import load_file
    from transformers import CLIPModel

    from transship.activations import load_model
    from transship.activations.readout import Readout
    from transship.verbs.transport.models import zero_shot

    arguments, images = clip_job(tmp_path)
    _, tuned, target, out = arguments[:4]
    record = answered(arguments)
    assert record["strength_by"] == "validation", "labels meet the zero-shot heads by name"
    assert record["parameters"]["classes"] == NAMES
    wanted = zero_shot_answers(tuned, images["test"])
    theirs, untouched, moved = record["measured"]["rows"]
    assert len(set(wanted)) > 1
    assert theirs["own_head"] == 1.0
    for row, place in ((untouched, target), (moved, out)):  # as it was saved
        assert row["own_head"] == float((zero_shot_answers(place, images["test"]) == wanted).mean())
    fixed = str(tmp_path / "fixed")
    answered([*arguments[:3], fixed, *arguments[4:], "--strength", "1"])
    before, after = (CLIPModel.from_pretrained(place).state_dict() for place in (target, fixed))
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert changed
    assert all("vision" in key or "visual" in key for key in changed), "the text towers stay"
    arguments[3], arguments[arguments.index("theseus")] = str(tmp_path / "carried"), "carry"
    moved = answered(arguments)["measured"]["rows"][2]
    carried = zero_shot(load_model(arguments[3]), NAMES, TEMPLATES)
    features = Readout(carried).all(list(images["test"])).features
    head = load_file(tmp_path / "carried" / "head.safetensors")
    chosen = (features @ head["weight"].T + head["bias"]).argmax(1).numpy()
    assert moved["carried_head"] == float((chosen == wanted).mean()), "a head that CLIP has no place for"
