"""Raw MiniRocket against aeon 1.6 on CricketX: CPU seconds of both sets' features, and accuracy under ridge.

aeon compiles its kernels first (numba), so that its second pass is measured; its first one has a row too.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.translate import ENVIRONMENT, ROOT, peer_python
from transship.data import load

VENV, SET, PASSES = ROOT / ".peers" / "aeon", "CricketX", 3

PEER = """
import json, sys, time
import numpy as np
from aeon.transformations.collection.convolution_based import MiniRocket
given, seconds = np.load(sys.argv[1]), []
for _ in range(int(sys.argv[3])):
    start = time.process_time()
    kernels = MiniRocket(random_state=0, n_jobs=1)
    train = np.asarray(kernels.fit_transform(given["train"]))
    test = np.asarray(kernels.transform(given["test"]))
    seconds.append(time.process_time() - start)
np.savez(sys.argv[2], train=train, test=test, seconds=np.array(seconds))
"""


def run() -> list[dict[str, Any]]:
    """Return the rows."""
    torch.set_num_threads(1)
    train, test = (load(f"ucr_{SET}").split(part) for part in ("train", "test"))
    series = [np.asarray(part.inputs, np.float32)[:, None] for part in (train, test)]
    ours, theirs = _ours(*series), _theirs(*series)
    accuracy = [_accuracy(part, train.labels, test.labels) for part in (ours, theirs)]
    best = [float(min(part["seconds"][1:])) for part in (ours, theirs)]
    about = f"MiniRocket on {SET}"
    return [
        _row(f"{about}, CPU s of {len(train) + len(test)} series / aeon's", best[0], best[1], "<= 1.3"),
        _row(f"{about}, accuracy under ridge / aeon's", *accuracy, ">= 0.97"),
        _row(
            f"{about}, CPU s of the first pass / aeon's, which compiles",
            ours["seconds"][0],
            theirs["seconds"][0],
            None,
        ),
    ]


def _row(name: str, ours: float, peer: float, needed: str | None) -> dict[str, Any]:
    return {
        "name": name,
        "ours": float(ours),
        "peer": float(peer),
        "ratio": float(ours / peer),
        "needed": needed,
    }


def _ours(train: np.ndarray, test: np.ndarray) -> dict[str, Any]:
    from transship.verbs.adapt.raw.minirocket import draw_minirocket

    seconds = []
    rows = [torch.from_numpy(part) for part in (train, test)]
    for _ in range(PASSES):
        start = time.process_time()
        kernels = draw_minirocket(rows[0], seed=0)
        features = [kernels.features(part).numpy() for part in rows]
        seconds.append(time.process_time() - start)
    return {"train": features[0], "test": features[1], "seconds": seconds}


def _theirs(train: np.ndarray, test: np.ndarray) -> dict[str, Any]:
    python = peer_python(VENV, ("aeon==1.6.0",))
    with tempfile.TemporaryDirectory() as folder:
        given, output = Path(folder) / "given.npz", Path(folder) / "features.npz"
        np.savez(given, train=train, test=test)
        command = [str(python), "-c", PEER, str(given), str(output), str(PASSES)]
        subprocess.run(command, check=True, env=ENVIRONMENT)
        with np.load(output) as features:
            return dict(features)


def _accuracy(features: dict[str, Any], train: Any, test: Any) -> float:
    from sklearn.linear_model import RidgeClassifierCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(with_mean=False), RidgeClassifierCV(np.logspace(-3, 3, 10)))
    return float(model.fit(features["train"], train).score(features["test"], test))
