"""The documented recipes leave nothing of the language out, and every method runs on every family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from transship import checkpoints
from transship.verbs.merge.api import merge
from transship.verbs.merge.protocol import recipe_method

RECIPES = [yaml.safe_load(path.read_text()) for path in (Path(__file__).parent / "recipes").glob("*.yaml")]
METHODS = [
    *("linear", "slerp", "nuslerp", "multislerp", "karcher", "task_arithmetic", "ties", "dare_linear"),
    *("dare_ties", "della", "della_linear", "breadcrumbs", "breadcrumbs_ties", "sce", "ram", "model_stock"),
    *("nearswap", "arcee_fusion", "passthrough"),
]
LAYERS = {"llama": "model.layers", "gpt2": "transformer.h", "bert": "bert.encoder.layer"}


def test_the_documented_recipes_leave_nothing_out():
    assert len(RECIPES) >= 20
    assert {recipe["merge_method"] for recipe in RECIPES} >= set(METHODS)
    text = json.dumps(RECIPES)
    for part in ('"slices"', '"filter"', '"modules"', "+llama-lora", '"lora"', '"tokenizer_source": "union"'):
        assert part in text, part
    assert any(
        isinstance(value, list) and all(isinstance(each, int | float) for each in value)
        for recipe in RECIPES
        for model in recipe.get("models", ())
        for value in model.get("parameters", {}).values()
    )  # a gradient
    for family in LAYERS:
        assert f'"{family}-' in text, family


def given(method: str, family: str) -> dict[str, Any]:
    """Return a plain recipe: half of each model, with every parameter that the method wants."""
    kind = recipe_method(method)
    assert kind is not None
    parameters = dict.fromkeys(kind.required, 0.5)
    if "density" in kind.per_model and method != "task_arithmetic":
        parameters["density"] = 0.5
    fields = {
        "merge_method": method,
        "models": [{"model": f"{family}-{letter}"} for letter in "ab"[: kind.most or 2]],
        "parameters": parameters,
        "dtype": "float32",
    }
    return fields | ({} if kind.base == "input" else {"base_model": f"{family}-base"})


def loads(folder: Path) -> None:
    """Load with the users' library, and run."""
    import torch
    import transformers

    config = json.loads((folder / "config.json").read_text())
    kind = getattr(transformers, config["architectures"][0])
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    with torch.no_grad():
        assert torch.isfinite(model.eval()(input_ids=torch.arange(8)[None]).logits).all()


@pytest.mark.slow
@pytest.mark.parametrize("family", LAYERS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_on_every_family(method: str, family: str, models: Path, tmp_path: Path):
    out = merge(given(method, family)).save(tmp_path / "out")
    loads(out)
    with checkpoints.open(out) as checkpoint, checkpoints.open(f"{family}-a") as tuned:
        assert set(checkpoint.tensors) == set(tuned.tensors)


@pytest.mark.slow
@pytest.mark.parametrize("family", LAYERS)
def test_slices_gradients_and_filters_reach_the_layers_of_every_family(
    family: str, models: Path, tmp_path: Path
):
    """Layers 0 and 1 by a gradient, then layers 1 and 2 of the two models with other numbers."""
    weights = [[{"filter": "bias", "value": 0.5}, {"value": [0.25, 0.75]}], [{"value": 0.5}]]
    ranges = [([0, 2], [0, 2]), ([1, 2], [2, 3])]
    slices = [
        {
            "sources": [
                {"model": f"{family}-{letter}", "layer_range": layers, "parameters": {"weight": weight}}
                for letter, layers, weight in zip("ab", pair, weights, strict=True)
            ]
        }
        for pair in ranges
    ]
    recipe = {"merge_method": "linear", "slices": slices, "parameters": {"normalize": False}}
    out = merge({**recipe, "dtype": "float32"}).save(tmp_path / "out")
    loads(out)
    prefix = LAYERS[family]
    with (
        checkpoints.open(f"{family}-a") as a,
        checkpoints.open(f"{family}-b") as b,
        checkpoints.open(out) as checkpoint,
    ):
        # output layer → layer of each model, and the first one's weight there
        for layer, (first, second, share) in enumerate(((0, 0, 0.25), (1, 1, 0.75), (1, 2, 0.75))):
            start = f"{prefix}.{layer}."
            rests = [name.removeprefix(start) for name in checkpoint.tensors if name.startswith(start)]
            assert len(rests) > 5
            for rest in rests:
                array = a.read(f"{prefix}.{first}.{rest}").astype(np.float32)
                other = b.read(f"{prefix}.{second}.{rest}").astype(np.float32)
                weight = 0.5 if "bias" in rest else share
                np.testing.assert_allclose(
                    checkpoint.read(start + rest), weight * array + 0.5 * other, rtol=1e-5, atol=1e-6
                )
        assert not any(name.startswith(f"{prefix}.3.") for name in checkpoint.tensors)
