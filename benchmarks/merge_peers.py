"""The documented recipes in mergekit 0.1.5 and here, tensor by tensor.

Entries must agree within one rounding of the output's dtype. What differs otherwise has to belong to a
listed reason, and the reason is checked in numbers: entries at a trimming threshold that several share;
random draws of the same share, size and direction; a tensor that mergekit leaves out; a step that it does in
less precision, where just the entries differ that precision decides. What mergekit cannot do is a miss too.
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
from transship.verbs.merge.api import Merge, merge
from transship.verbs.merge.recipe.plan.merge import MergePlan
from transship.verbs.merge.recipe.plan.steps import TensorStep
from transship.verbs.merge.recipe.plan.words import read_vocabulary
from transship.verbs.merge.recipe.run.tensors import Tensors

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
LEFT_OUT = {"modules": {"shared.weight"}}  # tensors that mergekit's output has not
FAILING: dict[str, str] = {}  # recipes that mergekit 0.1.5 cannot do, and why: none of them
SIGMA = 5.0  # deviations by which the means of equal random draws may differ: one in two million is beyond
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
        return _failed(name, error.read_text())
    assert isinstance(merged.plan, MergePlan)
    merged.save(folder / "ours" / name)
    shown = f"{name} ({EXPLAINED[name]})" if name in EXPLAINED else name
    with (
        checkpoints.open(folder / "ours" / name) as ours,
        checkpoints.open(folder / "theirs" / name) as theirs,
    ):
        if EXPLAINED.get(name) == RANDOM:
            return {"name": shown, **_draws(merged.plan, ours, theirs)}
        equal, beyond, entries, missing = _compare(merged.plan, ours, theirs, SLACK.get(name, 2.0**-22))
        left_out = LEFT_OUT.get(name, set())
        known = left_out | {alias for alias, kept in ours.tied.items() if kept in left_out}
    unexplained = beyond + len(missing ^ known)
    return {
        "name": shown,
        "ours": equal / entries,
        "peer": beyond,
        "ratio": unexplained / entries,
        "needed": "<= 0",
    }


def _failed(name: str, error: str) -> dict[str, Any]:
    """Return the row of a recipe that mergekit could not do: a miss, unless it is known why."""
    shown = f"{name}: mergekit fails ({(error.splitlines() or [''])[-1][:60]})"
    if name in FAILING:
        return {"name": f"{shown}; {FAILING[name]}"}
    return {"name": shown, "ratio": 1.0, "needed": "<= 0"}


def _draws(plan: MergePlan, ours: Checkpoint, theirs: Checkpoint) -> dict[str, Any]:
    """Compare two outputs whose entries were dropped by chance; the ratio is in standard deviations."""
    entries = []
    for step in plan.steps:
        if step.method is None:
            continue
        operands = Tensors(plan).operands(step)
        whole = slice(0, operands.size)
        weights = operands.number("weight")
        updates = [operands.update(index, whole).astype(np.float64) for index in range(len(weights))]
        expected = sum(weight * update for weight, update in zip(weights, updates, strict=True))
        base = operands.origin(whole).astype(np.float64)
        sides = [np.asarray(each.read(step.name), np.float64).reshape(-1) - base for each in (ours, theirs)]
        entries.append(draw_statistics(sides[0], sides[1], np.asarray(expected)))
    mine, other = (np.concatenate(side, axis=1) for side in zip(*entries, strict=True))
    apart = deviations(mine, other)
    return {
        "ours": float(mine[0].mean()),
        "peer": float(other[0].mean()),
        "ratio": float(apart.max()),
        "needed": f"<= {SIGMA:g} σ of share kept, size and direction",
    }


def draw_statistics(mine: Doubles, other: Doubles, expected: Doubles) -> tuple[Doubles, Doubles]:
    """Return, for two merged updates of one tensor, three numbers of every entry that some model changed.

    They are whether it was kept, its magnitude, and how far it goes in the direction of the update without
    drops; the last two by the mean magnitude of that, so that tensors of any size count alike.
    """
    moved = expected != 0
    scale = max(float(np.abs(expected).mean()), np.finfo(np.float64).tiny)
    sign = np.sign(expected[moved])

    def of(update: Doubles) -> Doubles:
        part = update[moved] / scale
        return np.stack([part != 0, np.abs(part), part * sign]).astype(np.float64)

    return of(mine), of(other)


def deviations(mine: Doubles, other: Doubles) -> Doubles:
    """Return by how many standard deviations the means of each row differ, entries taken as independent."""
    spread = np.sqrt((mine.var(axis=1) + other.var(axis=1)) / mine.shape[1])
    apart = np.abs(mine.mean(axis=1) - other.mean(axis=1))
    return np.where(apart > 0, apart / np.maximum(spread, np.finfo(np.float64).tiny), 0.0)


def _compare(
    plan: MergePlan, ours: Checkpoint, theirs: Checkpoint, slack: float
) -> tuple[int, int, int, set[str]]:
    """Return equal entries, those beyond one rounding (explained ones aside), all entries, and lone names.

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
        if wrong.any() and plan.recipe.method == "arcee_fusion":
            wrong &= ~_decided_by_precision(plan, steps[name])
        equal, beyond, entries = (
            equal + int((apart == 0).sum()),
            beyond + int(wrong.sum()),
            entries + mine.size,
        )
    return equal, beyond, entries, missing


def _decided_by_precision(plan: MergePlan, step: TensorStep) -> npt.NDArray[np.bool_]:
    """Return the entries that arcee_fusion keeps in float64 and drops in float32, or the other way round."""
    import torch

    operands = Tensors(plan).operands(step)
    whole = slice(0, operands.size)
    sides = [
        torch.from_numpy(np.array(values).reshape(step.shape))
        for values in (operands.model(0, whole), operands.origin(whole))
    ]
    rough, exact = (
        _important(*(side.to(dtype) for side in sides)) for dtype in (torch.float32, torch.float64)
    )
    return np.asarray((rough != exact).numpy())


def _important(tuned: Any, base: Any) -> Any:
    """Return which entries pass mergekit's threshold, in the tensors' dtype; beyond a million it samples."""
    p, q = tuned.softmax(-1) + 1e-8, base.softmax(-1) + 1e-8
    scores = (tuned - base).abs() * (p * (p / q).log()).sum(-1, keepdim=True)
    ordered = scores.reshape(-1).sort()[0]
    low, middle, high = (ordered[int(share * (ordered.numel() - 1))] for share in (0.25, 0.5, 0.75))
    return scores >= middle + 1.5 * (high - low)


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
    vocabulary = read_vocabulary(checkpoint.folder)
    assert vocabulary is not None
    return vocabulary


def _at_threshold(plan: MergePlan, step: TensorStep) -> npt.NDArray[np.bool_]:
    """Return the entries whose magnitude, in some model, equals one at which trimming cuts."""
    operands = Tensors(plan).operands(step)
    whole = slice(0, operands.size)
    values = np.zeros(operands.size, np.bool_)
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
            values |= (magnitude == ordered[count - 1]) | (magnitude == ordered[count])
    return values.reshape(step.shape)
