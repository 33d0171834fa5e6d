"""RECRAFT's own settings, end to end on tiny RoBERTa and Swin models and files laid out the same way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from transship_suites.recraft.declared import CIFAR, CONLL, TASKS

ARRAYS, EQUATIONS = TASKS["nasbench360"], TASKS["pdebench"]
LIMITS = {"epochs": 1, "proxy_items": 20, "batch_size": 8, "accumulation": 1, "omega": 0.5, "cache": None}
STAGE = {"fa_steps": 2, "fld_steps": 2}


@pytest.fixture
def backbones(hub, tmp_path):
    """Write both backbones and their proxies; return the options that a quick run changes."""
    from transformers import RobertaConfig, RobertaModel, SwinConfig, SwinModel

    from transship_suites.recraft import measure
    from transship_suites.recraft import paper as adapted
    from transship_suites.recraft_pdebench import suite

    measure._opened.cache_clear()
    adapted._proxy.cache_clear()
    torch.manual_seed(0)
    names = suite.scales["paper"].options["backbones"]
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    words = RobertaConfig(**small, vocab_size=64, max_position_embeddings=40)
    hub.model(names["roberta"], RobertaModel(words), words=True)
    swin = SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    hub.model(names["swin"], SwinModel(swin), images=32)
    rows = {"train": 24, "test": 8}
    hub.pictures(f"{CIFAR}/plain_text/SPLIT-00000-of-00001.parquet", hub.colours[:2], rows=rows, image="img")
    sentences = [["a", colour, "question"] for colour in hub.colours] * 6
    tags = [[0, 0, 0], [0, 1, 0], [0, 3, 4], [5, 0, 0]] * 6
    plain = CONLL.partition("@")[0]
    hub.table(f"{plain}/conll2003/train/0000.parquet", {"tokens": sentences, "ner_tags": tags}, {})
    return {"limits": {**LIMITS, "cache": str(tmp_path / "proxies")}, "stage": STAGE, "rows": 20, "test": 8}


def write_equations(hub, names):
    import h5py

    random = np.random.default_rng(0)
    for name in names:
        about = EQUATIONS[name]
        file = hub.data / "pdebench" / about["file"]
        file.parent.mkdir(parents=True, exist_ok=True)
        frames = random.normal(size=(30, 31, 64)).astype("f4")
        planes = random.normal(size=(30, 1, 32, 32)).astype("f4")
        with h5py.File(file, "w") as output:
            if about["form"] == "tensor":
                output["tensor"] = frames
            elif about["form"] == "fields":
                for place, key in enumerate(about["fields"]):
                    output[key] = frames + place
            elif about["form"] == "darcy":
                output["nu"], output["tensor"] = planes[:, 0], planes
            else:
                for row in range(30):
                    shape = (31, 16, 16, 2) if name.endswith("2D") else (31, 64, 1)
                    output[f"{row:04d}/data"] = np.full(shape, row, "f4") + np.arange(shape[-1])


def test_every_form_of_pdebench_gives_first_and_late_frames(hub):
    from transship_suites.materials.targets import _frames

    names = ("Advection", "Navier-Stokes", "Darcy", "Diffusion-reaction 2D", "Diffusion-reaction 1D")
    write_equations(hub, names)
    by_name = {
        name: _frames(hub.data / "pdebench" / EQUATIONS[name]["file"], EQUATIONS[name]) for name in names
    }
    shapes = {name: (x.shape[1:], y.shape[1:]) for name, (x, y) in by_name.items()}
    assert shapes == {
        "Advection": ((1, 16), (16,)),
        "Navier-Stokes": ((1, 192), (192,)),
        "Darcy": ((1, 16, 16), (16, 16)),
        "Diffusion-reaction 2D": ((1, 16, 16), (16, 16)),
        "Diffusion-reaction 1D": ((1, 64), (64,)),
    }
    inputs, outputs = by_name["Diffusion-reaction 2D"]
    np.testing.assert_array_equal(inputs[:, 0] + 1, outputs)  # u(0) in, v(T) out
    inputs, outputs = by_name["Navier-Stokes"]
    np.testing.assert_allclose(outputs[:, 64:128] - outputs[:, :64], 1.0, atol=1e-5)


@pytest.mark.slow
def test_pdebench_runs_on_tiny_backbones_and_prints_the_papers_figures(hub, backbones):
    names = ("Darcy", "Burgers")
    write_equations(hub, names)
    tasks = {name: {**EQUATIONS[name], "settings": {"tokens": 8}} for name in names}
    result = hub.bench("recraft-pdebench", tasks=tasks, methods=["nft", "recraft"], **backbones)
    table = result.tables[0]
    cells, paper = (dict(zip(table.rows, part, strict=True)) for part in (table.cells, table.paper))
    assert set(table.rows) == {"NFT", "RECRAFT"}
    for name, printed in (("Darcy", 0.079), ("Burgers", 0.0108)):
        place = table.columns.index(name)
        assert (cells["RECRAFT"][place].seeds, paper["RECRAFT"][place]) == (5, printed)
        assert cells["NFT"][place].mean > 0
    assert cells["NFT"][table.columns.index("Advection")].seeds == 0
    verdicts = [claim.verdict for claim in result.claims]
    assert verdicts[1:] == ["undecided"] * 3  # ORCA, FA and the control were not run
    assert result.claims[0].spread.seeds == 5


@pytest.mark.slow
def test_nasbench360_runs_on_tiny_arrays_of_every_kind(hub, backbones):
    random = np.random.default_rng(0)
    shapes = {"satellite": (1, 46), "deepsea": (4, 32)}
    for name, shape in shapes.items():
        arrays = {}
        for split, count in (("train", 40), ("test", 16)):
            labels = np.arange(count) % 2
            arrays[f"x_{split}"] = (random.normal(size=(count, *shape)) + labels[:, None, None]).astype("f4")
            both = np.stack([labels, 1 - labels], 1)
            arrays[f"y_{split}"] = both if ARRAYS[name]["kind"] == "multilabel" else labels
        file = hub.data / "nasbench360" / f"{name}.npz"
        file.parent.mkdir(exist_ok=True)
        np.savez(file, **arrays)
    hub.pictures(
        "uoft-cs/cifar100/cifar100/SPLIT-00000-of-00001.parquet",
        hub.colours,
        rows={"train": 40, "test": 16},
        image="img",
        label="fine_label",
    )
    tasks = {name: {**ARRAYS[name], "settings": {"tokens": 8}} for name in (*shapes, "cifar100")}
    result = hub.bench("recraft-nasbench360", tasks=tasks, methods=["nft", "recraft"], **backbones)
    table = result.tables[0]
    cells, paper = (dict(zip(table.rows, part, strict=True)) for part in (table.cells, table.paper))
    for name, printed in (
        ("Satellite, error", 11.11),
        ("DeepSEA, 1 − AUROC", 0.278),
        ("CIFAR100, error", 7.3),
    ):
        place = table.columns.index(name)
        assert (cells["RECRAFT"][place].seeds, paper["RECRAFT"][place]) == (5, printed)
    assert result.claims[0].spread.seeds == 5
