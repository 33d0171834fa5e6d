"""A small suite in a folder of its own: arithmetic on seeds, with a trained thing that is cached."""

from __future__ import annotations

from pathlib import Path

import pytest

TOY = '''
"""A suite for the tests."""
import time
from pathlib import Path

from transship_suites.runner import (
    Claim, Heading, Curve, Measurement, Need, Paper, Condition, Scale, Suite, PaperTable, cell, product,
)


def train(seed):
    import numpy as np

    return {"weights": np.random.default_rng(seed).normal(size=8)}


def run(case, context):
    log = Path(context.options["log"])
    trained = context.cached("toy", {"seed": case.seed}, lambda: noted(log, case.seed), code=(train,))
    weights = trained["weights"]
    time.sleep(context.options.get("sleep", 0))
    with log.open("a") as stream:
        stream.write(f"case {case}\\n")
    gain = {"plain": 0.0, "better": 1.0}[case["method"]]
    score = gain + 0.1 * float(weights.mean()) + 0.01 * context.seed("noise") / 2**63
    context.attach("weights", weights.tolist())
    return [Measurement({"samples": n}, {"score": score + 0.001 * n, "none": float("nan")}) for n in (10, 20)]


def noted(log, seed):
    with log.open("a") as stream:
        stream.write(f"train {seed}\\n")
    return train(seed)


PLAIN, BETTER = Condition("plain", {"method": "plain"}), Condition("better", {"method": "better"})
GAIN = cell("score", method="better") - cell("score", method="plain")
AT_20 = Heading("at 20", cell("score", samples=20), percent=True, digits=1)
OPTIONS = {"log": LOG, "sleep": SLEEP}
suite = Suite(
    title="A toy",
    summary="Adds one.",
    paper=Paper("On adding one", authors="Nobody", where="Table 1"),
    claims=(
        Claim(text="Better is better.", quantity=GAIN, at_least=0.5),
        Claim(text="Better is worse.", quantity=GAIN, at_most=0.5),
        Claim(text="Nothing is something.", quantity=cell("none", method="plain"), at_least=0),
    ),
    scales={
        "quick": Scale(seeds=3, minutes=0.1, options=OPTIONS),
        "full": Scale(seeds=5, minutes=1, options=OPTIONS, needs=NEEDS),
    },
    cases=lambda options: product(method=["plain", "better"]),
    run=run,
    tables=(
        PaperTable("Scores", (PLAIN, BETTER), (Heading("score", "score"), AT_20),
              paper={("better", "score"): 1.25}, paper_source="Table 1", setting="none of it is real"),
    ),
    curves=(Curve("By samples", "samples", "score", (PLAIN, BETTER), "samples", "score"),),
)
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that writes the toy suite into a folder and returns that folder."""
    monkeypatch.setenv("TRANSSHIP_CACHE", str(tmp_path / "cache"))

    def write(*, sleep: float = 0.0, needs: str = "()", name: str = "toy_suite", text: str = TOY) -> Path:
        folder = tmp_path / "suites"
        folder.mkdir(exist_ok=True)
        head = f"LOG = {str(tmp_path / 'log')!r}\nSLEEP = {sleep}\n"
        declared = text.replace("needs=NEEDS", f"needs={needs}")
        (folder / f"{name}.py").write_text(head + declared, encoding="utf-8")
        return folder

    return write


@pytest.fixture
def log(tmp_path: Path):
    """Return a function that reads what the toy suite noted: one line per training and per case."""

    def read() -> list[str]:
        file = tmp_path / "log"
        return file.read_text().splitlines() if file.exists() else []

    return read
