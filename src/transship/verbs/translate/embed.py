"""Embed: texts into a Parquet file of vectors with any local or hub encoder, resumable."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from transship.activations.batches import longest
from transship.activations.models import load_model
from transship.activations.readout import features
from transship.activations.sentences import sentence_prompt
from transship.checkpoints.footprint import Footprint
from transship.data import Dataset, find_model, load, local_model
from transship.errors import DataError, OptionError
from transship.numerics import MemoryBudget
from transship.types import Array
from transship.verbs.translate.engines import Engine, LocalEngine
from transship.verbs.translate.settings import Columns, EncoderSettings
from transship.verbs.translate.stores import (
    RowBatch,
    RowsDone,
    Stamp,
    StorePlace,
    VectorSink,
    VectorSource,
    open_sink,
    written_alone,
)
from transship.verbs.translate.stores.files import locate, plain
from transship.verbs.translate.stores.protocol import PartRange, PartSink, PartWriter

# texts per part: those that are sorted by length together
PART_ROWS = 2048


class TextSource(VectorSource):
    """Texts as a source of rows that have no vectors yet."""

    part_rows = PART_ROWS
    vector_column = "vector"

    def __init__(self, texts: Dataset) -> None:
        if texts.kind != "text":
            raise DataError(f"holds {texts.kind} rows", where=texts.name, fix="give texts")
        if len(set(map(str, texts.ids))) != len(texts):
            raise DataError("ids occur more than once", where=texts.name, fix="give every text its own id")
        empty = [row for row, text in enumerate(texts.inputs) if not str(text).strip()]
        if empty:
            raise DataError(
                f"{len(empty)} of {len(texts)} texts are empty, the first has id {texts.ids[empty[0]]}",
                where=texts.name,
                fix="fill in or drop those rows",
            )
        self.texts, self.rows, self.width = texts, len(texts), 0
        self.place, self.stamp = StorePlace("text", texts.name, "", texts.name, Columns()), Stamp()

    def fingerprint(self) -> str:
        return str(self.texts.fingerprint())[:32]

    def batches(self, size: int, start: int = 0) -> Iterator[RowBatch]:
        """Yield ids and texts from row `start` on."""
        for first in range(start, self.rows, size):
            part = slice(first, min(first + size, self.rows))
            ids = np.asarray(self.texts.ids[part]).tolist()
            table = pa.table({"id": pa.array(ids), "text": pa.array(list(self.texts.inputs[part]))})
            yield RowBatch(ids, np.empty((len(ids), 0), np.float32), table)


@dataclass(frozen=True)
class Encoder(EncoderSettings):
    """A model and how it is run; it travels to workers, and each loads the model once."""

    model: str

    @functools.cached_property
    def words(self) -> str:
        """What stands before every text: as given, else the model's own prompt for what the texts are."""
        if self.prompt is not None:
            if self.purpose is not None:
                raise OptionError(
                    "both --prompt and --as are given", where="embed", fix="keep the one that you mean"
                )
            return self.prompt
        return sentence_prompt(self._folder, self.purpose)

    @property
    def space(self) -> str:
        """The model's name, and the words before the texts where these are not those of its documents.

        Vectors with other words are of another space: a map between one pair of spaces refuses others.
        """
        usual = sentence_prompt(self._folder)
        return self.model if self.words == usual else f"{self.model} after {self.words!r}"

    @property
    def _folder(self) -> Path | None:
        folder = Path(find_model(self.model))
        return folder if folder.is_dir() else None

    def ready(self) -> ReadyEncoder:
        model = load_model(
            str(find_model(self.model)),
            device=self.device,
            device_map=self.device_map,
            dtype=self.dtype,
            trust_remote_code=self.trust_remote_code,
            name=self.model,
        )
        if self.max_length is not None:
            model = dataclasses.replace(model, max_length=min(self.max_length, model.max_length))
        return ReadyEncoder(self, model)

    def within(self, memory: MemoryBudget, source: TextSource) -> Encoder:
        """Return the encoder with as many texts per forward pass as fit; refuse a model that does not."""
        if memory.limit is None:
            return self
        model = Footprint.of(
            str(find_model(self.model)), dtype=self.dtype, trust_remote_code=self.trust_remote_code
        )
        # the texts themselves, and the vectors of a part
        texts = sum(len(text) for text in source.texts.inputs)
        fixed = model.weights + 3 * texts + 8 * PART_ROWS * model.hidden
        tokens = longest(str(find_model(self.model)), [self.words + text for text in source.texts.inputs])
        size = memory.rows(
            model.forward(1, tokens), fixed=fixed, most=self.batch_size, what=f"embedding with {self.model}"
        )
        return dataclasses.replace(self, batch_size=size)

    def note(self, fingerprint: str) -> str:
        """Return what names these vectors of these texts: everything that changes them."""
        text = f"{self.model}|{self.words}|{self.pooling}|{self.normalise}|{self.dtype}|{fingerprint}"
        text += f"|{self.max_length}" if self.max_length is not None else ""
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def check_queries(vectors: VectorSource, model: str) -> None:
    """Refuse vectors of queries of another model than `model`, or without its words for queries."""
    maker = vectors.stamp.model
    if not maker or not model:
        return
    if maker.partition(" after ")[0] != model.partition(" after ")[0]:
        raise DataError(
            f"the queries are of '{maker}' and the rows of '{model}'",
            where=vectors.place.location,
            fix="embed them with the same model",
        )
    wanted = Encoder(maker, purpose="query").space if Path(local_model(maker)).is_dir() else maker
    if maker != wanted:
        raise DataError(
            f"the queries were embedded as documents, without the words that '{model}' wants before a query",
            where=vectors.place.location,
            fix="embed them with --as query",
        )


@dataclass(frozen=True)
class ReadyEncoder:
    """An encoder with its model in memory."""

    encoder: Encoder
    model: Any

    def asking(self) -> ReadyEncoder:
        """Return the same model for queries, with its own words before them."""
        return dataclasses.replace(self, encoder=dataclasses.replace(self.encoder, purpose="query"))

    def __call__(self, texts: Sequence[str]) -> Array:
        """Return the texts' vectors, [texts, width]."""
        encoder = self.encoder
        return features(
            self.model,
            [encoder.words + text for text in texts],
            pooling=encoder.pooling,
            normalise=encoder.normalise,
            batch_size=encoder.batch_size,
        )

    def saving(
        self, texts: Sequence[str], width: int, kept: Path | None
    ) -> Iterator[tuple[int, Array | None]]:
        """Yield how many texts are embedded, after every forward pass, and in the end all vectors.

        Texts are taken longest first, so that those of one pass are of a length. The file `kept` holds the
        vectors in that order, [texts so far, width] in float32; what is in it already is not embedded again.
        """
        order = sorted(range(len(texts)), key=lambda row: -self.model.length(self.encoder.words + texts[row]))
        rows, done = np.empty((len(texts), width), np.float32), 0
        with contextlib.ExitStack() as stack:
            file = None
            if kept is not None:
                file = stack.enter_context(kept.open("a+b"))
                done = min(len(texts), kept.stat().st_size // (4 * width))
                file.truncate(4 * width * done)  # a kill may have cut the last one
                file.seek(0)
                rows[order[:done]] = np.frombuffer(file.read(), np.float32).reshape(done, width)
            while done < len(texts):
                places = order[done : done + self.encoder.batch_size]
                rows[places] = self([texts[place] for place in places])
                done += len(places)
                if file is not None:
                    file.write(rows[places].tobytes())
                    file.flush()
                if done < len(texts):
                    yield done, None
        yield done, rows


@functools.lru_cache(maxsize=1)  # a worker is handed an encoder with every piece
def _ready(encoder: Encoder) -> ReadyEncoder:
    return encoder.ready()


def embed_texts(
    model: str,
    texts: str | Dataset,
    target: str,
    *,
    column: str | None = None,
    id_column: str | None = None,
    force: bool = False,
    engine: Engine | None = None,
    memory: MemoryBudget | None = None,
    **settings: Any,
) -> Iterator[RowsDone]:
    """Embed every text with `model` into the store `target`, ids and texts kept, yielding after each pass.

    Pooling, normalisation and length limit are what the model's own sentence-embedding files say, unless
    given; `settings` are the fields of `Encoder`. Texts are sorted by length inside a part. Stopped and
    called again, it goes on with the next forward pass (with the next part where several processes work, or
    on a remote file system). Parquet is written by any `engine`, with the same result.
    `memory` is that of each process: fewer texts run at once where they would not fit.
    """
    encoder, engine = Encoder(model, **settings), engine or LocalEngine()
    with contextlib.ExitStack() as stack:
        source = TextSource(_read(texts, column, id_column, stack))
        encoder = encoder.within(memory or MemoryBudget(), source)
        ready = encoder.ready()
        width = len(ready([str(source.texts.inputs[0])])[0])
        stamp = Stamp(encoder.space, "", {}, encoder.note(source.fingerprint()))
        stack.enter_context(written_alone(target))
        sink = open_sink(target, source, stamp, width=width, force=force)
        stack.callback(sink.close)
        yield RowsDone(sink.done, source.rows)
        if engine.parallel:
            steps = _by_parts(encoder, source, sink, target, engine)
        else:
            steps = _in_order(ready, source, sink, width)
        yield from (RowsDone(done, source.rows) for done in steps)
        sink.finish()


def _in_order(encoder: ReadyEncoder, source: TextSource, sink: VectorSink, width: int) -> Iterator[int]:
    # a sink without parts takes a few forward passes at a time
    size = PART_ROWS if isinstance(sink, PartSink) else min(PART_ROWS, 8 * encoder.encoder.batch_size)
    for batch in source.batches(size, sink.done):
        begun = sink.done
        kept = sink.writer.kept(begun) if isinstance(sink, PartSink) else None
        for done, vectors in encoder.saving(batch.columns.column("text").to_pylist(), width, kept):
            if vectors is not None:
                sink.write(batch, vectors)
                if kept is not None:
                    kept.unlink(missing_ok=True)
            yield begun + done


def _by_parts(
    encoder: Encoder, source: TextSource, sink: VectorSink, target: str, engine: Engine
) -> Iterator[int]:
    if not isinstance(sink, PartSink):
        raise OptionError(
            "only Parquet is written by several processes",
            where=target,
            fix="leave --jobs and --engine out, or name a .parquet file",
        )
    missing = sink.missing()
    done = source.rows - sum(part.stop - part.start for part in missing)
    items = [(part, next(source.batches(part.stop - part.start, part.start))) for part in missing]
    for _, rows in engine.run(embed_part, (encoder, sink.writer), items):
        done += rows
        yield done


def embed_part(shared: tuple[Encoder, PartWriter], item: tuple[PartRange, RowBatch]) -> int:
    """Embed one part in whatever process this is, and return its texts."""
    encoder, writer = shared
    part, batch = item
    vectors = _ready(encoder)(batch.columns.column("text").to_pylist())
    return max(writer.write(part, [(batch, vectors)]), default=0)


def _read(
    texts: str | Dataset, column: str | None, id_column: str | None, stack: contextlib.ExitStack
) -> Dataset:
    """Return the texts; those of another file system are fetched first and kept while `stack` is open."""
    reference: str | Dataset = plain(texts) if isinstance(texts, str) else texts
    if isinstance(reference, str) and "://" in reference:
        system, path = locate(reference)
        beside = Path(stack.enter_context(tempfile.TemporaryDirectory())) / PurePosixPath(path).name
        try:
            system.system.get(path, str(beside), recursive=system.is_folder(path))
        except OSError as error:
            raise DataError(f"could not be read ({error})", where=reference, fix="check the path") from error
        reference = str(beside)
    return load(reference, "text", column=column, label=False, id=id_column)
