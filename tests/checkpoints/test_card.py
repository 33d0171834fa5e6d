"""Cards say what a result was made from, and not where that lay."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from transship.checkpoints import Input, ModelCard, Update, write_adapter
from transship.checkpoints import open as open_checkpoint
from transship.checkpoints.card import license_of, plain_text, public_name


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("/home/somebody/models/bert-base", "bert-base"),
        ("~/models/bert-base", "bert-base"),
        ("./out/tuned/", "tuned"),
        ("owner/name", "owner/name"),
        ("owner/name@main", "owner/name@main"),
        ("/home/somebody/.cache/huggingface/hub/models--owner--name/snapshots/0a1b2c", "owner/name"),
        ("digits", "digits"),
    ],
)
def test_the_public_name_of_a_reference(reference: str, name: str):
    assert public_name(reference) == name


def test_a_folder_that_looks_like_a_hub_id_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "models" / "bert").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert public_name("models/bert") == "bert"


@pytest.mark.parametrize(
    ("text", "written"),
    [("the target's own", "the target's own"), ("<b> & a|b", r"&lt;b&gt; &amp; a\|b"), ("a\nb", r"a\\nb")],
)
def test_a_text_of_a_card_is_shown_as_it_is(text: str, written: str):
    assert plain_text(text) == written


def test_no_part_of_a_card_carries_a_local_path():
    card = ModelCard(
        title="/home/somebody/tuned on /home/somebody/base",
        verb="transport",
        method="theseus",
        summary="What /home/somebody/tuned learned, moved to ~/models/base at strength 0.5.",
        parameters={"data": "/home/somebody/data/texts.jsonl", "recipe": '{"model": "/home/somebody/a"}'},
        inputs=[Input("base", "/home/somebody/base", "0" * 64), Input("data", "owner/set", "1" * 64)],
        notes=["Read with `/home/somebody/tool/run`."],
        recipe="models:\n- model: /home/somebody/a\n- {model: ~/models/b}\n",
    )
    for text in card.files().values():
        assert "somebody" not in text
        assert "~/" not in text
    assert card.title == "tuned on base"
    assert card.recipe == "models:\n- model: a\n- {model: b}\n"
    assert card.parameters == {"data": "texts.jsonl", "recipe": '{"model": "a"}'}
    assert json.loads(card.files()["transship.json"])["inputs"][1]["name"] == "owner/set"


def test_an_adapter_names_its_base_without_its_path(tmp_path: Path):
    base = tmp_path / "somewhere" / "base"
    base.mkdir(parents=True)
    save_file({"a.weight": np.zeros((4, 4), np.float32)}, base / "model.safetensors")
    (base / "config.json").write_text("{}")
    with open_checkpoint(base) as opened:
        factors = {"a.weight": (torch.ones(4, 1).numpy(), torch.ones(1, 4).numpy())}
        write_adapter(tmp_path / "adapter", Update.from_arrays(factors, base=opened))
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["base_model_name_or_path"] == "base"


def test_the_head_is_what_the_hub_reads(tmp_path: Path):
    """The head of the page is that of the hub's own class, which we do not import: it would slow a merge."""
    hub = pytest.importorskip("huggingface_hub")
    for name, license in (("a", "apache-2.0"), ("b", '"mit"')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text(f"---\nlicense: {license}\n---\nlicense: none\n")
    inputs = [
        Input("base", "owner/base@main", "0", license_of(tmp_path / "a")),
        Input("model", "owner/tuned", "1", license_of(tmp_path / "b")),
        Input("test", "owner/set", "2"),
    ]
    card = ModelCard(
        title="A merge: `x`",
        verb="merge",
        method="ties",
        inputs=inputs,
        metrics={"accuracy, own head": 0.75, "by": "labels"},
    )
    read = hub.ModelCard(card.markdown()).data
    expected = hub.ModelCardData(
        library_name="transformers",
        tags=["transship", "merge"],
        license="other",
        license_name="apache-2.0 and mit",
        base_model=["owner/base", "owner/tuned"],
        base_model_relation="merge",
        datasets=["owner/set"],
        model_name="A merge: `x`",
        eval_results=[
            hub.EvalResult(
                task_type="other",
                task_name="merge",
                dataset_type="owner/set",
                dataset_name="owner/set",
                metric_type="accuracy-own-head",
                metric_name="accuracy, own head",
                metric_value=0.75,
            )
        ],
    )
    assert read.to_dict() == expected.to_dict()


def test_a_licence_is_stated_only_where_all_parts_have_one():
    def license(*stated: str) -> object:
        inputs = [Input("model", "m", str(n), each) for n, each in enumerate(stated)]
        return ModelCard(title="t", verb="merge", method="linear", inputs=inputs).head().get("license")

    assert [license("mit", "mit"), license("mit", ""), license()] == ["mit", None, None]
