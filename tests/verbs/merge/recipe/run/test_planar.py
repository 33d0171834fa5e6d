"""Entries in pairs: the same bytes as one by one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given as given_values
from hypothesis import strategies as st

from transship.checkpoints import narrow
from transship.errors import NumericalError
from transship.verbs.merge.api import merge
from transship.verbs.merge.recipe.run import tensors
from transship.verbs.merge.recipe.run.planar import interleaved

# every float32, with midpoints between two bfloat16 among them
patterns = st.one_of(
    st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1).map(lambda high: high << 16 | 0x8000)
)


@given_values(st.lists(patterns, min_size=1, max_size=20).map(lambda found: found + found))
def test_pairs_are_rounded_as_single_entries_are(found: list[int]):
    values = np.array(found, np.uint32).view(np.float32)
    half = values.size // 2
    in_order = np.stack([values[:half], values[half:]], axis=1).reshape(-1)
    (result,) = interleaved(iter([values.copy()]))
    if isinstance(result, np.ndarray):  # left to the writer, which refuses it
        assert not (np.abs(values) < 3e38).all()
    else:
        np.testing.assert_array_equal(np.frombuffer(result, np.uint16), narrow(in_order, "bfloat16"))


@pytest.mark.parametrize("method", ["linear", "task_arithmetic", "nearswap", "ram"])
@pytest.mark.parametrize("shape", [(400, 400), (5, 4), (3, 3), (7,)])
def test_a_merge_in_pairs_has_the_same_bytes(
    method: str,
    shape: tuple[int, ...],
    safetensors_models: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
):
    random = np.random.default_rng(0)
    base = random.standard_normal(shape).astype(np.float32)
    for name in ("base", "a"):
        noise = 0.01 * random.standard_normal(shape).astype(np.float32)
        safetensors_models(name, {"x.weight": base + noise}, "bfloat16")
    recipe: dict[str, Any] = {"merge_method": method, "base_model": "base", "models": [{"model": "a"}]}
    given = {"linear": {"weight": 0.3}, "task_arithmetic": {"weight": 0.3}, "nearswap": {"t": 0.005}}
    recipe["parameters"] = given.get(method, {})
    in_pairs = merge(recipe).tensor("x.weight")
    monkeypatch.setattr(tensors, "planar_operands", lambda *arguments: None)
    np.testing.assert_array_equal(in_pairs, merge(recipe).tensor("x.weight"))


def test_a_nan_among_pairs_is_found(safetensors_models: Callable[..., None], tmp_path: Path):
    for name in "ab":
        safetensors_models(name, {"x.weight": np.ones((4, 4), np.float32)}, "bfloat16")
    path = Path("b/model.safetensors")
    data = bytearray(path.read_bytes())
    data[-4:] = np.array([0x7FC0, 0x3F80], np.uint16).tobytes()
    path.write_bytes(data)
    recipe = {
        "merge_method": "linear",
        "models": [{"model": "a"}, {"model": "b"}],
        "parameters": {"weight": 1},
    }
    with pytest.raises(
        NumericalError, match=r"b: tensor 'x\.weight' holds a NaN or an infinity at element 14"
    ):
        merge(recipe).save(tmp_path / "out")
    assert not (tmp_path / "out").exists()
