"""A small network in memory and its fine-tunes, for the methods that run models."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from transship.verbs.merge.fusion.origin import ModuleOrigin
from transship.verbs.merge.joint import JointTask

WIDTH, HIDDEN, INPUTS = 5, 7, 40


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
        made: Tensor = inputs + self.out(torch.tanh(self.left(inputs)) * torch.sigmoid(self.right(inputs)))
        return made


@pytest.fixture
def network() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def fine_tunes(network: Net) -> dict[str, dict[str, Tensor]]:
    """Three fine-tunes with heads of 2, 3 and 4 classes."""
    found = {}
    for number, name in enumerate(("a", "b", "c")):
        generator = torch.Generator().manual_seed(10 + number)
        state = {
            key: tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
            for key, tensor in network.state_dict().items()
        }
        state["head.weight"] = torch.randn(2 + number, WIDTH, generator=generator)
        state["head.bias"] = torch.randn(2 + number, generator=generator)
        found[name] = state
    return found


@pytest.fixture
def inputs() -> dict[str, Tensor]:
    """Inputs of each task, of different spread in every direction."""
    found = {}
    for number, name in enumerate(("a", "b", "c")):
        generator = torch.Generator().manual_seed(20 + number)
        spread = torch.rand(WIDTH, generator=generator) * 2 + 0.1
        found[name] = torch.randn(INPUTS, WIDTH, generator=generator) * spread + number
    return found


@pytest.fixture
def origin(network: Net) -> ModuleOrigin:
    return ModuleOrigin(network)


@pytest.fixture
def tasks(
    origin: ModuleOrigin, fine_tunes: dict[str, dict[str, Tensor]], inputs: dict[str, Tensor]
) -> dict[str, JointTask]:
    found = {}
    for name, state in fine_tunes.items():
        arrival = origin.admit(state, name)
        found[name] = JointTask(arrival.update, arrival.model.over(inputs[name]))
    return found


@pytest.fixture
def weights_of(fine_tunes: dict[str, dict[str, Tensor]]) -> Callable[[str], dict[str, Tensor]]:
    return lambda name: {key: value for key, value in fine_tunes[name].items() if not key.startswith("head.")}


@pytest.fixture(scope="session")
def _picture_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ViT without a head, and two classifiers made of it: `shape` of 2 classes and `tone` of 3."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("pictures")
    sides = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2}
    torch.manual_seed(0)
    config = transformers.ViTConfig(image_size=8, patch_size=4, **sides)
    base = transformers.ViTModel(config, add_pooling_layer=False)
    base.save_pretrained(folder / "base")
    for number, name in enumerate(("shape", "tone")):
        task = copy.deepcopy(config)
        task.id2label = {place: f"{name}-{place}" for place in range(2 + number)}
        task.label2id = {label: place for place, label in task.id2label.items()}
        model = transformers.ViTForImageClassification(task)
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for key, tensor in base.named_parameters():
                spread = max(float(tensor.std(correction=0)), 0.02)
                noise = torch.randn(tensor.shape, generator=generator) * 0.3 * spread
                model.vit.get_parameter(key).copy_(tensor + noise)
            model.classifier.weight.copy_(torch.randn(2 + number, 16, generator=generator))
        model.save_pretrained(folder / name)
        random = np.random.default_rng(number)
        np.savez(
            folder / f"{name}.npz",
            inputs=random.standard_normal((24, 3, 8, 8)).astype(np.float32) + number,
            labels=np.arange(24) % (2 + number),
        )
    return folder


@pytest.fixture
def pictures(_picture_models: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the small classifiers, which is also the working folder."""
    monkeypatch.chdir(_picture_models)
    return _picture_models
