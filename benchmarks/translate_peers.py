"""Against isotrieve 0.4 in an environment of its own: nDCG@10 kept on SciFact, with the same pairs."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.translate import ENVIRONMENT, ROOT, peer_python

VENV = ROOT / ".peers" / "isotrieve"
SOURCE, TARGET = "minilm-l3", "minilm-l6"
PAIRS = (500, 1000, 2000, 4000)
WORDS = 100
FOLDS = 5

PEER = """
import sys
import numpy as np
from isotrieve import RidgeMapping
given = np.load(sys.argv[1])
x, y, rows, chosen = (given[name] for name in ("x", "y", "rows", "chosen"))
moved = np.asarray(RidgeMapping().fit(x, y).transform(rows), dtype=np.float32)
for fold in range(int(sys.argv[3])):
    held = np.arange(fold, len(x), int(sys.argv[3]))
    kept = np.setdiff1d(np.arange(len(x)), held)
    moved[chosen[held]] = RidgeMapping().fit(x[kept], y[kept]).transform(x[held])
np.save(sys.argv[2], moved)
"""


def run() -> list[dict[str, Any]]:
    """Return one row per number of pairs: what our choice and isotrieve's default keep of nDCG@10.

    No document is scored by a map that saw it: the pairs' own rows come from five folds, on both sides.
    """
    from transship.suites._embeddings import collection
    from transship.verbs.translate.pairs import Pairs
    from transship.verbs.translate.quality import ndcg, unit_rows

    documents, queries, relevance = collection("scifact", WORDS)
    old, new = (_vectors(model, "documents", documents) for model in (SOURCE, TARGET))
    asked = _vectors(TARGET, "queries", queries)
    native = ndcg(unit_rows(asked) @ unit_rows(new).T, relevance)
    python = peer_python(VENV, ("isotrieve==0.4.0",))
    order = np.random.default_rng(0).permutation(len(documents))
    rows = []
    for count in PAIRS:
        chosen = np.sort(order[:count])
        pairs = Pairs([str(row) for row in chosen], old[chosen], new[chosen])
        moved = {"ours": _ours(pairs, old, chosen), "peer": _isotrieve(python, pairs, old, chosen)}
        kept = {
            name: ndcg(unit_rows(asked) @ unit_rows(part).T, relevance) / native
            for name, part in moved.items()
        }
        rows.append(
            {
                "name": f"nDCG@10 kept, SciFact, {SOURCE} → {TARGET}, {count} pairs, against isotrieve",
                **kept,
                "ratio": kept["ours"] / kept["peer"],
                "needed": ">= 1",
            }
        )
    return rows


def _ours(pairs: Any, rows: Any, chosen: Any) -> Any:
    """Return all rows by the map that `fit` chooses; the pairs' own rows by maps that did not see them."""
    from sklearn.base import clone

    from transship.verbs.translate.fitting import fit_pairs
    from transship.verbs.translate.quality import out_of_sample, restore_variance

    found = fit_pairs(pairs)
    moved = np.array(found.translator.transform(rows))
    for fold in range(FOLDS):
        held = np.arange(fold, len(pairs), FOLDS)
        kept = np.setdiff1d(np.arange(len(pairs)), held)
        x, y = pairs.old[kept], pairs.new[kept]
        fitted = clone(found.chosen.translator).fit(x, y)
        if found.chosen.restored:
            fitted = restore_variance(fitted, out_of_sample(fitted, x, y), y)
        moved[chosen[held]] = fitted.transform(pairs.old[held])
    return moved


def _isotrieve(python: Path, pairs: Any, rows: Any, chosen: Any) -> Any:
    """Return the same by isotrieve's default, with the same folds."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        np.savez(Path(folder) / "in.npz", x=pairs.old, y=pairs.new, rows=rows, chosen=chosen)
        command = [python, "-c", PEER, Path(folder) / "in.npz", Path(folder) / "out.npy", str(FOLDS)]
        subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True)
        return np.load(Path(folder) / "out.npy")


def _vectors(model: str, name: str, texts: list[str]) -> Any:
    """Return vectors by a local model, kept beside the peer's environment."""
    from transship.activations.features import features
    from transship.data import find_model

    file = VENV / f"scifact-{name}-{model}-{WORDS}.npy"
    if not file.is_file():
        VENV.mkdir(parents=True, exist_ok=True)
        np.save(file, features(str(find_model(model)), texts))
    return np.load(file)
