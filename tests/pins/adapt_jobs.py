"""What `adapt` writes: every method, kind of data, option, command and resumption, on tiny bodies."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers
from click.testing import CliRunner
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import transship
from transship.cli import group
from transship.data import Dataset
from transship.registry import build_method, method_names
from transship.verbs.adapt import load_adapted

WORDS = ["red", "green", "blue", "cat", "dog", "bird", "one", "two", "three", "runs", "sees", "is", "a"]
FEW = {"steps": 6, "batch_size": 8, "tokens": 6, "omega": 0.5, "device": "cpu"}
Job = tuple[str, Callable[[], None]]


class Stopped(Exception):  # noqa: N818 - stands for a kill between two steps
    """Ends a fit from outside."""


def jobs(inputs: Path, out: Path) -> Iterator[Job]:
    """Yield the jobs; a later one may read what an earlier one wrote."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    text = text_body(inputs / "bert")
    series, labels = waves(48)
    usual: dict[str, Any] = {**FEW, "backbone": str(text), "proxy": sentences(), "cache": inputs / "cache"}

    def fit(name: str, X: Any, y: Any, *, compare: bool = False, **more: Any) -> Job:  # noqa: N803
        def job() -> None:
            model = transship.Recraft(**usual | more).fit(X, y, compare=compare)
            model.save(out / name)
            np.save(out / name / "outputs.npy", model.predict(X[:8]))
            write(out / name / "features.npy", model.features(X[:8]), model.embedded(X[:8]))

        return name, job

    yield from _fits(fit, series, labels)
    yield from resumed(out, usual, series, labels)
    yield "bound", lambda: bound(out, series, labels)
    yield from commands(inputs, out, text)


def _fits(fit: Callable[..., Job], series: Any, labels: Any) -> Iterator[Job]:
    """Yield a fit of every method, way, base, kind of target, kind of input and body."""
    for method in method_names("adapt"):
        yield fit(f"methods/{method}", series, labels, method=method, method_options=short(method))
    recraft = {"method_options": short("recraft")}
    yield fit("ways/sum", series, labels, method_options=short("recraft") | {"objective_order": "sum"})
    yield fit("ways/keep", series, labels, method_options=short("recraft") | {"keep": 0.5, "select": False})
    yield fit("ways/transport", series, labels, predictor="transport", **recraft)
    yield fit("ways/frozen", series, labels, predictor="transport", freeze_embedder=True, **recraft)
    yield fit("ways/lora", series, labels, lora_rank=2, **recraft)
    yield fit("ways/grid of omega", series, labels, omega="grid", **recraft)
    nft = {"method": "nft"}
    yield fit("ways/accumulated", series, labels, accumulation=2, patience=1, **nft)
    yield fit("ways/last", series, labels, select=False, loss="cross-entropy", metric="1-f1", **nft)
    yield fit("ways/own rows", series[:32], labels[:32], validation=(series[32:], labels[32:]), **nft)
    for base in ("ridge", "rocket", "logistic", "auto"):
        yield fit(f"base/{base}", series, labels, base=base, compare=True, **nft)
    numbers = series.mean(1).astype(float)
    yield fit("targets/regression", series, numbers, task="regression", **recraft)
    yield fit("targets/multilabel", series, np.stack([labels == "slow", labels != "noise"], 1) * 1, **recraft)
    yield fit("targets/signals", series, np.roll(series, 3, 1).astype(float), task="dense", **recraft)
    yield fit("targets/pooled", series, series.astype(float), task="dense", predictor="pooled", **nft)
    yield fit("targets/on ridge", series, series.astype(float) ** 2, task="dense", base="ridge", **nft)
    fields = series[:, :36].reshape(48, 1, 6, 6)
    yield fit("inputs/channels", np.stack([series, -series], 1), labels, **recraft)
    yield fit("inputs/fields for text", fields, labels, **nft)
    yield fit("inputs/table", series[:, :5], labels, kind="tabular", **nft)
    yield fit("inputs/symbols", (series > 0) + 1 * (series > 0.5), labels, kind="tokens", base="ridge", **nft)
    holes = np.where(np.arange(series.shape[1]) == 4, np.nan, series).astype(np.float32)
    yield fit("inputs/filled", holes, labels, missing="fill", base="rocket", **nft)
    for stem in ("multiscale", "rocket"):
        yield fit(f"inputs/{stem}", series, labels, stem=stem, **nft)
    for kind in ("vit", "swin"):
        seen: dict[str, Any] = {"backbone": vision_body(kind), "proxy": halves()}
        yield fit(f"vision/{kind}", fields, labels, **seen, **recraft)
        yield fit(f"vision/{kind} pare", fields, labels, **seen, method="pare")
    yield fit("vision/dense", fields, fields[:, 0].astype(float) + 2, task="dense", **seen, **recraft)


def resumed(out: Path, usual: dict[str, Any], series: Any, labels: Any) -> Iterator[Job]:
    """Yield fits that are broken off and begun again."""
    for phase, method in (("fld", "recraft"), ("stage 2", "pare"), ("stage 2", "recraft")):
        name = f"resumed/{method} {phase}"
        own = {"method": method, "method_options": short(method), "lora_rank": 2 * (method == "recraft")}

        def job(name: str = name, phase: str = phase, own: dict[str, Any] = own) -> None:
            settings = usual | own | {"work": out / "work", "checkpoint_seconds": 0.0}

            def stop(what: str, done: int, total: int) -> None:
                if (what, done) == (phase, 2):
                    raise Stopped

            try:
                transship.Recraft(**settings).fit(series, labels, seen=stop)
            except Stopped:
                transship.Recraft(**settings).fit(series, labels).save(out / name)

        yield name, job


def bound(out: Path, series: Any, labels: Any) -> None:
    """Write what a model says of its source's side, and the terms of Theorem 7."""
    from transship.verbs.adapt.bound import measure_bound

    model = load_adapted(out / "methods" / "recraft")
    (out / "bound").mkdir()
    result = measure_bound(model.adapted_, series[:30], labels[:30]).to_dict()
    (out / "bound" / "terms.json").write_text(json.dumps(result, default=float), encoding="utf-8")
    norms = model.source_gradient_norms(series[:5]), model.source_gradient_norms(series[:5], [0, 1, 2, 0, 1])
    write(out / "bound" / "source.npy", model.source_probabilities(series[:5]), *norms)


def commands(inputs: Path, out: Path, text: Path) -> Iterator[Job]:
    """Yield the commands, which read tables."""
    series, labels = waves(90)
    split = ["train"] * 60 + ["test"] * 30
    table = pa.table({"series": series.tolist(), "label_name": labels.tolist(), "split": split})
    pq.write_table(table, inputs / "waves.parquet")
    proxy = sentences()
    pq.write_table(pa.table({"text": proxy.inputs, "label": proxy.labels.tolist()}), inputs / "proxy.parquet")
    words = ["--backbone", text, "--proxy", inputs / "proxy.parquet", "--train", inputs / "waves.parquet"]
    words += ["--steps", 6, "--tokens", 6, "--omega", 0.5, "--device", "cpu"]
    steps = [part for name in ("fa_steps", "fld_steps") for part in ("-o", name, 3)]

    def run(name: str, *arguments: Any) -> Job:
        def job() -> None:
            (out / name).mkdir(parents=True)
            done = CliRunner(env={"HOME": str(inputs)}).invoke(group, ["adapt", *map(str, arguments)])
            assert done.exit_code == 0, done.output
            kind = "json" if "--json" in arguments else "txt"
            place = out / name / f"printed.{kind}"
            place.write_text(done.stdout.replace(str(out.parent), ""), encoding="utf-8")

        return name, job

    yield run("commands/fit", "fit", out / "model", *words, *steps)
    further = [
        "--sensitivity",
        "0.3,0.8",
        "--path",
        3,
        "--no-baseline",
        "--report",
        out / "page.html",
        "--json",
    ]
    yield run("commands/fit for a page", "fit", out / "other", *words, *steps, *further)
    read = [inputs / "waves.parquet", "--split", "test"]
    yield run("commands/predict", "predict", out / "model", *read)
    yield run("commands/predictions", "predict", out / "model", *read, "--out", out / "commands" / "rows.csv")
    yield run("commands/predict as json", "predict", out / "other", *read, "--json")
    yield run("commands/bound", "bound", out / "model", *read)
    yield run("commands/bound as json", "bound", out / "other", *read, "--json", "--seed", 3)
    for name in ("model", "other", "commands/rows.csv"):
        yield name, lambda: None  # what the commands wrote there


def short(method: str) -> dict[str, Any]:
    """Return options of the method under which its stage 1 is brief."""
    fields = dataclasses.fields(build_method("adapt", method))  # type: ignore[arg-type]
    return {field.name: 4 for field in fields if field.name.endswith("steps")}


def write(place: Path, *arrays: Any) -> None:
    """Keep arrays in one file."""
    np.save(place, np.concatenate([np.asarray(array).ravel() for array in arrays]))


def waves(count: int) -> tuple[Any, Any]:
    """Return series of length 37 in three classes."""
    generator = np.random.default_rng(0)
    kinds, time = np.arange(count) % 3, np.arange(37)
    rates = np.array([0.4, 1.1, 0.0])[kinds]
    series = np.sin(rates[:, None] * time + generator.uniform(0, 6, count)[:, None]) * (kinds != 2)[:, None]
    series = series + generator.normal(0, 0.3, series.shape)
    return series.astype(np.float32), np.array(["slow", "fast", "noise"])[kinds]


def sentences() -> Dataset:
    """Return texts of three classes, told apart by one word."""
    generator = np.random.default_rng(0)
    labels = np.arange(60) % 3
    texts = [
        " ".join([*generator.choice(WORDS[3 * label : 3 * label + 3], 2), *generator.choice(WORDS[9:], 3)])
        for label in labels
    ]
    return Dataset("words", "text", texts, labels, ("colour", "animal", "number"))


def halves() -> Dataset:
    """Return pictures with a bright or a dark left half."""
    labels = np.arange(40) % 2
    values = np.random.default_rng(0).normal(0, 0.3, (40, 1, 16, 16)).astype(np.float32)
    values[labels == 1, :, :, :8] += 1.0
    return Dataset("halves", "array", values, labels, ("dark", "bright"))


def text_body(folder: Path) -> Path:
    """Write a BERT of two small blocks with a word tokenizer."""
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    marks = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=64, **marks
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    with redirect_stdout(io.StringIO()):
        transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def vision_body(kind: str) -> Any:
    """Return a small ViT or Swin."""
    torch.manual_seed(0)
    if kind == "vit":
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        config: Any = transformers.ViTConfig(image_size=16, patch_size=4, num_channels=1, **sizes)
        return transformers.ViTModel(config).eval()
    config = transformers.SwinConfig(
        image_size=16,
        patch_size=2,
        num_channels=1,
        embed_dim=8,
        depths=[1, 1],
        num_heads=[2, 2],
        window_size=4,
    )
    return transformers.SwinModel(config).eval()
