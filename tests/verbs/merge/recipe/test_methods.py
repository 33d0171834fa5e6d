"""Every method by recipe: the runner hands it each tensor as the formula has it, and stores what it gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from transship import checkpoints
from transship.verbs.merge.api import merge
from transship.verbs.merge.maths.operands import Operands
from transship.verbs.merge.protocol import LearnedMethod, RecipeMethod, recipe_method, recipe_methods

Make = Callable[..., Any]
PLAIN = [name for name in recipe_methods() if not issubclass(recipe_method(name) or object, LearnedMethod)]
# a value for each model where a method takes several, and one where it has one for all
PER_MODEL = {"weight": [0.7, 0.4], "density": [0.6, 0.8], "epsilon": [0.1, 0.15], "gamma": [0.1, 0.05]}
SHARED = {"t": 0.01, "select_topk": 0.4, "scale": 0.5}


def given(kind: type[RecipeMethod]) -> tuple[list[str], dict[str, list[Any]], dict[str, Any]]:
    """Return the models, the parameters of each model and the shared ones of a method's recipe."""
    names = ["a", "b"][: kind.most or 2]
    per_model = {
        name: PER_MODEL.get(name, [SHARED.get(name)] * 2)[: len(names)]
        for name in kind.per_model
        if name in PER_MODEL or name in SHARED
    }
    shared = {
        name: value
        for name, value in SHARED.items()
        if name in kind.__dataclass_fields__ and name not in kind.per_model
    }
    return names, per_model, shared


@pytest.mark.parametrize("method", PLAIN)
def test_a_recipe_gives_every_tensor_what_the_method_gives(
    method: str, toys: Make, operands: Callable[..., Operands], tmp_path: Path
):
    kind = recipe_method(method)
    assert kind is not None
    names, per_model, shared = given(kind)
    base = None if kind.base == "input" else "base"

    def spelt(parameters: dict[str, Any]) -> dict[str, Any]:
        return {kind.spelling.get(key, key): value for key, value in parameters.items()}

    models = [
        {"model": name, "parameters": spelt({key: values[place] for key, values in per_model.items()})}
        for place, name in enumerate(names)
    ]
    recipe = {"merge_method": method, "models": models, "parameters": spelt(shared), "seed": 5}
    out = merge(recipe | ({"base_model": base} if base else {})).save(tmp_path / "out")
    arrays = {name: load_file(f"{name}/model.safetensors") for name in ("a", "b", "base")}
    formula = kind(**shared)
    with checkpoints.open(out) as stored:
        assert set(stored.tensors) == set(arrays["a"])
        for tensor in stored.tensors:
            plain = operands(
                [arrays[name][tensor] for name in names],
                arrays[base][tensor] if base else None,
                name=tensor,
                seed=5,
                **{name: getattr(formula, name) for name in kind.per_model} | per_model,
            )
            labelled = Operands(**{**vars(plain), "labels": names})
            parts = [np.array(part) for part in formula.merge(labelled)]
            expected = np.concatenate(parts).reshape(plain.shape)
            np.testing.assert_array_equal(stored.read(tensor), expected, err_msg=tensor)
            assert method == "passthrough" or not np.array_equal(expected, arrays["a"][tensor])
