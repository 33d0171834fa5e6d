"""What every method of a recipe keeps to, and how methods are found."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transship.registry import build_method, method_class, method_names
from transship.verbs.merge.maths import operands as operands_module
from transship.verbs.merge.maths.operands import Operands
from transship.verbs.merge.protocol import (
    LearnedMethod,
    RecipeMethod,
    continual_method,
    recipe_method,
    recipe_methods,
)

Make = Callable[..., Operands]
SHAPE = (7, 12)


def gaussian(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def merged(name: str, given: Operands, **fields: Any) -> np.ndarray:
    method = build_method("merge", name, fields)
    parts = [np.array(part) for part in method.merge(given)]
    return np.concatenate(parts).reshape(given.shape)


# those that learn from data first have their own tests
PLAIN = [name for name in recipe_methods() if not issubclass(recipe_method(name) or object, LearnedMethod)]


@pytest.mark.parametrize("name", PLAIN)
def test_every_method_keeps_the_contract(operands: Make, name: str):
    """Float32 out, shape kept, inputs untouched, equal models give that model, parts do not matter."""
    kind = method_class("merge", name.replace("_", "-"))
    assert issubclass(kind, RecipeMethod)
    base = gaussian(*SHAPE, seed=0)
    count = max(kind.least, min(2, kind.most or 2))
    models = [base + 0.1 * gaussian(*SHAPE, seed=5) for _ in range(count)]
    values = {field: getattr(kind(), field) for field in kind.per_model}
    if "weight" in values:
        values["weight"] = 1.0 if kind.base != "required" else 1.0 / count
    given = operands(models, base if kind.base != "input" else None, **values)
    before = [model.copy() for model in models]
    fields = {"t": 1.0} if "t" in kind.__dataclass_fields__ else {}
    result = merged(name.replace("_", "-"), given, **fields)
    assert result.dtype == np.float32
    for model, copy in zip(models, before, strict=True):
        np.testing.assert_array_equal(model, copy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operands_module, "CHUNK", 24)
        np.testing.assert_allclose(
            merged(name.replace("_", "-"), given, **fields), result, rtol=1e-5, atol=1e-6
        )
    # these keep a part of the base by design, or sum, or want different models
    if name not in ("arcee_fusion", "ram", "ramplus_tl", "tsvm"):
        np.testing.assert_allclose(result, models[0], atol=2e-5)


def peak(make: Make, name: str, rows: int) -> int:
    """Return the most bytes that a method allocates for one tensor of so many rows, of ten parts and more."""
    kind = recipe_method(name)
    assert kind is not None
    count = max(kind.least, min(2, kind.most or 2))
    values = {field: getattr(kind(), field) for field in kind.per_model}
    values |= {key: 0.5 for key in ("weight", "density") if key in values}
    models = [gaussian(rows, 1024, seed=seed) for seed in range(count + 1)]
    given = make(models[1:], models[0] if kind.base != "input" else None, **values)
    method = kind(**{key: 0.5 for key in ("select_topk", "t") if key in kind.__dataclass_fields__})
    tracemalloc.start()
    try:
        for _ in method.merge(dataclasses.replace(given, survey=method.survey(lambda: iter((given,))))):
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# the decomposition of tsvm is torch's, which allocates by itself
@pytest.mark.parametrize("name", [name for name in PLAIN if name != "tsvm"])
def test_a_method_holds_as_many_copies_of_a_tensor_as_the_plan_says(
    operands: Make, name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(operands_module, "CHUNK", 1 << 14)
    kind = recipe_method(name)
    assert kind is not None
    small, large = (peak(operands, name, rows) for rows in (256, 768))
    copies = (large - small) / (4 * 512 * 1024)
    assert copies <= kind.whole + 0.1, f"{copies:.2f} copies, and the plan counts {kind.whole}"


WITH_BASE = [name for name in PLAIN if method_class("merge", name.replace("_", "-")).base == "required"]


@pytest.mark.parametrize("name", WITH_BASE)
def test_a_model_equal_to_the_base_changes_nothing(operands: Make, name: str):
    kind = method_class("merge", name.replace("_", "-"))
    base = gaussian(*SHAPE, seed=0)
    values = {field: getattr(kind(), field) for field in kind.per_model}
    given = operands([base] * kind.least, base, **values)
    np.testing.assert_allclose(merged(name.replace("_", "-"), given), base, atol=1e-6)


def test_facets_are_read_from_the_class_and_only_the_asked_method_is_imported_without_torch():
    assert {"linear", "della", "regmean", "regmean++", "tsvm", "otmf"} <= set(recipe_methods())
    assert {"average", "opcm", "base"}.isdisjoint(recipe_methods())
    assert recipe_method("regmean++") is recipe_method("regmean-plus-plus")
    assert recipe_method("dare-ties") is recipe_method("dare_ties")
    assert recipe_method("_updates") is None
    code = (
        "import sys; from transship.verbs.merge.protocol import recipe_method\n"
        "assert recipe_method('ties') and recipe_method('tsvm')\n"
        "loaded = [name for name in sys.modules if name.startswith('transship.verbs.merge')]\n"
        "print('torch' in sys.modules, any(name.endswith('.fisher') for name in loaded))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False"]


FREE = [
    name
    for name in method_names("merge", facet="add")
    if not continual_method(name).needs_data and not isinstance(continual_method(name), LearnedMethod)
]


@pytest.mark.parametrize("name", FREE)
def test_a_method_changes_neither_its_state_nor_the_update(name: str, arrivals: Any):
    method = continual_method(name)
    state = method.first(arrivals.step(1, 1))
    before = {group: {key: value.clone() for key, value in vector.items()} for group, vector in state.items()}
    arriving = arrivals.step(2, 2)
    method.add(state, arriving)
    for group, vector in before.items():
        for key, value in vector.items():
            assert np.array_equal(state[group][key].numpy(), value.numpy())
    assert np.array_equal(arrivals.flat(dict(arriving.update)), arrivals.flat(arrivals.update(2)))


@pytest.mark.parametrize("name", method_names("merge"))
def test_every_method_has_a_file_of_tests(name: str):
    assert (Path(__file__).parent / f"test_{name.replace('-', '_')}.py").is_file()
