"""OTMF's own setting, end to end on tiny image towers and eight tiny image sets."""

from __future__ import annotations

import copy

import pytest
import torch

from transship_suites.materials.image_sets import IMAGE_SETS
from transship_suites.otmf.names import INDIVIDUAL, OTMF
from transship_suites.otmf_clip import BACKBONES, COUNTS, METHODS, suite


def write_sets(hub, names, rows):
    for name in names:
        result = IMAGE_SETS[name]
        plain = result.hub.partition("@")[0]
        layout = result.layout.replace("SPLIT-*", "SPLIT-00000-of-00001").replace(
            "/*.parquet", "/0000.parquet"
        )
        classes = ["red", "green"] if result.names else hub.colours[:2]
        held = {
            "validation" if split == "test" and result.test == "validation" else split: n
            for split, n in rows.items()
        }
        hub.pictures(
            f"{plain}/{layout}",
            classes,
            rows=held,
            image=result.image or "image",
            label=result.label or "label",
        )


def write_towers(hub, family, names):
    from transformers import CLIPVisionModel

    base = hub.clip_model(16)
    hub.model(family["base"], base, words=True, images=16)
    for place, name in enumerate(names):
        torch.manual_seed(place)
        tuned = copy.deepcopy(base.vision_model)
        with torch.no_grad():
            for parameter in tuned.parameters():
                parameter.add_(0.05 * parameter.std().nan_to_num(0.1) * torch.randn_like(parameter))
        assert isinstance(tuned, CLIPVisionModel)
        hub.model(family["tuned"].format(task=name), tuned)


def test_every_image_set_is_read_from_the_layout_that_its_need_names(hub):
    from transship_suites.materials.image_sets import class_names, image_rows

    write_sets(hub, IMAGE_SETS, {"train": 4, "test": 2})
    # as the hub's copy has them: corrupted test pictures, and a second shard of the training rows
    hub.pictures("tanganke/stanford_cars/data/SPLIT-00000-of-00001.parquet", ["a", "b"], rows={"contrast": 3})
    hub.pictures("tanganke/dtd/data/SPLIT-00001-of-00002.parquet", hub.colours[:2], rows={"train": 3})
    sizes = {name: (7 if name == "dtd" else 4, 2) for name in IMAGE_SETS}
    for name in IMAGE_SETS:
        assert (len(image_rows(name, "train")), len(image_rows(name, "test"))) == sizes[name], name
        assert image_rows(name, "train").inputs[0].size == (20, 20)
        assert len(class_names(name)) == 2


@pytest.mark.slow
def test_the_suite_merges_tiny_towers_and_prints_the_papers_figures(hub):
    names = list(IMAGE_SETS)[:8]
    write_sets(hub, names, {"train": 8, "test": 4})
    write_towers(hub, BACKBONES["ViT-B/32"], names)
    result = hub.bench(
        "otmf-clip",
        backbones={"ViT-B/32": BACKBONES["ViT-B/32"]},
        counts=[8],
        methods={"average": METHODS["average"], OTMF: ("otmf", {"iterations": 2, "batch_size": 4})},
        joint={"joint Fisher": ("fisher", {"definition": "drawn"})},
        alphas=[],
        labelled=0.5,
        inputs=4,
    )
    first = result.tables[0]
    cells, paper = (dict(zip(first.rows, part, strict=True)) for part in (first.cells, first.paper))
    place = first.columns.index("ViT-B/32, 8")
    assert (cells[OTMF][place].seeds, paper[OTMF][place]) == (3, 79.7)
    assert cells["average"][first.columns.index("ViT-L/14, 8")].seeds == 0
    second = next(table for table in result.tables if "Table 2" in table.title)
    rows = dict(zip(second.rows, second.cells, strict=True))
    assert {INDIVIDUAL, "joint Fisher", "average", OTMF} <= set(rows)
    assert all(cell.seeds == 3 for cell in rows["joint Fisher"])
    own = [
        measurement.metrics
        for measurement in result.measurements
        if measurement.factors.get("method") == INDIVIDUAL
    ]
    tasks = [metrics["accuracy of the task"] for metrics in own if "accuracy of the task" in metrics]
    means = [metrics["accuracy"] for metrics in own if "accuracy" in metrics]
    assert abs(sum(tasks) / len(tasks) - sum(means) / len(means)) < 1e-9
    assert result.claims[0].spread.seeds == 0  # TIES was not run, so nothing is decided
    assert result.claims[5].spread.seeds == 3


def test_needs_follow_the_options():
    few = suite.with_options("paper", {"counts": [8], "backbones": {"ViT-B/32": BACKBONES["ViT-B/32"]}})
    names = [need.name for need in few.needs_at("paper") if need.kind == "model"]
    assert len(names) == 9
    assert "tanganke/clip-vit-base-patch32_stanford-cars" in names
    every = [need.name for need in suite.needs_at("paper") if need.kind == "model"]
    assert len(every) == len(BACKBONES) * (1 + max(COUNTS))
