"""What the suites of embeddings share: texts, judged collections, vectors made once, a peer's recipe."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from transship.activations.models import load_model
from transship.activations.readout import features
from transship.data import find_data, find_model
from transship_suites.runner import Context

PART = 6000


def latentis_recipe(x: Any, y: Any, rows: Any) -> Any:
    """Return rows by the recipe of latentis 0.0.8: standardise each feature, zero-pad, rotate, undo.

    A constant feature (spread below ten times the rounding of float32) has scale 1 there, so that the
    rotation fills it: that is part of the recipe.
    """

    def standard(part: Any) -> tuple[Any, Any]:
        spread = part.std(0, ddof=1)
        return part.mean(0), np.where(spread < 10 * np.finfo(np.float32).eps, 1.0, spread)

    (mean_x, sd_x), (mean_y, sd_y) = standard(x), standard(y)
    width = max(x.shape[1], y.shape[1])

    def pad(part: Any) -> Any:
        return np.pad(part, ((0, 0), (0, width - part.shape[1])))

    left, right = pad((x - mean_x) / sd_x), pad((y - mean_y) / sd_y)
    u, _, vt = np.linalg.svd(left.T @ right)
    return (pad((rows - mean_x) / sd_x) @ (u @ vt))[:, : y.shape[1]] * sd_y + mean_y


def gloss_texts(count: int) -> list[str]:
    texts = list(
        dict.fromkeys(pq.read_table(find_data("wordnet_glosses"), columns=["text"]).column(0).to_pylist())
    )
    return [texts[row] for row in np.random.default_rng(0).permutation(len(texts))[:count]]


def collection(name: str, words: int) -> tuple[list[str], list[str], dict[int, dict[int, float]]]:
    """Return documents cut after `words` words, queries (of the test split) and relevance by their places."""
    corpus, queries, judged = (
        pq.read_table(find_data(f"ir_{name}-{part}")).to_pydict() for part in ("corpus", "queries", "qrels")
    )
    documents = [
        " ".join(f"{title or ''} {text}".split()[:words])
        for title, text in zip(corpus["title"], corpus["text"], strict=True)
    ]
    kept = [row for row, split in enumerate(queries.get("split") or []) if split == "test"] or range(
        len(queries["id"])
    )
    places = {identity: row for row, identity in enumerate(corpus["id"])}
    numbers = {queries["id"][row]: place for place, row in enumerate(kept)}
    relevance: dict[int, dict[int, float]] = {}
    for query, document, score in zip(judged["query_id"], judged["doc_id"], judged["score"], strict=True):
        if query in numbers and document in places:
            relevance.setdefault(numbers[query], {})[places[document]] = float(score)
    return documents, [queries["text"][row] for row in kept], relevance


def vectors(context: Context, model: str, texts: list[str], role: str) -> Any:
    """Return the vectors of texts by one encoder, made once for all pairs, seeds and suites."""
    # in parts, so that a longer list that begins like a shorter one costs its rest only
    parts = [texts[start : start + PART] for start in range(0, len(texts), PART)]
    return np.concatenate([_vectors(context, model, part, role) for part in parts])


def _vectors(context: Context, model: str, texts: list[str], role: str) -> Any:
    folder = find_model(model)
    prompt = _prompt(folder, role)
    parts = {
        "model": model,
        "size": sum(file.stat().st_size for file in folder.glob("*.safetensors")),
        "texts": hashlib.sha256("\0".join(texts).encode()).hexdigest(),
        "prompt": prompt,
    }

    def make() -> dict[str, Any]:
        loaded = load_model(str(folder), device=context.device, name=model)
        return {"vectors": features(loaded, [prompt + text for text in texts])}

    return context.cached("embeddings", parts, make, code=(_prompt,))["vectors"]


def _prompt(folder: Any, role: str) -> str:
    """Return the words that the model's own files want before a query or a document."""
    file = folder / "config_sentence_transformers.json"
    prompts = json.loads(file.read_text(encoding="utf-8")).get("prompts", {}) if file.is_file() else {}
    return str(prompts.get(role, ""))
