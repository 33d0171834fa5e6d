"""Small stores of every kind, for the tests of stores, applying and killing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

KINDS = ["parquet", "folder", "hive", "npy", "lance", "qdrant", "faiss"]


COUNT = 90


def make_rows(count: int = COUNT, width: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


def table(rows: np.ndarray, ids: list, **columns: list) -> pa.Table:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    return pa.table({"id": ids, "vector": vectors, **columns})


def build(kind: str, root: Path, rows: np.ndarray, ids: list | None = None) -> str:
    """Write `rows` as a store of `kind` under `root`, with ids and titles, and return its name."""
    ids = list(range(1, len(rows) + 1)) if ids is None else ids
    titles = [f"title {identity}" for identity in ids]
    root.mkdir(parents=True, exist_ok=True)
    if kind == "parquet":
        pq.write_table(table(rows, ids, title=titles), root / "rows.parquet", row_group_size=25)
        return str(root / "rows.parquet")
    if kind == "folder":
        (root / "rows").mkdir()
        for part, chunk in enumerate(np.array_split(np.arange(len(rows)), 3)):
            some = table(rows[chunk], [ids[i] for i in chunk], title=[titles[i] for i in chunk])
            pq.write_table(some, root / "rows" / f"{part}.parquet")
        return str(root / "rows")
    if kind == "hive":
        years = [2000 + i % 3 for i in range(len(rows))]
        pq.write_to_dataset(
            table(rows, ids, title=titles, year=years), root / "rows", partition_cols=["year"]
        )
        return str(root / "rows")
    if kind == "npy":
        np.save(root / "rows.npy", rows)
        np.save(root / "rows.ids.npy", np.asarray(ids))
        return str(root / "rows.npy")
    if kind == "lance":
        import lancedb

        lancedb.connect(str(root / "db")).create_table("rows", data=table(rows, ids, title=titles))
        return str(root / "db" / "rows.lance")
    if kind == "qdrant":
        from qdrant_client import QdrantClient, models

        client = QdrantClient(path=str(root / "qdrant"))
        client.create_collection(
            "rows", vectors_config=models.VectorParams(size=rows.shape[1], distance=models.Distance.DOT)
        )
        points = [
            models.PointStruct(id=identity, vector=row.tolist(), payload={"title": title})
            for identity, row, title in zip(ids, rows, titles, strict=True)
        ]
        client.upsert("rows", points)
        client.close()
        return f"qdrant:{root / 'qdrant'}#rows"
    assert kind == "faiss"
    import faiss

    index = faiss.IndexIDMap2(faiss.IndexFlatIP(rows.shape[1]))
    index.add_with_ids(rows, np.asarray(ids, dtype=np.int64))
    faiss.write_index(index, str(root / "rows.faiss"))
    return str(root / "rows.faiss")


def target(kind: str, root: Path) -> str:
    return {
        "parquet": str(root / "out.parquet"),
        "folder": str(root / "out"),
        "hive": str(root / "out"),
        "npy": str(root / "out.npy"),
        "lance": str(root / "outdb" / "moved.lance"),
        "qdrant": f"qdrant:{root / 'qdrant-out'}#moved",
        "faiss": str(root / "out.faiss"),
    }[kind]
