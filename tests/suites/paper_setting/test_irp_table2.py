"""IRP's own setting, end to end on tiny encoders of images and texts."""

from __future__ import annotations

import pytest
import torch

from transship_suites.irp_table2 import DATA, IMAGES, TEXTS, suite

IMAGE = ("google/vit-base-patch16-224", "openai/clip-vit-base-patch32")
TEXT = ("google-bert/bert-base-cased", "FacebookAI/roberta-base")


def write_encoders(hub):
    from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel, ViTConfig, ViTModel

    small = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    words = {**small, "vocab_size": 64, "max_position_embeddings": 40}
    torch.manual_seed(0)
    hub.model(IMAGE[0], ViTModel(ViTConfig(**small, image_size=16, patch_size=8)), images=16)
    hub.model(IMAGE[1], hub.clip_model(16), words=True, images=16)
    hub.model(TEXT[0], BertModel(BertConfig(**words)), words=True)
    hub.model(TEXT[1], RobertaModel(RobertaConfig(**words)), words=True)


def write_data(hub):
    rows = {"train": 50, "test": 12}
    hub.pictures(
        "uoft-cs/cifar100/cifar100/SPLIT-00000-of-00001.parquet",
        hub.colours,
        rows=rows,
        image="img",
        label="fine_label",
        extra={"coarse_label": ["warm", "cold"]},
    )
    for split, count in rows.items():
        labels = [row % 2 for row in range(count)]
        texts = [
            f"a {'red' if label else 'blue'} question {hub.words[row % 20]}"
            for row, label in enumerate(labels)
        ]
        columns = {"text": texts, "coarse_label": labels, "fine_label": labels}
        classes = {"coarse_label": ["ABBR", "DESC"], "fine_label": ["one", "two"]}
        hub.table(f"CogComp/trec/default/{split}/0000.parquet", columns, classes)
    hub.pictures("n24news/SPLIT.parquet", ["Art", "Food"], rows=rows)
    for split in rows:
        import pyarrow
        import pyarrow.parquet

        file = hub.data / "n24news" / f"{split}.parquet"
        table = pyarrow.parquet.read_table(file)
        texts = [f"a {'red' if label else 'blue'} view" for label in table.column("label").to_pylist()]
        pyarrow.parquet.write_table(table.append_column("text", pyarrow.array(texts)), file)


@pytest.mark.slow
def test_the_suite_stitches_tiny_encoders_and_prints_the_papers_figures(hub):
    write_encoders(hub)
    write_data(hub)
    chosen = ("CIFAR-100 (coarse)", "TREC", "N24News, images ↔ texts")
    result = hub.bench(
        "irp-table2",
        images=list(IMAGE),
        texts=list(TEXT),
        data={name: DATA[name] for name in chosen},
        anchors=30,
        **{"anchors across": 40},
    )
    (table,) = result.tables
    assert table.rows == chosen
    cells, paper = (dict(zip(table.rows, part, strict=True)) for part in (table.cells, table.paper))
    irp, own, pairs = (table.columns.index(name) for name in ("zero-shot: IRP", "non-stitch", "pairs"))
    assert paper["TREC"][irp] == 0.73
    assert cells["TREC"][irp].seeds == 5
    assert cells["TREC"][own].mean > 0.9  # the colour is in the text
    assert cells["TREC"][pairs].mean == 2
    assert cells["N24News, images ↔ texts"][pairs].mean == 12
    assert cells["CIFAR-100 (coarse)"][table.columns.index("absolute")].seeds == 0  # widths 16 and 8
    assert all(claim.spread.seeds == 5 for claim in result.claims[:1] if claim.source == "ours")
    assert {claim.verdict for claim in result.claims} <= {"confirmed", "refuted", "undecided"}


def test_needs_name_the_encoders_and_timm_only_where_it_is_used():
    whole = suite.needs_at("paper")
    assert {need.name for need in whole if need.kind == "library"} == {"timm", "torchvision"}
    assert {need.name for need in whole if need.kind == "model"} == {*IMAGES, *TEXTS}
    few = suite.with_options("paper", {"data": {"TREC": DATA["TREC"]}})
    assert {need.kind for need in few.needs_at("paper")} == {"gpu", "model", "data"}
    assert {need.name for need in few.needs_at("paper") if need.kind == "model"} == set(TEXTS)
