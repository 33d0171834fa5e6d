"""Rows of the comparison with mergekit that chance or precision explains can be missed like the others."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from transship import checkpoints
from transship.verbs.merge.api import merge
from transship.verbs.merge.plan import plan

ENTRIES = 20_000


@pytest.fixture(scope="module", autouse=True)
def benchmarks(request: pytest.FixtureRequest):
    """The benchmarks lie beside the package, not in it."""
    global merge_peers, holds
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(request.config.rootpath)
        merge_peers = importlib.import_module("benchmarks.merge_peers")
        holds = importlib.import_module("benchmarks.__main__").holds
        yield


EXPECTED = np.random.default_rng(0).standard_normal(ENTRIES)


def dropped(seed: int, *, density: float = 0.5, scale: float | None = None) -> np.ndarray:
    """An update of which chance keeps a share, enlarged to make up for it."""
    kept = np.random.default_rng(seed).random(ENTRIES) < density
    return EXPECTED * kept * (1 / density if scale is None else scale)


def apart(mine: np.ndarray, other: np.ndarray) -> float:
    return float(merge_peers.deviations(*merge_peers.draw_statistics(mine, other, EXPECTED)).max())


def test_equal_draws_pass_and_other_shares_scales_or_directions_do_not():
    assert all(apart(dropped(seed), dropped(100 + seed)) < merge_peers.SIGMA for seed in range(20))
    assert apart(dropped(1), dropped(1)) == 0
    for wrong in (
        dropped(2, density=0.55),
        dropped(2, scale=1.0),
        dropped(2, scale=2.2),
        -dropped(2),
        EXPECTED,
        np.zeros(ENTRIES),
    ):
        assert apart(wrong, dropped(1)) > merge_peers.SIGMA


@pytest.mark.parametrize("spoilt", ["", "density", "weight"])
def test_the_row_of_a_random_recipe_can_be_missed(spoilt: str, models: Path, tmp_path: Path):
    """Another seed of ours stands for the other program."""
    text = (merge_peers.RECIPES / "dare-linear.yaml").read_text()
    given = {"density": text.replace("0.5", "0.6"), "weight": text.replace("0.6", "0.9")}.get(spoilt, text)
    merge(given, seed=5).save(tmp_path / "theirs" / "dare-linear")
    row = merge_peers._row(merge(text), "dare-linear", tmp_path)
    assert holds(row) == ("NO" if spoilt else "yes"), row


def test_only_what_precision_decides_is_explained_in_arcee_fusion(models: Path, tmp_path: Path):
    text = (merge_peers.RECIPES / "arcee-fusion.yaml").read_text()
    result = plan(text)
    name = "transformer.h.0.mlp.c_fc.weight"
    step = next(step for step in result.steps if step.name == name)  # type: ignore[union-attr]
    differs = merge_peers._decided_by_precision(result, step)  # type: ignore[arg-type]
    assert differs.shape == step.shape
    assert 0 < differs.mean() < 0.2
    merge(text).save(tmp_path / "theirs" / "arcee-fusion")
    assert holds(merge_peers._row(merge(text), "arcee-fusion", tmp_path)) == "yes"
    with checkpoints.open("gpt2-base") as base:
        untouched = np.array(base.read(name))  # as if nothing had been fused
    _overwrite(tmp_path / "theirs" / "arcee-fusion", name, untouched)
    shutil.rmtree(tmp_path / "ours")
    assert holds(merge_peers._row(merge(text), "arcee-fusion", tmp_path)) == "NO"


def test_no_tensor_may_be_left_out_but_the_known_one(models: Path, tmp_path: Path):
    text = (merge_peers.RECIPES / "modules.yaml").read_text()
    for names in (["shared.weight"], ["shared.weight", "decoder.final_layer_norm.weight"], []):
        merge(text).save(tmp_path / "theirs" / "modules", force=True)
        _leave_out(tmp_path / "theirs" / "modules", names)
        row = merge_peers._row(merge(text), "modules", tmp_path)
        assert holds(row) == ("yes" if names == ["shared.weight"] else "NO"), names
        shutil.rmtree(tmp_path / "ours")


def _leave_out(folder: Path, names: list[str]) -> None:
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(file).items() if name not in names}
    save_file(kept, file, metadata={"format": "pt"})


def _overwrite(folder: Path, name: str, values: Any) -> None:
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    save_file({**load_file(file), name: torch.from_numpy(values)}, file, metadata={"format": "pt"})


def test_a_recipe_that_mergekit_cannot_do_is_a_miss_unless_it_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "odd.error").write_text("Traceback …\nValueError: no", encoding="utf-8")
    merged: Any = SimpleNamespace()
    assert holds(merge_peers._row(merged, "odd", tmp_path)) == "NO"
    monkeypatch.setitem(merge_peers.FAILING, "odd", "it has no such method")
    row = merge_peers._row(merged, "odd", tmp_path)
    assert (holds(row), row["name"]) == ("", "odd: mergekit fails (ValueError: no); it has no such method")
