"""The parsers of what others wrote: for each valid files, how they are changed, and how they are read.

`read` returns for a file that is right, and raises a `TransshipError` for one that is not; whatever else
happens is a finding. `scripts/fuzz.py` draws files by the thousand; `test_corpus.py` reads what was found.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from mutations import changed_bytes, changed_document
from pages import BETWEEN, NAMES, check_page, chromium  # noqa: F401 - the runner asks for it

Make = Callable[[Path], list[bytes]]
Read = Callable[[bytes, Path], object]
Change = Callable[[Sequence[bytes]], st.SearchStrategy[bytes]]


@dataclass(frozen=True)
class Target:
    """One parser.

    Attributes:
        make: writes what lies beside the file into a folder, and returns valid files.
        read: reads a file with the parser, in the same folder.
        change: how valid files are changed.
        count: as how many files one counts: a page has many names.
    """

    make: Make
    read: Read
    change: Change = changed_bytes
    count: int = 1


PER_PAGE = 50
TARGETS: dict[str, Target] = {}


def target(name: str, make: Make, change: Change = changed_bytes, count: int = 1) -> Callable[[Read], Read]:
    def add(read: Read) -> Read:
        TARGETS[name] = Target(make, read, change, count)
        return read

    return add


def header_of(tensors: dict[str, np.ndarray], **metadata: str) -> bytes:
    from safetensors.numpy import save

    return save(tensors, metadata or None)


def weights(*_: Any) -> list[bytes]:
    random = np.random.default_rng(0)
    small = {"a.weight": random.random((3, 4), np.float32), "b": np.arange(6, dtype=np.int64)}
    halves = {f"layer.{n}.weight": random.random((2, 2)).astype(np.float16) for n in range(4)}
    return [header_of(small, format="pt"), header_of(halves), header_of({"e": np.zeros((0, 3), np.float32)})]


def plain_header(data: bytes) -> bytes:
    """Return a safetensors file whose length fits its header again."""
    size = struct.unpack("<Q", data[:8])[0]
    return data[8 : 8 + size]


@target("safetensors", weights)
def read_weights(data: bytes, folder: Path) -> None:
    from transship import checkpoints

    (folder / "x.safetensors").write_bytes(data)
    with checkpoints.open(folder / "x.safetensors") as opened:
        checkpoints.describe(opened)
        for name in opened.tensors:
            opened.read(name), opened.tensor(name)
        opened.fingerprint()


def headers(folder: Path) -> list[bytes]:
    return [plain_header(data) for data in weights()]


@target("safetensors-header", headers, changed_document)
def read_header(data: bytes, folder: Path) -> None:
    """The header alone is changed, and its length says how long it is now: deeper than random bytes come."""
    ends = re.findall(rb'"data_offsets": ?\[\d+, ?(\d{1,4})\]', data)
    read_weights(struct.pack("<Q", len(data)) + data + bytes(max(map(int, ends), default=8)), folder)


def shards(folder: Path) -> list[bytes]:
    first, second, _ = weights()
    (folder / "model-00001-of-00002.safetensors").write_bytes(first)
    (folder / "model-00002-of-00002.safetensors").write_bytes(second)
    names = {"a.weight": 1, "b": 1, **{f"layer.{number}.weight": 2 for number in range(4)}}
    mapped = {name: f"model-0000{number}-of-00002.safetensors" for name, number in names.items()}
    return [json.dumps({"metadata": {"total_size": 128}, "weight_map": mapped}).encode()]


@target("index", shards, changed_document)
def read_index(data: bytes, folder: Path) -> None:
    from transship import checkpoints

    (folder / "model.safetensors.index.json").write_bytes(data)
    with checkpoints.open(folder) as opened:
        checkpoints.describe(opened)


def bert(folder: Path, **sides: Any) -> dict[str, Any]:
    """Write a tiny BERT without words, and return its config."""
    import torch
    from transformers import BertConfig, BertModel, logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = BertConfig(**sizes, vocab_size=9, max_position_embeddings=8, **sides)
    with contextlib.redirect_stderr(io.StringIO()):
        BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def configs(folder: Path) -> list[bytes]:
    config = bert(folder)
    vision = {"model_type": "vit", "hidden_size": 8, "num_hidden_layers": 1, "image_size": 8, "patch_size": 4}
    both = {"model_type": "clip", "text_config": config, "vision_config": vision, "projection_dim": 4}
    return [json.dumps(each).encode() for each in (config, config, config | {"num_labels": 3}, vision, both)]


@target("config", configs, changed_document)
def read_config(data: bytes, folder: Path) -> None:
    from transship import activations, checkpoints

    (folder / "config.json").write_bytes(data)
    with checkpoints.open(folder) as opened:
        checkpoints.describe(opened)
        checkpoints.Footprint.of(opened)
        activations.checkpoint_sites(opened)


def adapters(folder: Path) -> list[bytes]:
    bert(folder / "base")
    names = ["encoder.layer.0.attention.self.query", "encoder.layer.0.attention.self.value"]
    factors = {f"base_model.model.{name}.lora_A.weight": np.ones((2, 8), np.float32) for name in names}
    factors |= {f"base_model.model.{name}.lora_B.weight": np.ones((8, 2), np.float32) for name in names}
    (folder / "adapter_model.safetensors").write_bytes(header_of(factors))
    config = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["query", "value"],
        "bias": "none",
    }
    config |= {"base_model_name_or_path": "base", "rank_pattern": {"query": 2}, "alpha_pattern": {"value": 4}}
    return [
        json.dumps(config | {"use_rslora": kind, "fan_in_fan_out": kind}).encode() for kind in (False, True)
    ]


@target("adapter-config", adapters, changed_document)
def read_adapter(data: bytes, folder: Path) -> None:
    from transship import checkpoints

    (folder / "adapter_config.json").write_bytes(data)
    with checkpoints.open(folder) as opened, checkpoints.open(folder / "base") as base:
        checkpoints.describe(opened)
        checkpoints.describe_update(checkpoints.Update.from_adapter(opened, base))


RECIPE = """\
merge_method: ties
base_model: base
dtype: float32
models:
  - model: a
    parameters: {weight: [0.2, 0.8], density: 0.5}
  - model: {model: {path: b}}
    parameters:
      weight:
        - {filter: query, value: 0.3}
        - value: 0.7
parameters: &common
  normalize: true
  lambda: 1.0
"""
SLICES = """\
slices:
  - sources: [{model: a, layer_range: [0, 1]}]
  - sources: &same
      - model: b
        layer_range: [0, 1]
merge_method: passthrough
tokenizer_source: base
---
merge_method: slerp
name: second
base_model: a
models: [{model: a}, {model: b}]
parameters: {t: [0, 0.5, 1]}
"""


LINEAR = """\
merge_method: linear
models:
  - model: a
    parameters: {weight: 1}
"""


def recipes(folder: Path) -> list[bytes]:
    for name in ("base", "a", "b"):
        bert(folder / name)
    return [
        text.replace(" base", f" {folder}/base").replace(" a\n", f" {folder}/a\n").encode()
        for text in (
            RECIPE,
            SLICES,
            "merge_method: linear\nmodels:\n  - model: a\n    parameters: {weight: 1}\n",
        )
    ]


@target("recipe", recipes)
def read_recipe(data: bytes, folder: Path) -> None:
    from transship.verbs.merge.plan import plan

    (folder / "recipe.yaml").write_bytes(data)
    with contextlib.chdir(folder):
        plan(folder / "recipe.yaml")


def fusions(folder: Path) -> list[bytes]:
    from transship.verbs.merge.fusion import Fusion

    for name in ("base", "tuned"):
        bert(folder / name)
    fusion = Fusion(str(folder / "base"), method="average")
    out = folder / "fusion"
    fusion.save(out)
    empty = (out / "fusion.json").read_bytes()
    fusion.add(str(folder / "tuned"), name="t")
    fusion.save(out, force=True)
    return [(out / "fusion.json").read_bytes(), (out / "fusion.json").read_bytes(), empty]


@target("fusion", fusions, changed_document)
def read_fusion(data: bytes, folder: Path) -> None:
    from transship.report import terminal
    from transship.verbs.merge.fusion import Fusion
    from transship.verbs.merge.fusion.page import status_page

    (folder / "fusion" / "fusion.json").write_bytes(data)
    try:
        terminal.render(status_page(folder / "fusion"))
    finally:
        Fusion.load(folder / "fusion")


def maps(folder: Path) -> list[bytes]:
    from transship.registry import build_method
    from transship.verbs import translate

    random = np.random.default_rng(0)
    old, new = random.random((40, 4)), random.random((40, 3))
    documents = []
    for method in ("ridge", "irp", "kernel"):
        fitted = build_method("translate", method, {}).fit(old, new)
        translate.save_map(
            fitted, folder / method, {"source": "old", "target": "new", "quality": {"recall": 0.5}}
        )
        documents.append((folder / method / "map.json").read_bytes())
    return documents


@target("map", maps, changed_document)
def read_map(data: bytes, folder: Path) -> None:
    """Whoever changes a map can also write the hash that belongs to it."""
    from transship.verbs.translate.maps.saved import load_map, map_hash

    kind = next((name for name in ("ridge", "irp", "kernel") if f'"{name}"'.encode() in data), "ridge")
    try:
        document = json.loads(data)
        document["hash"] = map_hash(document)
        data = json.dumps(document).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass
    (folder / kind / "map.json").write_bytes(data)
    saved = load_map(folder / kind)
    saved.translator.transform(np.ones((2, saved.widths[0]), np.float32))


@target("map-arrays", lambda folder: [*maps(folder)[:0], *array_files(folder)])
def read_map_arrays(data: bytes, folder: Path) -> None:
    from transship.verbs.translate.maps.saved import load_map, map_hash

    document = json.loads((folder / "ridge" / "map.json").read_text(encoding="utf-8"))
    document["arrays"] = hashlib.sha256(data).hexdigest()
    document["hash"] = map_hash(document)
    (folder / "ridge" / "map.json").write_text(json.dumps(document), encoding="utf-8")
    (folder / "ridge" / "map.safetensors").write_bytes(data)
    saved = load_map(folder / "ridge")
    saved.translator.transform(np.ones((2, saved.widths[0]), np.float32))


def array_files(folder: Path) -> list[bytes]:
    return [(folder / "ridge" / "map.safetensors").read_bytes()]


def read_rows(data: bytes, folder: Path, name: str) -> None:
    """Read a file as data, every row of it, and as vectors of a store where it may be one."""
    from transship import data as data_sets

    (folder / name).write_bytes(data)
    dataset = data_sets.load(folder / name)
    dataset.fingerprint()
    for _ in dataset.batches(64):
        pass


def parquet_files(folder: Path) -> list[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = {"text": ["one", "two words", "three"] * 5, "label": ["a", "b", "a"] * 5, "id": list(range(15))}
    vectors = {"id": list(range(8)), "vector": [[0.5, float(n), 1.0] for n in range(8)]}
    files = []
    for table, codec in ((rows, "snappy"), (vectors, "none"), (rows, "zstd"), ({"x": [1.5, 2.0]}, "gzip")):
        buffer = io.BytesIO()
        pq.write_table(pa.table(table), buffer, compression=codec, row_group_size=6)
        files.append(buffer.getvalue())
    return files


@target("parquet", parquet_files)
def read_parquet(data: bytes, folder: Path) -> None:
    read_rows(data, folder, "x.parquet")


def parquet_stores(folder: Path) -> list[bytes]:
    files = parquet_files(folder)
    return [*files[1:], files[0]]  # one with vectors first


@target("parquet-store", parquet_stores)
def read_parquet_store(data: bytes, folder: Path) -> None:
    read_store(data, folder, "s.parquet")


def read_store(data: bytes, folder: Path, name: str) -> None:
    from transship.verbs.translate.stores import open_source

    (folder / name).write_bytes(data)
    source = open_source(str(folder / name))
    try:
        for batch in source.batches(4):
            np.asarray(batch.vectors).sum()
    finally:
        source.close()


def npy_files(folder: Path) -> list[bytes]:
    files = []
    for array in (
        np.ones((5, 3), np.float32),
        np.arange(8),
        np.zeros((2, 2, 2)),
        np.asfortranarray(np.eye(3)),
    ):
        buffer = io.BytesIO()
        np.save(buffer, array)
        files.append(buffer.getvalue())
    return files


@target("npy", npy_files)
def read_npy(data: bytes, folder: Path) -> None:
    read_rows(data, folder, "x.npy")


@target("npy-store", npy_files)
def read_npy_store(data: bytes, folder: Path) -> None:
    read_store(data, folder, "s.npy")


def npz_files(folder: Path) -> list[bytes]:
    files = []
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, x=np.ones((5, 3)), label=np.arange(5), split=np.array(["train"] * 5))
        files.append(buffer.getvalue())
    return files


@target("npz", npz_files)
def read_npz(data: bytes, folder: Path) -> None:
    read_rows(data, folder, "x.npz")


def pt_files(folder: Path) -> list[bytes]:
    import torch

    files = []
    for content, zipped in (({"x": torch.ones(5, 3), "y": torch.arange(5)}, True), (torch.eye(3), False)):
        buffer = io.BytesIO()
        torch.save(content, buffer, _use_new_zipfile_serialization=zipped)
        files.append(buffer.getvalue())
    return files


@target("pt", pt_files)
def read_pt(data: bytes, folder: Path) -> None:
    read_rows(data, folder, "x.pt")


@target("pickle", pt_files)
def read_pickle(data: bytes, folder: Path) -> None:
    from transship import checkpoints

    (folder / "x.bin").write_bytes(data)
    with checkpoints.open(folder / "x.bin", allow_pickle=True) as opened:
        for name in opened.tensors:
            opened.read(name)


def text_files(*texts: str) -> Make:
    return lambda folder: [text.encode() for text in texts]


@target(
    "jsonl",
    text_files(
        '{"text": "one", "label": "a", "id": 1}\n{"text": "two", "label": "b", "id": 2}\n',
        '{"vector": [1.0, 2.5], "id": "x"}\n{"vector": [3.0, 4.5], "id": "y"}\n',
        '{"sentence1": "a", "sentence2": "b", "label": 0, "split": "train"}\n',
    ),
)
def read_jsonl(data: bytes, folder: Path) -> None:
    read_rows(data, folder, "x.jsonl")


@target("json", text_files('[{"text": "one", "label": 1}, {"text": "two", "label": 0}]'), changed_document)
def read_json(data: bytes, folder: Path) -> None:
    read_rows(data, folder, "x.json")


@target(
    "csv",
    text_files(
        'text,label,id\none,a,1\n"two, words",b,2\n"three ""quoted""",a,3\n',
        "x,y,label\n1.5,2,0\n3,4,1\n",
        "a\n1\n",
    ),
)
def read_csv(data: bytes, folder: Path) -> None:
    read_rows(data, folder, "x.csv")


@target("tsv", text_files('text\tlabel\none\ta\n"two"\tb\n'))
def read_tsv(data: bytes, folder: Path) -> None:
    read_rows(data, folder, "x.tsv")


@target("fasta", text_files(">s1 label=a\nACGT\nAC\n>s2 label=b\nGGT*\n"))
def read_fasta(data: bytes, folder: Path) -> None:
    read_rows(data, folder, "x.fasta")


@target("txt", text_files("one\ntwo words\n\nthree\r\n"))
def read_txt(data: bytes, folder: Path) -> None:
    read_rows(data, folder, "x.txt")


def pictures(folder: Path) -> list[bytes]:
    from PIL import Image

    files = []
    for form in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
        buffer = io.BytesIO()
        Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(buffer, form)
        files.append(buffer.getvalue())
    return files


@target("picture", pictures)
def read_picture(data: bytes, folder: Path) -> None:
    from transship import data as data_sets

    (folder / "pictures").mkdir(exist_ok=True)
    (folder / "pictures" / "x.png").write_bytes(data)
    np.asarray(data_sets.images(folder / "pictures").inputs[0])


def wires(folder: Path) -> list[bytes]:
    """Encoder, decoder and rows of two machines."""
    from transship.verbs import translate

    random = np.random.default_rng(0)
    old, new, ids = random.random((12, 4)), random.random((12, 3)), list(range(12))
    translator = translate.Ridge()
    agreement = translator.agree(old, ids)
    encoder, decoder = (
        translator.fit_encoder(old, ids, agreement),
        translator.fit_decoder(new, ids, agreement),
    )
    encoder.save(folder / "encoder")
    decoder.save(folder / "decoder")
    encoder.encode(old[:3]).save(folder / "wire")
    return [(folder / name).read_bytes() for name in ("wire", "encoder", "decoder")]


@target("wire", wires)
def read_wire(data: bytes, folder: Path) -> None:
    from transship.verbs.translate.maps.wire import Half, Wire

    (folder / "got").write_bytes(data)
    if b"wire.encoder" in data:
        half = Half.load(folder / "got", "encoder")
        half.encode(np.ones((2, 4)))
    elif b"wire.decoder" in data:
        Half.load(folder / "got", "decoder").decode(Wire.load(folder / "wire"))
    else:
        Half.load(folder / "decoder", "decoder").decode(Wire.load(folder / "got"))


def agreements(folder: Path) -> list[bytes]:
    from transship.verbs import translate

    rows = np.random.default_rng(0).random((12, 4))
    translate.InverseRelativeProjection(prune_on="source").agree(rows, list(range(12)), 4).save(
        folder / "agreement"
    )
    return [(folder / "agreement").read_bytes()]


@target("agreement", agreements, changed_document)
def read_agreement(data: bytes, folder: Path) -> None:
    from transship.verbs.translate.maps.wire import Agreement

    (folder / "got").write_bytes(data)
    agreement = Agreement.load(folder / "got")
    agreement.signature()
    np.asarray(agreement.used)


def many_names(valid: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    lists = st.lists(changed_bytes(valid), min_size=PER_PAGE, max_size=PER_PAGE)
    return lists.map(BETWEEN.encode().join)


@target("page", lambda folder: [name.encode() for name in NAMES], many_names, PER_PAGE)
def read_page(data: bytes, folder: Path) -> None:
    """Names on a report page, in headless Chromium."""
    check_page(data, folder)
