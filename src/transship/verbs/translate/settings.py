"""What the steps of translate can be told; the options of its commands are these fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from transship.fields import setting

Direction = Literal["index", "query"]
Pooling = Literal["mean", "cls", "last", "max", "none"]
Way = Literal["random", "farthest", "kmeans"]
# fewer pairs than this determine no map worth its name
FEWEST = 50


@dataclass(frozen=True)
class Columns:
    """Names of the columns, where the usual ones do not hold.

    Attributes:
        id: The column of the ids, where its name is unusual.
        vector: The column or named vector, where its name is unusual.
    """

    id: str | None = setting(None, flags=("--id-column",))
    vector: str | None = setting(None, flags=("--vector-column",))


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """What a fit is to do.

    Attributes:
        method: How to map; auto compares and chooses.
        options: A method's field.
        direction: What is mapped: old rows into the new space (index), or new queries into the old (query).
        pairs: Use at most this many pairs, drawn by seed.
        held_out: Share of the pairs that checks the forecast.
        k: Number of nearest neighbours that recall counts.
        gate: The least forecast recall. Below it no map is written.
        restore: Give translated rows the variance of native ones; by default where it costs nothing.
        source_model: Name of the old model, kept in the map.
        target_model: Name of the new model, kept in the map.
        texts: Whether the texts are still at hand (for the advice).
        old_encoder: Whether the old model still runs (for the advice).
        curve: Whether recall is also measured by number of pairs, for the page.
        force: Fit also wrong pairs and poor maps, and replace a map that exists.
        seed: Fixes every random choice.
    """

    method: str = "auto"
    options: Mapping[str, Any] = setting(dict, absent=True)
    direction: Direction = "index"
    pairs: int | None = setting(None, least=FEWEST)
    held_out: float = setting(0.1, least=0.01, most=0.9)
    k: int = setting(10, flags=("-k",), least=1)
    gate: float = 0.25
    restore: bool | None = None
    source_model: str = ""
    target_model: str = ""
    texts: bool | None = None
    old_encoder: bool | None = None
    curve: bool = setting(False, absent=True)
    force: bool = setting(False, absent=True)
    seed: int = 0


@dataclass(frozen=True)
class JudgedFiles:
    """Judgements of which documents answer which queries, and the vectors of the queries.

    Attributes:
        table: Judgements: a Parquet table of query_id, doc_id, score.
        queries: Query vectors of the new model, for --relevance.
        old_queries: Query vectors of the old model, for --relevance.
    """

    table: str = setting("", flags=("--relevance",))
    queries: str = ""
    old_queries: str | None = None


@dataclass(frozen=True, kw_only=True)
class AnchorSettings:
    """Which rows to embed with the new model.

    Attributes:
        count: How many rows to choose.
        way: How to choose. With 500 anchors, kmeans found 0.01 to 0.02 more of the top 10 than the others.
        measure: Vectors of the new model: compare the three ways on them.
        seed: Fixes every random choice.
    """

    count: int = setting(2000, least=FEWEST)
    way: Way = "random"
    measure: str | None = setting(None, metavar="NEW")
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """How a model embeds texts.

    Attributes:
        prompt: Words before every text, instead of the model's own.
        purpose: What the texts are: query, document, or the name of another prompt that the model has. By
            default its default prompt, else document.
        pooling: How token states become one vector; the model's own way by default.
        normalise: Scale vectors to unit length; by default as the model's files say.
        batch_size: Texts per forward pass.
        max_length: Cut texts to this many tokens; the model's own limit by default.
        device: Where models run: cpu, cuda, cuda:1, mps; auto is a GPU of CUDA where there is one.
        device_map: Spread each model over devices instead: auto, or JSON of module and device.
        dtype: The dtype the model runs in.
        trust_remote_code: Run code that a model's repository carries.
    """

    prompt: str | None = None
    purpose: str | None = setting(None, flags=("--as",), metavar="query|document|NAME")
    pooling: Pooling | None = None
    normalise: bool | None = None
    batch_size: int = setting(32, least=1)
    max_length: int | None = setting(None, least=3)
    device: str = "auto"
    device_map: str | None = setting(None, metavar="MAP")
    dtype: str | None = None
    trust_remote_code: bool = False
