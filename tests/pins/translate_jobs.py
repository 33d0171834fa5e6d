"""Small jobs of translate: every map, every store, the index that moves, the two machines, the commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner

import transship
from transship.cli import group
from transship.registry import build_method, method_names
from transship.verbs.translate import Agreement, Half, Wire, save_map

Job = tuple[str, Callable[[], None]]
ROWS, OLD, NEW = 500, 16, 12
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ridge-gcv": ("ridge", {"alpha": "gcv"}),
    "ridge-fixed": ("ridge", {"alpha": 2.5}),
    "kernel-landmarks": ("kernel", {"landmarks": 60}),
    "irp-regularised": ("irp", {"regularize": 1.0}),
    "irp-completed": ("irp", {"completion": True, "subspaces": 3}),
    "irp-source": ("irp", {"prune_on": "source", "delta": 0.5, "subspaces": 3}),
    "procrustes-plain": ("procrustes", {"centre": False, "scale": False}),
    "relative-plain": ("relative", {"centre": False}),
}


def jobs(inputs: Path, out: Path) -> Iterator[Job]:
    """Yield every job with the function that does it."""
    old, new = spaces(ROWS)
    write_inputs(inputs, old, new)
    yield from map_jobs(out, old, new)
    yield from command_jobs(inputs, out)
    yield from store_jobs(inputs, out, old)
    yield "anchors", lambda: anchors(inputs, out / "anchors")
    yield "embed", lambda: embed(inputs, out / "embed")
    yield "lazy", lambda: lazy(inputs, out / "lazy", old, new)
    yield "stitch", lambda: stitch(out / "stitch", old, new)
    yield "wire", lambda: wire(out / "wire", old, new)


def spaces(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the same things as two encoders see them."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(count, 8))
    sides = (
        np.tanh(hidden @ rng.normal(size=(8, width)) / 3) + 0.1 * rng.normal(size=(count, width))
        for width in (OLD, NEW)
    )
    old, new = (rows.astype(np.float32) for rows in sides)
    return old, new / np.linalg.norm(new, axis=1, keepdims=True)


def table(rows: np.ndarray) -> pa.Table:
    """Return rows with ids and texts."""
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    ids = list(range(1, len(rows) + 1))
    return pa.table({"id": ids, "vector": vectors, "text": [f"text {number}" for number in ids]})


def write_inputs(inputs: Path, old: np.ndarray, new: np.ndarray) -> None:
    """Write the stores and judgements that the commands read."""
    for name, rows in (("old", old), ("new", new)):
        pq.write_table(table(rows), inputs / f"{name}.parquet")
        pq.write_table(table(rows[::25]), inputs / f"{name}-queries.parquet")
    judged = {"query_id": [], "doc_id": [], "score": []}  # type: dict[str, list[Any]]
    for number in range(20):
        for near in range(3):
            judged["query_id"].append(str(number + 1))
            judged["doc_id"].append(str((number * 25 + near) % ROWS + 1))
            judged["score"].append(float(3 - near))
    pq.write_table(pa.table(judged), inputs / "judged.parquet")
    texts = [f"{'ships' if n % 2 else 'birds'} sail over {'sea' if n % 3 else 'land'}" for n in range(30)]
    pq.write_table(pa.table({"id": [f"t{n}" for n in range(30)], "text": texts}), inputs / "texts.parquet")


def run(*words: Any, out: Path | None = None) -> None:
    """Run a command; keep the JSON that it prints."""
    done = CliRunner().invoke(group, ["translate", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    if out is not None:
        write_json(out, json.loads(done.stdout))


def write_json(out: Path, value: Any) -> None:
    """Write what a job gives as JSON."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(value, default=str), encoding="utf-8")


def write_array(out: Path, rows: Any) -> None:
    """Write what a job gives as an array."""
    out.parent.mkdir(parents=True, exist_ok=True)
    np.save(out, np.asarray(rows))


# -- maps --------------------------------------------------------------------------------------------------


def map_jobs(out: Path, old: np.ndarray, new: np.ndarray) -> Iterator[Job]:
    """Yield the fit of every map, and of the variants that have code of their own."""
    named = {name: (name, {}) for name in method_names("translate")} | VARIANTS
    for name, (method, options) in named.items():
        yield f"map-{name}", _fit_map(out / f"map-{name}", method, options, old, new)


def _fit_map(
    out: Path, method: str, options: dict[str, Any], old: np.ndarray, new: np.ndarray
) -> Callable[[], None]:
    def fit() -> None:
        for kind in (np.float32, np.float64):
            fitted = build_method("translate", method, options)
            fitted.fit(old[:120].astype(kind), new[:120].astype(kind), ids=range(120))
            save_map(fitted, out / kind.__name__, {"source": "old", "target": "new"})
            moved = transship.load_map(out / kind.__name__).translator.transform(old[120:].astype(kind))
            write_array(out / f"{kind.__name__}-moved.npy", moved)
            write_array(out / f"{kind.__name__}-back.npy", fitted.inverse_transform(moved))
            if fitted.closed_form:
                left_out = fitted.leave_one_out(old[:120].astype(kind), new[:120].astype(kind))
                write_array(out / f"{kind.__name__}-left-out.npy", left_out)

    return fit


# -- commands ----------------------------------------------------------------------------------------------


def command_jobs(inputs: Path, out: Path) -> Iterator[Job]:
    """Yield fits by command, with everything that `--json` says of them, and what is done with their maps."""
    old, new = inputs / "old.parquet", inputs / "new.parquet"
    sides = [inputs / "judged.parquet", inputs / "new-queries.parquet", inputs / "old-queries.parquet"]
    judged = ["--relevance", sides[0], "--queries", sides[1], "--old-queries", sides[2]]
    fits = {
        "fit-auto": ["--source-model", "a", "--target-model", "b", "--report", inputs / "page.html"],
        "fit-judged": ["--method", "ridge", "--pairs", "300", "--seed", "3", *judged],
        "fit-restored": ["--method", "kernel", "--restore", "--no-texts", "--no-old-encoder"],
        "fit-query": ["--method", "ridge", "--direction", "query", "--gate", "0.05"],
        "fit-small": ["--memory", "2GB", "--held-out", "0.2", "-k", "5"],
    }
    for name, options in fits.items():
        yield (
            name,
            lambda name=name, options=options: run(
                "fit", old, new, out / name / "map", *options, "--json", out=out / name / "fit.json"
            ),
        )
    fitted = out / "fit-auto" / "map"

    def use() -> None:
        run("check", fitted, old, new, "--json", out=out / "use" / "check.json")
        run("plan", fitted, old, inputs / "planned.parquet", "--json", out=out / "use" / "plan.json")
        plan = json.loads((out / "use" / "plan.json").read_text())
        write_json(out / "use" / "needs.json", plan["memory"])
        inspected = CliRunner().invoke(group, ["inspect", str(fitted), "--json"], catch_exceptions=False)
        write_json(out / "use" / "inspect.json", json.loads(inspected.stdout))

    yield "use", use


# -- stores ------------------------------------------------------------------------------------------------


def store_jobs(inputs: Path, out: Path, old: np.ndarray) -> Iterator[Job]:
    """Yield the same map applied to and into every kind of store."""
    import faiss
    import lancedb
    from qdrant_client import QdrantClient, models

    fitted, rows = out / "map-ridge" / "float32", old[:90]
    work = inputs / "work"
    work.mkdir()
    pq.write_table(table(rows), work / "in.parquet", row_group_size=25)
    years = table(rows).append_column("year", pa.array([2000 + number % 3 for number in range(90)]))
    pq.write_to_dataset(years, work / "hive", partition_cols=["year"], basename_template="{i}.parquet")
    np.save(work / "in.npy", rows)
    np.save(work / "in.ids.npy", np.arange(1, 91))
    lancedb.connect(str(work / "db")).create_table("in", data=table(rows))
    client = QdrantClient(path=str(work / "qdrant"))
    client.create_collection("in", vectors_config=models.VectorParams(size=OLD, distance=models.Distance.DOT))
    points = [
        models.PointStruct(id=number + 1, vector=row.tolist(), payload={"title": f"title {number}"})
        for number, row in enumerate(rows)
    ]
    client.upsert("in", points)
    client.close()
    index = faiss.IndexIDMap2(faiss.IndexFlatIP(OLD))
    index.add_with_ids(rows, np.arange(1, 91))
    faiss.write_index(index, str(work / "in.faiss"))

    sources = {
        "parquet": work / "in.parquet",
        "hive": work / "hive",
        "npy": work / "in.npy",
        "lance": work / "db" / "in.lance",
        "qdrant": f"qdrant:{work / 'qdrant'}#in",
        "faiss": work / "in.faiss",
    }
    pairs = [(kind, kind) for kind in sources]
    pairs += [("npy", "parquet"), ("parquet", "lance"), ("lance", "qdrant"), ("qdrant", "parquet")]
    pairs += [("hive", "faiss"), ("faiss", "npy")]
    for kind, other in pairs:
        yield f"apply-{kind}-{other}", _apply(fitted, str(sources[kind]), work, other, out, f"{kind}-{other}")
    yield "apply-query", lambda: _apply_query(inputs, work, out)


def _apply(fitted: Path, source: str, work: Path, kind: str, out: Path, name: str) -> Callable[[], None]:
    target = {
        "parquet": work / f"{name}.parquet",
        "hive": work / f"{name}-out",
        "npy": work / f"{name}.npy",
        "lance": work / "out-db" / f"{name}.lance",
        "qdrant": f"qdrant:{work / 'out-qdrant'}#{name}",
        "faiss": work / f"{name}.faiss",
    }[kind]

    def apply() -> None:
        run("apply", fitted, source, target, "--json", out=out / f"apply-{name}" / "apply.json")
        write_content(kind, str(target), out / f"apply-{name}")

    return apply


def _apply_query(inputs: Path, work: Path, out: Path) -> None:
    import faiss

    run("apply", out / "fit-query" / "map", work / "in.faiss", work / "query.faiss")
    queries = np.stack(pq.read_table(inputs / "new-queries.parquet")["vector"].to_numpy(zero_copy_only=False))
    scores, ids = faiss.read_index(str(work / "query.faiss")).search(queries, 5)
    write_array(out / "apply-query" / "scores.npy", scores)
    write_array(out / "apply-query" / "ids.npy", ids)


def write_content(kind: str, target: str, out: Path) -> None:
    """Write what a store holds, as its own library reads it, without what a file system adds."""
    import faiss
    import lancedb
    from qdrant_client import QdrantClient

    stamp: Any = None
    if kind in ("parquet", "hive"):
        names = sorted(file.relative_to(target).as_posix() for file in Path(target).rglob("*.parquet"))
        files = [Path(target) / name for name in names] or [Path(target)]
        tables = [pq.read_table(file, partitioning=None) for file in files]
        stamp = [names, *(json.loads(part.schema.metadata[b"transship"]) for part in tables)]
        rows = pa.concat_tables([part.replace_schema_metadata(None) for part in tables])
        _write_table(out, rows)
    elif kind == "lance":
        folder, _, name = target.removesuffix(".lance").rpartition("/")
        rows = lancedb.connect(folder).open_table(name).to_arrow()
        stamp = json.loads(rows.schema.metadata[b"transship"])
        _write_table(out, rows)
    elif kind == "npy":
        write_array(out / "vectors.npy", np.load(target))
        write_array(out / "ids.npy", np.load(target.replace(".npy", ".ids.npy")))
        stamp = json.loads(Path(f"{target}.json").read_text())
    elif kind == "faiss":
        index = faiss.read_index(target)
        write_array(out / "vectors.npy", index.index.reconstruct_n(0, index.ntotal))
        write_array(out / "ids.npy", faiss.vector_to_array(index.id_map))
        stamp = json.loads(Path(f"{target}.json").read_text())
    else:
        from transship.verbs.translate.stores import qdrant

        qdrant.close_clients()
        location, _, name = target.removeprefix("qdrant:").partition("#")
        client = QdrantClient(path=location)
        points, _ = client.scroll(name, limit=1000, with_vectors=True)
        client.close()
        write_array(out / "vectors.npy", [point.vector for point in points])
        payloads = [{**(point.payload or {}), "vector_source": ""} for point in points]
        write_json(out / "points.json", [[point.id for point in points], payloads])
    for part in stamp if isinstance(stamp, list) else [stamp]:
        if isinstance(part, dict):
            part["source"] = ""  # sizes and times of files
    write_json(out / "stamp.json", stamp)


def _write_table(out: Path, rows: pa.Table) -> None:
    write_array(out / "vectors.npy", np.stack(rows["vector"].to_numpy(zero_copy_only=False)))
    others = rows.drop_columns("vector")
    write_json(out / "columns.json", [str(rows.schema.remove_metadata()), others.to_pylist()])


# -- the rest ----------------------------------------------------------------------------------------------


def anchors(inputs: Path, out: Path) -> None:
    """Choose anchors in every way."""
    for way in ("random", "farthest", "kmeans"):
        target = inputs / f"{way}.parquet"
        words = ["anchors", inputs / "old.parquet", target, "--count", "60", "--way", way]
        run(*words, "--measure", inputs / "new.parquet", "--json", out=out / f"{way}.json")
        write_json(out / f"{way}-rows.json", pq.read_table(target).to_pydict())


def embed(inputs: Path, out: Path) -> None:
    """Embed texts with a tiny sentence encoder."""
    model = tiny_encoder(inputs / "encoder")
    for name, options in (("own", []), ("cls", ["--pooling", "cls", "--no-normalise", "--prompt", "sea "])):
        target = inputs / f"embedded-{name}.parquet"
        run("embed", "--model", model, inputs / "texts.parquet", target, *options, "--json")
        rows = pq.read_table(target)
        write_array(out / f"{name}.npy", np.stack(rows["vector"].to_numpy(zero_copy_only=False)))
        write_json(out / f"{name}.json", rows.drop_columns(["vector", "vector_model"]).to_pylist())


def tiny_encoder(folder: Path) -> Path:
    """Write a BERT of two small layers as a sentence encoder: mean over tokens, unit length."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ships", "birds", "sail", "over", "sea", "land"]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=16).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
    )
    BertModel(config).save_pretrained(folder)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def lazy(inputs: Path, out: Path, old: np.ndarray, new: np.ndarray) -> None:
    """Search an old index with new queries in every way, and move it to its end."""
    fitted = transship.Ridge().fit(old[:300], new[:300])
    back = transship.Ridge().fit(new[:300], old[:300])
    texts = {number + 1: str(number) for number in range(len(old))}
    queries, old_queries = new[400:410] + 0.05, old[400:410] + 0.05
    work = inputs / "work"
    for kind, name in (
        ("parquet", work / "in.parquet"),
        ("npy", work / "in.npy"),
        ("lance", work / "db" / "in.lance"),
        ("qdrant", f"qdrant:{work / 'qdrant'}#in"),
        ("faiss", work / "in.faiss"),
    ):
        index = transship.LazyIndex(
            str(name),
            fitted,
            query_map=back,
            embed=lambda asked: new[[int(text) for text in asked]],
            texts=texts,
            candidates=20,
            write_back=True,
            model="new",
        )
        hits = {
            "translate": index.search_many(queries, 5, rescore="translate"),
            "none": index.search_many(queries, 5, rescore="none"),
            "embed": index.search_many(queries, 5),
            "old": index.search_many(queries, 5, old_queries=old_queries, rescore="translate"),
            "fused": [index.fused(queries[0], old_queries[0], 5)],
        }
        share = index.moved
        target = None if kind == "qdrant" else str(work / f"lazy.{kind}")
        steps = list(index.finish(target))
        plain = {
            way: [[(str(hit.id), hit.score, hit.by) for hit in row] for row in rows]
            for way, rows in hits.items()
        }
        calibration = list(index.calibrate(queries))
        write_json(out / f"{kind}.json", [plain, share, steps[-1].done, steps[-1].rows, calibration])
        if target is not None:
            write_content(kind, target, out / kind)


def stitch(out: Path, old: np.ndarray, new: np.ndarray) -> None:
    """Use heads on other encoders, and rescale a layer."""
    import torch

    rng = np.random.default_rng(1)
    labels = (old @ rng.normal(size=OLD) > 0).astype(int)
    views = {"old": old, "new": new, "bent": np.tanh(old @ rng.normal(size=(OLD, NEW))).astype(np.float32)}
    heads = {name: _Nearest(rows[:300], labels[:300]) for name, rows in views.items()}
    for name in ("ridge", "irp", "procrustes"):
        matrix = transship.stitching_matrix(
            build_method("translate", name),
            {key: rows[:300] for key, rows in views.items()},
            heads,
            {key: rows[300:] for key, rows in views.items()},
            labels[300:],
        )
        write_array(out / f"{name}-accuracy.npy", matrix.accuracy)
        write_array(out / f"{name}-similarity.npy", matrix.similarity)
        write_json(out / f"{name}.json", [matrix.by_encoder(), matrix.by_head(), matrix.achievable])
    fitted = transship.Ridge().fit(old[:300], new[:300])
    write_array(out / "predicted.npy", transship.Stitch(None, fitted, heads["new"]).predict(old[300:]))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(OLD, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    rows = torch.from_numpy(old)
    probe = transship.scale_probe(
        model, ["0", "1"], [0.1, 1.0, 5.0], lambda m: float(m(rows).detach().mean())
    )
    write_array(out / "probe.npy", probe.accuracy)


class _Nearest:
    """A head: the class whose mean is nearest."""

    def __init__(self, rows: np.ndarray, labels: np.ndarray) -> None:
        self.means = np.stack([rows[labels == label].mean(0) for label in (0, 1)])

    def predict(self, rows: np.ndarray) -> np.ndarray:
        return np.linalg.norm(rows[:, None] - self.means, axis=2).argmin(1)


def wire(out: Path, old: np.ndarray, new: np.ndarray) -> None:
    """Let two machines translate, through files."""
    ids = [f"row {number}" for number in range(60)]
    out.mkdir(parents=True)
    for name, method, options in (
        ("ridge", "ridge", {}),
        ("kernel", "kernel", {}),
        ("irp", "irp", {"prune_on": "source", "delta": 0.4, "subspaces": 3}),
        ("irp-regularised", "irp", {"regularize": 1.0}),
        ("irp-completed", "irp", {"prune_on": "source", "completion": True, "subspaces": 2}),
    ):
        fitted = build_method("translate", method, options)
        fitted.agree(old[:60], ids, NEW).save(out / f"{name}.json")
        agreement = Agreement.load(out / f"{name}.json")
        files = {role: out / f"{name}-{role}.safetensors" for role in ("encoder", "decoder", "wire")}
        fitted.fit_encoder(old[:60], ids, agreement).save(files["encoder"])
        fitted.fit_decoder(new[:60], ids, agreement).save(files["decoder"])
        Half.load(files["encoder"], "encoder").encode(old[60:]).save(files["wire"])
        decoded = Half.load(files["decoder"], "decoder").decode(Wire.load(files["wire"]))
        write_array(out / f"{name}.npy", decoded)
