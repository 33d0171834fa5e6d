"""Embed: texts into a Parquet file of vectors with any local or hub encoder, resumable."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from transship.data import Dataset, load
from transship.errors import DataError
from transship.verbs.translate.moving import Moved
from transship.verbs.translate.stores import Batch, Columns, Place, Stamp, open_sink

# texts per part: what a kill can cost
PART_ROWS = 2048


class TextSource:
    """Texts as a source of rows that have no vectors yet."""

    part_rows = PART_ROWS
    vector_column = "vector"

    def __init__(self, texts: Dataset) -> None:
        """Keep the texts with their ids."""
        if texts.kind != "text":
            raise DataError(f"holds {texts.kind} rows", where=texts.name, fix="give texts")
        if len(set(map(str, texts.ids))) != len(texts):
            raise DataError("ids occur more than once", where=texts.name, fix="give every text its own id")
        self.texts, self.rows, self.width = texts, len(texts), 0
        self.place, self.stamp = Place("text", texts.name, "", texts.name, Columns()), Stamp()

    def fingerprint(self) -> str:
        """Return the content's hash."""
        return str(self.texts.fingerprint())[:32]

    def batches(self, size: int, start: int = 0) -> Iterator[Batch]:
        """Yield ids and texts from row `start` on."""
        import pyarrow as pa

        for first in range(start, self.rows, size):
            part = slice(first, min(first + size, self.rows))
            ids = np.asarray(self.texts.ids[part]).tolist()
            table = pa.table({"id": pa.array(ids), "text": pa.array(list(self.texts.inputs[part]))})
            yield Batch(ids, np.empty((len(ids), 0), np.float32), table)

    def close(self) -> None:
        """Nothing is kept open."""


def embed_texts(
    model: str,
    texts: str | Dataset,
    target: str,
    *,
    column: str | None = None,
    id_column: str | None = None,
    prompt: str = "",
    pooling: Literal["mean", "cls", "last", "max", "none"] | None = None,
    normalise: bool | None = None,
    batch_size: int = 32,
    device: str = "cpu",
    device_map: Any = None,
    dtype: str | None = None,
    trust_remote_code: bool = False,
    force: bool = False,
) -> Iterator[Moved]:
    """Embed every text with `model` into the store `target`, ids and texts kept, yielding after each part.

    Pooling, normalisation and length limit are what the model's own sentence-embedding files say, unless
    given. Texts are sorted by length inside a part. Stopped and called again, it goes on with the next part.
    """
    from transship.activations.features import features
    from transship.activations.models import load_model
    from transship.data import find_model

    source = TextSource(load(texts, "text", column=column, label=False, id=id_column))
    loaded = load_model(
        str(find_model(model)),
        device=device,
        device_map=device_map,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        name=model,
    )
    width = len(
        features(loaded, [prompt + str(source.texts.inputs[0])], pooling=pooling, normalise=normalise)[0]
    )
    note = hashlib.sha256(
        f"{model}|{prompt}|{pooling}|{normalise}|{source.fingerprint()}".encode()
    ).hexdigest()[:32]
    sink = open_sink(target, source, Stamp(model, "", {}, note), width=width, force=force)
    try:
        yield Moved(sink.done, source.rows)
        for batch in source.batches(PART_ROWS, sink.done):
            inputs = [prompt + text for text in batch.columns.column("text").to_pylist()]
            vectors: Any = features(
                loaded,
                inputs,
                pooling=pooling,
                normalise=normalise,
                batch_size=batch_size,
            )
            sink.write(batch, vectors)
            yield Moved(sink.done, source.rows)
        sink.finish()
    finally:
        sink.close()
