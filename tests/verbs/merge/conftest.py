"""What the merge tests share: small checkpoints of four families, plain operands, networks in memory."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from transship.verbs.merge.fusion.origin import ModuleOrigin
from transship.verbs.merge.joint import JointTask
from transship.verbs.merge.maths.operands import Operands

HERE = Path(__file__).parent
WIDTH, HIDDEN, INPUTS = 5, 7, 40  # of the network in memory


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


class Net(nn.Module):
    """Two layers of two maps that read the same tensor, one of them without a bias, and a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = layer(inputs)
        return inputs * self.scale


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(WIDTH, HIDDEN)
        self.right = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        value: Tensor = inputs + self.out(torch.tanh(self.left(inputs)) * torch.sigmoid(self.right(inputs)))
        return value


@pytest.fixture
def network() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def fine_tunes(network: Net) -> dict[str, dict[str, Tensor]]:
    """Three fine-tunes with heads of 2, 3 and 4 classes."""
    by_name = {}
    for number, name in enumerate(("a", "b", "c")):
        generator = torch.Generator().manual_seed(10 + number)
        state = {
            key: tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
            for key, tensor in network.state_dict().items()
        }
        state["head.weight"] = torch.randn(2 + number, WIDTH, generator=generator)
        state["head.bias"] = torch.randn(2 + number, generator=generator)
        by_name[name] = state
    return by_name


@pytest.fixture
def inputs() -> dict[str, Tensor]:
    """Inputs of each task, of different spread in every direction."""
    by_name = {}
    for number, name in enumerate(("a", "b", "c")):
        generator = torch.Generator().manual_seed(20 + number)
        spread = torch.rand(WIDTH, generator=generator) * 2 + 0.1
        by_name[name] = torch.randn(INPUTS, WIDTH, generator=generator) * spread + number
    return by_name


@pytest.fixture
def origin(network: Net) -> ModuleOrigin:
    return ModuleOrigin(network)


@pytest.fixture
def tasks(
    origin: ModuleOrigin, fine_tunes: dict[str, dict[str, Tensor]], inputs: dict[str, Tensor]
) -> dict[str, JointTask]:
    by_name = {}
    for name, state in fine_tunes.items():
        arrival = origin.admit(state, name)
        by_name[name] = JointTask(arrival.update, arrival.model.over(inputs[name]))
    return by_name


@pytest.fixture
def weights_of(fine_tunes: dict[str, dict[str, Tensor]]) -> Callable[[str], dict[str, Tensor]]:
    return lambda name: {key: value for key, value in fine_tunes[name].items() if not key.startswith("head.")}


class Toy:
    """An encoder in memory and three fine-tunes with label sets of their own."""

    def __init__(self, tasks: int = 3) -> None:
        torch.manual_seed(0)
        self.base = self._encoder()
        self.inputs = torch.randn(240, 10)
        self.tuned: list[dict[str, torch.Tensor]] = []
        self.labels: list[torch.Tensor] = []
        for number in range(tasks):
            self._tune(number)

    @staticmethod
    def _encoder() -> nn.Module:
        return nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 12))

    def _tune(self, number: int) -> None:
        generator = torch.Generator().manual_seed(100 + number)
        classes = 3 + number % 3
        labels = (self.inputs @ torch.randn(10, classes, generator=generator)).argmax(1)
        encoder, head = self._encoder(), nn.Linear(12, classes)
        encoder.load_state_dict(self.base.state_dict())
        leaves = [*encoder.parameters(), *head.parameters()]
        for _ in range(25):
            loss = nn.functional.cross_entropy(head(encoder(self.inputs[:160])), labels[:160])
            with torch.no_grad():
                for leaf, slope in zip(leaves, torch.autograd.grad(loss, leaves), strict=True):
                    leaf -= 0.1 * slope
        state = {name: tensor.detach() for name, tensor in encoder.state_dict().items()}
        self.tuned.append({**state, "head.weight": head.weight.detach(), "head.bias": head.bias.detach()})
        self.labels.append(labels)

    def join(self, fusion: Any, number: int, **more: Any) -> Any:
        """Let one fine-tune join, with its rows."""
        return fusion.add(
            self.tuned[number],
            self.inputs[:160],
            labels=self.labels[number][:160],
            test=(self.inputs[160:], self.labels[number][160:]),
            name=f"task-{number}",
            **more,
        )


@pytest.fixture(scope="session")
def toy() -> Toy:
    return Toy()
