"""Hub models and data sets in small: random weights and tiny tables in the folders that suites expect."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from transship.cli import main
from transship_suites import SuiteResult

SPECIAL = ["<pad>", "<unk>", "<s>"]
WORDS = [
    "a",
    "photo",
    "of",
    "the",
    "number",
    "texture",
    "pattern",
    "satellite",
    "aerial",
    "imagery",
    "view",
    "red",
    "green",
    "blue",
    "grey",
    "dark",
    "zero",
    "one",
    "two",
    "three",
    "question",
    "answer",
    "yes",
    "no",
    "entailment",
    "neutral",
    "contradiction",
    "positive",
    "negative",
]
LAST = "</s>"  # the highest id, as in CLIP's vocabulary
COLOURS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (40, 60, 220), "grey": (128, 128, 128)}


class Hub:
    """Folders that stand for the hub."""

    words, special, last, colours = WORDS, SPECIAL, LAST, tuple(COLOURS)

    def __init__(self, root: Path) -> None:
        self.models, self.data, self.out = root / "models", root / "data", root / "out"

    # -- models --------------------------------------------------------------------------------------------

    def model(self, name: str, made: nn.Module, *, words: bool = False, images: int | None = None) -> Path:
        """Write a model of transformers with its tokenizer or image processor."""
        folder = self.models / name
        made.eval().save_pretrained(folder)
        if words:
            self.tokenizer(folder)
        if images:
            about = {
                "image_processor_type": "CLIPImageProcessor",
                "size": {"shortest_edge": images},
                "crop_size": {"height": images, "width": images},
                "image_mean": [0.5] * 3,
                "image_std": [0.5] * 3,
                **dict.fromkeys(("do_resize", "do_center_crop", "do_rescale", "do_normalize"), True),
                "do_convert_rgb": True,
            }
            (folder / "preprocessor_config.json").write_text(json.dumps(about))
        return folder

    @staticmethod
    def clip_model(width: int, blocks: int = 1, *, patch: int = 8, seed: int = 0) -> nn.Module:
        """Return a CLIP of both towers with random weights."""
        from transformers import CLIPConfig, CLIPModel

        tower = {
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_hidden_layers": blocks,
            "num_attention_heads": 2,
        }
        torch.manual_seed(seed)
        return CLIPModel(
            CLIPConfig(
                text_config={**tower, "vocab_size": 64, "max_position_embeddings": 16, "eos_token_id": 2},
                vision_config={**tower, "image_size": 16, "patch_size": patch},
                projection_dim=8,
            )
        )

    def tokenizer(self, folder: Path) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers, processors
        from transformers import PreTrainedTokenizerFast

        vocabulary = {word: row for row, word in enumerate([*SPECIAL, *WORDS, LAST])}
        words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        words.post_processor = processors.TemplateProcessing(
            single=f"<s> $A {LAST}",
            pair=f"<s> $A {LAST} $B {LAST}",
            special_tokens=[("<s>", 2), (LAST, len(vocabulary) - 1)],
        )
        PreTrainedTokenizerFast(
            tokenizer_object=words,
            pad_token="<pad>",
            unk_token="<unk>",
            bos_token="<s>",
            eos_token=LAST,
            model_max_length=16,
        ).save_pretrained(folder)

    # -- data ----------------------------------------------------------------------------------------------

    def table(self, file: str, columns: Mapping[str, Any], classes: Mapping[str, Sequence[str]]) -> None:
        """Write a parquet file as the library `datasets` does, names of classes in its metadata."""
        import pyarrow
        import pyarrow.parquet

        path = self.data / file
        path.parent.mkdir(parents=True, exist_ok=True)
        features = {
            name: {"names": list(classes[name]), "_type": "ClassLabel"}
            if name in classes
            else {"_type": "Value"}
            for name in columns
        }
        note = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
        table = pyarrow.table(dict(columns)).replace_schema_metadata(note)
        pyarrow.parquet.write_table(table, path)

    def pictures(
        self,
        layout: str,
        classes: Sequence[str],
        *,
        rows: Mapping[str, int],
        image: str = "image",
        label: str = "label",
        extra: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Write pictures whose colour tells the class; `layout` has SPLIT in the place of the split."""
        random = np.random.default_rng(0)
        colours = list(COLOURS.values())
        for split, count in rows.items():
            labels = np.arange(count) % len(classes)
            pictures = [
                {"bytes": picture(random, colours[each % len(colours)]), "path": f"{row}.png"}
                for row, each in enumerate(labels)
            ]
            columns = {image: pictures, label: labels.tolist()}
            names = {label: classes}
            for other, its in (extra or {}).items():
                columns[other] = (labels % len(its)).tolist()
                names[other] = its
            self.table(layout.replace("SPLIT", split), columns, names)

    # -- running -------------------------------------------------------------------------------------------

    def bench(self, suite: str, **options: Any) -> SuiteResult:
        """Run a suite in the paper's setting through the command line, with some options changed."""
        changes = [part for name, value in options.items() for part in ("--set", name, json.dumps(value))]
        place = ["--device", "cpu", "--jobs", "1", "--out", str(self.out)]  # processes would import all anew
        main(["bench", suite, "--scale", "paper", *place, *changes])
        return SuiteResult.read(self.out / suite / "paper" / "results.json")


def picture(random: np.random.Generator, colour: Sequence[int], size: int = 20) -> bytes:
    from PIL import Image

    noise = random.normal(0, 20, (size, size, 3))
    pixels = np.clip(np.asarray(colour) + noise, 0, 255).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="PNG")
    return stream.getvalue()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("TRANSSHIP_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("TRANSSHIP_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("TRANSSHIP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    from transship_suites.materials import image_sets as pictures

    pictures._whole.cache_clear()
    return Hub(tmp_path)
