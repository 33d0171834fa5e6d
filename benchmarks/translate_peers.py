"""Against peers in environments of their own: isotrieve 0.4 on SciFact, and latentis 0.0.8 on glosses.

isotrieve: nDCG@10 kept with the same pairs. latentis: that the suite's recipe gives the package's vectors.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.translate import ENVIRONMENT, ROOT, peer_python
from benchmarks.translate import VENV as LATENTIS_VENV
from transship_suites.embedding_migration import suite

VENV = ROOT / ".peers" / "isotrieve"
SOURCE, TARGET = "minilm-l3", "minilm-l6"
PAIRS = (250, 500, 1000, 2000, 4000)
WORDS = suite.scales["full"].options["words"]  # documents as the suite cuts them: its vectors serve
FOLDS = 5
ANCHORS, GALLERY = 2000, 4000

LATENTIS = """
import sys
import numpy as np, torch
torch.set_num_threads(1)
from latentis.transform.translate import Procrustes
given = np.load(sys.argv[1])
x, y, rows = (torch.from_numpy(given[name]) for name in ("x", "y", "rows"))
translator = Procrustes()
translator.fit(x=x, y=y)
moved = translator.transform(x=rows, y=None)
np.save(sys.argv[2], (moved[0] if isinstance(moved, tuple) else moved).numpy())
"""

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
    """Return the rows of both peers."""
    return [*_against_latentis(), *_against_isotrieve()]


def _against_latentis() -> list[dict[str, Any]]:
    """Return how far the suite's recipe is from the package: rows, and recall@10 of the native top 10."""
    from transship.verbs.translate.fit.quality import measure
    from transship_suites.materials.embeddings import gloss_texts, latentis_recipe

    texts = gloss_texts(ANCHORS + GALLERY)
    rows = []
    for source, target in ((SOURCE, TARGET), (TARGET, SOURCE)):
        old, new = _vectors(source, texts, "document"), _vectors(target, texts, "document")
        parts = {"x": old[:ANCHORS], "y": new[:ANCHORS], "rows": old[ANCHORS:]}
        theirs = _peer(peer_python(LATENTIS_VENV, ("torch==2.13.0", "latentis==0.0.8")), LATENTIS, parts)
        ours = latentis_recipe(*parts.values())
        # into a constant feature both put noise, of which only the sum of squares is determined
        live = new[:ANCHORS].std(0) > 1e-6
        gap, size = float(np.abs(ours - theirs)[:, live].max()), float(np.sqrt((theirs[:, live] ** 2).mean()))
        recalls = [measure(part, new[ANCHORS:]).recall for part in (ours, theirs)]
        label = f"glosses, {source} → {target}"
        rows += [
            {
                "name": f"recipe of latentis against the package, largest difference to size, {label}",
                "ours": gap,
                "peer": size,
                "ratio": gap / size,
                "needed": "<= 0.005",
            },
            {
                "name": f"recipe of latentis against the package, recall@10, {label}",
                "ours": recalls[0],
                "peer": recalls[1],
                "ratio": abs(recalls[0] - recalls[1]),
                "needed": "<= 0.001",
            },
        ]
    return rows


def _against_isotrieve() -> list[dict[str, Any]]:
    """Return one row per number of pairs: what our choice and isotrieve's default keep of nDCG@10.

    No document is scored by a map that saw it: the pairs' own rows come from five folds, on both sides.
    """
    from transship.verbs.translate.fit.judgements import ndcg
    from transship.verbs.translate.fit.pairs import VectorPairs
    from transship.verbs.translate.maps.vectors import unit_rows
    from transship_suites.materials.embeddings import collection

    documents, queries, relevance = collection("scifact", WORDS)
    old, new = (_vectors(model, documents, "document") for model in (SOURCE, TARGET))
    asked = _vectors(TARGET, queries, "query")
    native = ndcg(unit_rows(asked) @ unit_rows(new).T, relevance)
    python = peer_python(VENV, ("isotrieve==0.4.0",))
    order = np.random.default_rng(0).permutation(len(documents))
    rows = []
    for count in PAIRS:
        chosen = np.sort(order[:count])
        pairs = VectorPairs([str(row) for row in chosen], old[chosen], new[chosen])
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
    from transship.verbs.translate.fit.api import fit_pairs
    from transship.verbs.translate.fit.quality import out_of_sample, restore_variance

    result = fit_pairs(pairs)
    moved = np.array(result.translator.transform(rows))
    for fold in range(FOLDS):
        held = np.arange(fold, len(pairs), FOLDS)
        kept = np.setdiff1d(np.arange(len(pairs)), held)
        x, y = pairs.old[kept], pairs.new[kept]
        fitted = result.chosen.translator.settled().fit(x, y)
        if result.chosen.restored:
            fitted = restore_variance(fitted, out_of_sample(fitted, x, y), y)
        moved[chosen[held]] = fitted.transform(pairs.old[held])
    return moved


def _isotrieve(python: Path, pairs: Any, rows: Any, chosen: Any) -> Any:
    """Return the same by isotrieve's default, with the same folds."""
    parts = {"x": pairs.old, "y": pairs.new, "rows": rows, "chosen": chosen}
    return _peer(python, PEER, parts, str(FOLDS))


def _peer(python: Path, code: str, parts: dict[str, Any], *arguments: str) -> Any:
    """Run a peer on arrays in its own environment and return the array that it saves."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        given, value = Path(folder) / "in.npz", Path(folder) / "out.npy"
        np.savez(given, **parts)
        done = subprocess.run(
            [python, "-c", code, given, value, *arguments],
            env=ENVIRONMENT,
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"the peer failed: {done.stderr[-2000:]}")
        return np.load(value)


def _vectors(model: str, texts: list[str], role: str) -> Any:
    """Return vectors by a local model, from the suites' cache."""
    from transship_suites.materials.embeddings import vectors
    from transship_suites.runner import Case, Context
    from transship_suites.runner.context import Cache, cache_home

    return vectors(Context("peers", Case({}, 0), {}, Cache(cache_home())), model, texts, role)
