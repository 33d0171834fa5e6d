"""What the merge tests share: small checkpoints of four families, and operands made of plain arrays."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transship.verbs.merge.maths.operands import Operands

HERE = Path(__file__).parent


def layered(
    seed: int, layers: int = 2, width: int = 6, noise_of: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A toy of numbered layers; with `noise_of`, a fine-tune of it."""
    random = np.random.default_rng(seed)
    shapes = {"embed.weight": (9, width), "norm.weight": (width,)}
    shapes |= {f"layers.{n}.{part}.weight": (width, width) for n in range(layers) for part in ("attn", "mlp")}
    if noise_of is not None:
        return {
            name: (array + 0.1 * random.standard_normal(array.shape)).astype(np.float32)
            for name, array in noise_of.items()
        }
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture(scope="session")
def small_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = importlib.util.spec_from_file_location("small_models", HERE / "small_models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("models")
    module.make(folder)
    return folder


@pytest.fixture
def models(small_models: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of small models, which is also the working folder: recipes name them by it."""
    monkeypatch.chdir(small_models)
    return small_models


@pytest.fixture
def operands() -> Callable[..., Operands]:
    def make(
        models: Sequence[Any], base: Any = None, *, name: str = "tensor", seed: int = 0, **values: Any
    ) -> Operands:
        flat = [np.ascontiguousarray(model, np.float32).reshape(-1) for model in models]
        origin = None if base is None else np.ascontiguousarray(base, np.float32).reshape(-1)
        filled = {
            key: value if isinstance(value, list) else [value] * len(flat) for key, value in values.items()
        }
        return Operands(
            name=name,
            shape=np.asarray(models[0]).shape,
            models=[lambda start, stop, array=array: array[start:stop] for array in flat],
            base=None if origin is None else lambda start, stop: origin[start:stop],
            values=filled,
            labels=[f"model-{number}" for number in range(len(flat))],
            seed=seed,
        )

    return make


@pytest.fixture
def safetensors_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A maker of checkpoints from plain arrays, in the working folder: no model library is needed."""
    from transship.checkpoints.write import TensorPlan, write_checkpoint

    monkeypatch.chdir(tmp_path)

    def make(name: str, arrays: dict[str, Any], dtype: str = "float32", **config: Any) -> None:
        plans = [
            TensorPlan(
                key, array.shape, dtype if array.dtype.kind == "f" else str(array.dtype), lambda a=array: a
            )
            for key, array in arrays.items()
        ]
        write_checkpoint(
            tmp_path / name, plans, config={"model_type": "toy", **config}, force=True, sync=False
        )

    return make


@pytest.fixture(name="layered")
def layered_fixture() -> Callable[..., dict[str, Any]]:
    return layered


@pytest.fixture
def toys(safetensors_models: Callable[..., None]) -> Callable[..., None]:
    """base, a, b: two layers, in the working folder."""
    base = layered(0)
    safetensors_models("base", base, num_hidden_layers=2)
    for seed, name in enumerate("ab", 1):
        safetensors_models(name, layered(seed, noise_of=base), num_hidden_layers=2)
    return safetensors_models
