"""THESEUS' own setting, end to end on tiny models of both file forms and tiny pictures."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import Tensor, nn

WIDE = {
    "embed_dim": 8,
    "vision_cfg": {"image_size": 16, "layers": 1, "width": 24, "patch_size": 8, "head_width": 12},
    "text_cfg": {"context_length": 16, "vocab_size": 64, "width": 16, "heads": 2, "layers": 1},
}


class OpenClipBlock(nn.Module):
    """A block as open_clip names it, written out with torch's own attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp["c_proj"](nn.functional.gelu(self.mlp["c_fc"](self.ln_2(x))))


class OpenClip(nn.Module):
    """Both towers under open_clip's names."""

    def __init__(self) -> None:
        super().__init__()
        vision, text = WIDE["vision_cfg"], WIDE["text_cfg"]
        width, words = vision["width"], text["width"]
        self.visual = nn.Module()
        self.visual.class_embedding = nn.Parameter(torch.randn(width))
        self.visual.positional_embedding = nn.Parameter(torch.randn(5, width))
        self.visual.conv1 = nn.Conv2d(3, width, 8, 8, bias=False)
        self.visual.ln_pre, self.visual.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        self.visual.transformer = nn.Module()
        self.visual.transformer.resblocks = nn.ModuleList([OpenClipBlock(width, 2)])
        self.visual.proj = nn.Parameter(torch.randn(width, 8))
        self.token_embedding = nn.Embedding(text["vocab_size"], words)
        self.positional_embedding = nn.Parameter(torch.randn(16, words))
        self.transformer = nn.Module()
        self.transformer.resblocks = nn.ModuleList([OpenClipBlock(words, 2)])
        self.ln_final = nn.LayerNorm(words)
        self.text_projection = nn.Parameter(torch.randn(words, 8))
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def image(self, pixels: Tensor) -> Tensor:
        patches = self.visual.conv1(pixels).flatten(2).transpose(1, 2)
        first = self.visual.class_embedding.expand(len(pixels), 1, -1)
        x = self.visual.ln_pre(torch.cat([first, patches], 1) + self.visual.positional_embedding)
        return self.visual.ln_post(self.visual.transformer.resblocks[0](x)[:, 0]) @ self.visual.proj

    def text(self, ids: Tensor) -> Tensor:
        x = self.token_embedding(ids) + self.positional_embedding[: ids.shape[1]]
        mask = torch.full((ids.shape[1],) * 2, float("-inf")).triu(1)
        x = self.ln_final(self.transformer.resblocks[0](x, mask))
        return x[torch.arange(len(ids)), ids.argmax(1)] @ self.text_projection


def open_clip(hub, name: str) -> OpenClip:
    from safetensors.torch import save_file

    torch.manual_seed(5)
    model, folder = OpenClip().eval(), hub.models / name
    folder.mkdir(parents=True)
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": WIDE}))
    hub.tokenizer(folder)
    return model


def test_a_model_of_open_clip_says_the_same_in_transformers(hub):
    from transship_suites.materials.clip import load_clip

    theirs, ours = open_clip(hub, "some/wide"), load_clip("some/wide")
    pixels = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        pooler_output = ours.model.get_image_features(pixel_values=pixels).pooler_output
        torch.testing.assert_close(pooler_output, theirs.image(pixels), rtol=1e-4, atol=1e-5)
        batch = ours.preprocess(["a photo of the red", "a photo"])
        assert batch.inputs["input_ids"].max() == len([*hub.special, *hub.words])  # the last token's id
        torch.testing.assert_close(ours.run(batch).pooler_output, theirs.text(batch.inputs["input_ids"]))


@pytest.mark.slow
def test_the_suite_runs_on_tiny_models_and_prints_the_papers_figures(hub):
    from transship_suites.theseus_clip import MODELS, PARTS

    open_clip(hub, MODELS["B/16+ LAION-400M"])
    for seed, (name, blocks) in enumerate(
        {"B/16 LAION-2B": 1, "B/16 DataComp-XL": 1, "L/14 DataComp-XL": 2}.items()
    ):
        clip_model = hub.clip_model(16 * blocks, blocks, seed=seed)
        hub.model(MODELS[name], clip_model, words=True, images=16)
    rows = {"train": 90, "test": 24}
    hub.pictures("tanganke/dtd/data/SPLIT-00000-of-00001.parquet", hub.colours[:3], rows=rows)
    parts = {name: dict(part) for name, part in PARTS.items()}
    parts["wider"] |= {
        "batches": {"1": ["theseus", "pad"], "5": ["theseus", "pinv"]},
        "shots": {"1": ["theseus"]},
    }
    parts["wider"]["warm"] = {"batches": [1], "steps": [0, 1]}
    parts["narrower"] |= {"batches": {"1": ["theseus"]}, "shots": {}, "align": ["mean"], "align_batches": [1]}
    parts["same"]["shots"] = {"1": ["gradfix", "theseus"]}
    tuning = {"steps": 8, "batch": 16, "rate": 1e-3, "decay": 0.1, "warmup": 2}
    result = hub.bench(
        "theseus-clip",
        parts=parts,
        tasks=["dtd"],
        tuning=tuning,
        batch=64,
        calibration=8,
        strengths=[0, 1],
    )
    assert {table.title.split("(")[-1] for table in result.tables} == {
        "Table 1)", "Table 3)", "Table 4)", "Table 5)", "Table 6)", "Table 7)", "Table 8)"
    }  # fmt: skip
    table = result.tables[0]
    cells = dict(zip(table.rows, table.cells, strict=True))
    paper = dict(zip(table.rows, table.paper, strict=True))
    dtd = table.columns.index("DTD")
    assert paper["theseus, B = 5"][dtd] == 58.83
    assert cells["theseus, B = 5"][dtd].seeds == 3
    assert cells["θ_A fine-tune"][dtd].mean > cells["θ_B zero-shot"][dtd].mean
    assert cells["theseus, B = 5"][table.columns.index("EuroSAT")].seeds == 0
    verdicts = {claim.source: claim for claim in result.claims}
    assert verdicts["Table 1 (+0.16)"].verdict == "undecided"  # random-aligned was not run
    assert verdicts["Table 4 (+6.61)"].verdict in ("confirmed", "refuted", "undecided")
    assert len(verdicts["Table 4 (+6.61)"].per_seed) == verdicts["Table 4 (+6.61)"].spread.seeds == 3
    assert np.isfinite([case.seconds for case in result.cases]).all()
    assert result.options["tuning"] == tuning
