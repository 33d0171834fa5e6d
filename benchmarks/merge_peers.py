"""The documented recipes in mergekit 0.1.5 and here, tensor by tensor.

Entries must agree within one rounding of the output's dtype. What differs otherwise has to belong to a
listed reason: entries at a trimming threshold that several share, random draws, or a step that mergekit does
differently.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks._mergekit import ENVIRONMENT, ROOT, mergekit_python
from transship import checkpoints
from transship.checkpoints import Checkpoint
from transship.verbs.merge.plan import MergePlan
from transship.verbs.merge.recipe.steps import Step
from transship.verbs.merge.recipe.tokenizers import read_vocabulary
from transship.verbs.merge.run import Merge, merge

RECIPES = ROOT / "tests" / "verbs" / "merge" / "recipes"
ULP = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}  # of the value, at most
RANDOM = "random draws: each tool has its own generator"
EXPLAINED = {
    "adapters": "mergekit rounds base + adapter to the base's bfloat16 first",
    "arcee-fusion": "the divergence of nearly equal rows cancels in mergekit's float32; here it is float64",
    "dare-linear": RANDOM,
    "della": RANDOM,
    "task-arithmetic-bfloat16": "mergekit computes in bfloat16; here in float32, rounded once",
    "modules": "mergekit leaves shared.weight, the embedding of a T5, out of its output",
}
# how far apart what mergekit rounds on the way may be, as a share of the tensor's largest entry: half a
# rounding of bfloat16 of each input, and one for each of the four steps of task arithmetic
SLACK = {"adapters": 2.0**-8, "task-arithmetic-bfloat16": 4 * 2.0**-8}
TRIMMED = ("ties", "breadcrumbs", "breadcrumbs_ties", "sce")
Doubles = npt.NDArray[np.float64]


def run() -> list[dict[str, Any]]:
    """Return a row for each recipe: ours = share of equal entries, peer = entries beyond one rounding."""
    recipes = sorted(RECIPES.glob("*.yaml"))
    with tempfile.TemporaryDirectory(prefix="transship-peers-") as name:
        folder = Path(name)
        _make_models(folder / "models")
        (folder / "theirs").mkdir()
        parity = folder / "parity.yaml"
        text = (RECIPES / "task-arithmetic-bfloat16.yaml").read_text()
        driver = [mergekit_python(), ROOT / "benchmarks" / "_mergekit_driver.py", folder / "theirs"]
        subprocess.run(
            [*driver, *recipes], cwd=folder / "models", env=ENVIRONMENT, check=True, capture_output=True
        )
        before = Path.cwd()
        os.chdir(folder / "models")
        try:
            rows = [_row(merge(recipe), recipe.stem, folder) for recipe in recipes]
            parity.write_text(text + "arithmetic: mergekit\n")
            (folder / "theirs/task-arithmetic-bfloat16").rename(folder / "theirs/parity")
            rows.append(
                _row(merge(parity), "parity", folder) | {"name": "task-arithmetic, arithmetic: mergekit"}
            )
        finally:
            os.chdir(before)
    return rows


def _make_models(folder: Path) -> None:
    spec = importlib.util.spec_from_file_location("small_models", RECIPES.parent / "small_models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.make(folder)


def _row(merged: Merge, name: str, folder: Path) -> dict[str, Any]:
    """Compare one recipe's outputs; the ratio is the share of entries that no reason covers."""
    error = folder / "theirs" / f"{name}.error"
    if error.is_file():
        return {"name": f"{name}: mergekit fails ({error.read_text().splitlines()[-1][:60]})"}
    assert isinstance(merged.plan, MergePlan)
    merged.save(folder / "ours" / name)
    with (
        checkpoints.open(folder / "ours" / name) as ours,
        checkpoints.open(folder / "theirs" / name) as theirs,
    ):
        equal, beyond, entries, missing = _compare(merged.plan, ours, theirs, SLACK.get(name, 2.0**-22))
    reason = EXPLAINED.get(name, "")
    if missing and not reason:
        raise AssertionError(f"{name}: only one of the two has {sorted(missing)[:3]}")
    unexplained = 0 if reason and name not in SLACK else beyond
    shown = f"{name} ({reason})" if reason else name
    return {
        "name": shown,
        "ours": equal / entries,
        "peer": beyond,
        "ratio": unexplained / entries,
        "needed": "<= 0",
    }


def _compare(
    plan: MergePlan, ours: Checkpoint, theirs: Checkpoint, slack: float
) -> tuple[int, int, int, set[str]]:
    """Return equal entries, those beyond one rounding (threshold ties aside), all entries, and lone names.

    `slack` is allowed beside that, as a share of the tensor's largest entry.
    """
    steps = {step.name: step for step in plan.steps}
    names = set(ours.tensors) & ({*theirs.tensors} | {*theirs.tied})
    missing = ({*ours.tensors} | {*ours.tied}) ^ ({*theirs.tensors} | {*theirs.tied})
    equal = beyond = entries = 0
    for name in sorted(names):
        mine, other = ours.read(name).astype(np.float64), theirs.read(name).astype(np.float64)
        mine, other = _same_words(plan, name, mine, other, ours, theirs)
        apart = np.abs(mine - other)
        # one rounding of the output, and that of float32 arithmetic on numbers as large as the tensor's
        # largest
        allowed = (
            ULP[ours.info(name).dtype] * np.maximum(np.abs(mine), np.abs(other)) + slack * np.abs(other).max()
        )
        wrong = apart > allowed
        if wrong.any() and plan.recipe.method in TRIMMED:
            wrong &= ~_at_threshold(plan, steps[name])
        equal, beyond, entries = (
            equal + int((apart == 0).sum()),
            beyond + int(wrong.sum()),
            entries + mine.size,
        )
    return equal, beyond, entries, missing


def _same_words(
    plan: MergePlan, name: str, mine: Doubles, other: Doubles, ours: Checkpoint, theirs: Checkpoint
) -> tuple[Doubles, Doubles]:
    """Return rows of words by token: new tokens may have other numbers in the two outputs."""
    if plan.vocabulary is None or not plan.vocabulary.covers(name):
        return mine, other
    rows, others = _words(ours), _words(theirs)
    assert rows.keys() == others.keys(), "the two tokenizers have different words"
    padding = slice(len(rows), None)
    tokens = sorted(rows)
    return (
        np.concatenate([mine[[rows[token] for token in tokens]], mine[padding]]),
        np.concatenate([other[[others[token] for token in tokens]], other[padding]]),
    )


def _words(checkpoint: Checkpoint) -> Mapping[str, int]:
    found = read_vocabulary(checkpoint.folder)
    assert found is not None
    return found


def _at_threshold(plan: MergePlan, step: Step) -> npt.NDArray[np.bool_]:
    """Return the entries whose magnitude, in some model, equals one at which trimming cuts."""
    operands = plan.execution.operands(step)
    whole = slice(0, operands.size)
    found = np.zeros(operands.size, np.bool_)
    updates = [operands.update(index, whole) for index in range(len(operands.models))]
    if plan.recipe.method == "sce":
        variances = np.var(np.stack(updates), axis=0)
        cuts = [(variances, int(np.count_nonzero(variances) * getattr(step.method, "select_topk")))]  # noqa: B009
    else:
        gammas = operands.values.get("gamma", [0.0] * len(updates))
        cuts = []
        for update, density, gamma in zip(updates, operands.values["density"], gammas, strict=True):
            keep = max(1, int(density * operands.size))
            drop = min(int(gamma * operands.size), operands.size - keep)
            cuts += [(np.abs(update), count) for count in (keep, drop, keep + drop)]
    for magnitude, count in cuts:
        if 0 < count < operands.size:
            ordered = np.sort(magnitude)[::-1]
            found |= (magnitude == ordered[count - 1]) | (magnitude == ordered[count])
    return found.reshape(step.shape)
