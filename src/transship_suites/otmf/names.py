"""The paper with its printed figures, and what suites of merging call things: ways to merge, kinds of heads.

Cheap to import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transship_suites.runner import read_paper

THE_PAPER, ABOUT = read_paper(Path(__file__).with_name("paper.toml"))
# table → row → figures, as the paper prints them
PRINTED: Mapping[str, Mapping[str, Sequence[float]]] = ABOUT["printed"]

BASE, INDIVIDUAL, TOGETHER = "base, nothing merged", "individual fine-tunes", "multi-task training"

TEXT_MODEL = "minilm-l6"
OWN, PAPER, TUNED = "own", "tuned, paper's schedule", "tuned, all at the end"
ONCE, CARRIED, POLISHED = "carried once", "carried", "carried + polish"
HEADS = (OWN, PAPER, TUNED, ONCE, CARRIED, POLISHED)

# carried onto features of the last three blocks, not of the last one only
WIDE, WIDE_POLISHED = "carried, three blocks", "carried, three blocks + polish"

# how many inputs of each task a finish has: all that are known of it, or so many
KEPT_INPUTS: dict[int | str, int | None] = {"all": None, 200: 200}

# carried on few inputs: how many, and what the ridge shrinks to
FEW: dict[int | str, int | None] = {50: 50, 100: 100, 200: 200, "all": None}
PRIORS: dict[str, dict[str, Any]] = {
    "to zero": {"penalty": 1e-2, "prior": "zero"},
    "to the own head": {"penalty": 1e-2, "prior": "own"},
    "to the own head, strongly": {"penalty": 1e-1, "prior": "own"},
    "to zero, λ by leave-one-out": {"prior": "zero"},
    "to the own head, λ by leave-one-out": {},  # the default of merge
}

# heads that a quarter of the labels can train: the paper's, two more by Adam, ridge and logistic regression
LABEL_HEADS = (
    "Adam 100 × 0.01",
    "Adam 1000 × 0.001",
    "Adam 1000 × 0.01",
    "ridge 0.001",
    "ridge 0.1",
    "logistic 1",
    "logistic 0.03",
)


@dataclass(frozen=True)
class Way:
    """A way to merge: a continual method with its options and the strength of its vector."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    strength: float | str = 1.0


OTMF, MIX, PAIRED = "OTMF", "OTMF without masks", "OTMF, paired distance"
KEPT = "average, norm kept"
UNFINISHED, FINISHED, UNMERGED = f"{KEPT}, no finish", f"{KEPT}, finished", "base, finished"
RUNNING, SWEPT = "OTMF, α = (t−1)/t", "OTMF, sweep"
ALPHA = 0.8  # of OTMF where nothing else is said: its first order is that point of the sweep
SHARED = "OTMF in its first order"  # the part of the case that is both
ALPHAS = (0.0, 0.2, 0.4, 0.6, 0.7, ALPHA, 0.9, 1.0)  # those of the paper's Table 5
SWEPT_HEADS = (OWN, PAPER, CARRIED)
UNSWEPT = "base, nothing merged, beside the sweep"  # the base does not depend on α, and is drawn at each
# 1/16 of AdaMerging's steps at 16 times its rate: entropy methods would take most of a run otherwise
_SHORT = {"steps": 60, "learning_rate": 0.0167}
_BATCH = {"batch_size": 32}
_DRAWN = {"definition": "drawn"}  # one class per input: the exact Fisher takes as many as there are
JOINT_INPUTS = 256  # of each task, for joint merges
WAYS: dict[str, Way] = {
    "average": Way("average"),
    "OPCM": Way("opcm"),
    OTMF: Way("otmf", _BATCH),
    MIX: Way("otmf", {"iterations": 0}),
    KEPT: Way("average", strength="norm"),
    "task arithmetic": Way("task-arithmetic"),
    "TIES": Way("ties"),
    "TSV-M": Way("tsvm"),
    "RegMean": Way("regmean"),
    "Fisher": Way("fisher", {"inputs": 128, **_DRAWN}),
    "AdaMerging, task": Way("adamerging", {"per": "task", **_SHORT}),
    "AdaMerging, layer": Way("adamerging", {"per": "tensor", **_SHORT}),
    "Concrete": Way("concrete", _SHORT),
    "OTMF, rows": Way("otmf", {"granularity": "row", **_BATCH}),
    "OTMF, tensors": Way("otmf", {"granularity": "tensor", **_BATCH}),
    PAIRED: Way("otmf", {"loss": "paired", **_BATCH}),
    RUNNING: Way("otmf", {"alpha": "running", **_BATCH}),
}
# in how many orders the full scales run each way
ORDERS = {name: 1 if name in (PAIRED, RUNNING) else 3 for name in WAYS}
# joint merges, all models at once, as recipes name them; only their final bodies are measured
JOINT: dict[str, Way] = {
    "joint average": Way("linear"),
    "joint task arithmetic": Way("task_arithmetic", {"weight": 0.3}),
    "joint TIES": Way("ties", {"density": 0.2}),
    "joint TSV-M": Way("tsvm"),
    "joint model stock": Way("model_stock"),
    "joint Fisher": Way("fisher", _DRAWN),
    "joint RegMean": Way("regmean"),
    "joint RegMean++": Way("regmean++"),
    "joint AdaMerging, task": Way("adamerging", {"per": "task", **_SHORT}),
    "joint AdaMerging, layer": Way("adamerging", {"per": "tensor", **_SHORT}),
    "joint Concrete": Way("concrete", _SHORT),
    "joint OTMF": Way("otmf", _BATCH),
}
JOINT_HEADS = (OWN, TUNED, CARRIED, POLISHED)
BASELINES = (
    "average",
    "task arithmetic",
    "TIES",
    "TSV-M",
    "OPCM",
    "AdaMerging, task",
    "AdaMerging, layer",
    "Concrete",
    "RegMean",
    "Fisher",
)
# bodies on which every head that labels can train is tried as well
CONTROLLED = (BASE, "average", KEPT, "OPCM", OTMF)
# drawn on the page: accuracy matrices and clouds of features
DRAWN = ("average", "task arithmetic", "OPCM", OTMF)
