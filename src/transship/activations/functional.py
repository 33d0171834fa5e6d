"""A model as a function of its parameters: one module, many sets of weights, no copy of either."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from transship.activations.models import Batch, LoadedModel
from transship.activations.readout import Reading, Readout, pooled_states
from transship.activations.sentences import Pooling, sentence_encoder_settings

# (module, batch) → one row per input
Features = Callable[[nn.Module, Any], Tensor]
Read = TypeVar("Read")


class FunctionalModel:
    """Runs a loaded model with given parameters, through `torch.func.functional_call`.

    Features are what enters the model's last Linear where it has a head with one output row per input;
    otherwise the pooled states of the last encoder layer: a two-tower model's embedding, the mean of a T5
    encoder, the last token of a causal model, what a sentence encoder's own files say. A tensor that several
    modules share is one parameter.

    Attributes:
        loaded: the model; its own weights are never changed.
        features: replaces all that, for modules of the user's own: (module, batch) → [inputs, width].
    """

    def __init__(self, loaded: LoadedModel, features: Features | None = None) -> None:
        self.loaded = loaded
        self.features = features

    @property
    def module(self) -> nn.Module:
        return self.loaded.model

    @cached_property
    def readout(self) -> Readout:
        return Readout(self.loaded)

    @cached_property
    def per_input(self) -> bool:
        """Whether the model has a head that gives one row of outputs per input."""
        return self.features is None and self.readout.task in ("classes", "values")

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """The model's own floating-point parameters by name, detached, tied ones once."""
        return {
            name: tensor.detach()
            for name, tensor in self.module.named_parameters()
            if tensor.is_floating_point()
        }

    @cached_property
    def matrices(self) -> dict[str, str]:
        """Weight of a linear map → path of its module; head and projections included, embeddings not."""
        paths = {}
        for path, module in self.module.named_modules():
            weight = getattr(module, "weight", None)
            if (
                isinstance(weight, nn.Parameter)
                and weight.ndim == 2
                and not isinstance(module, nn.Embedding | nn.EmbeddingBag)
            ):
                paths[f"{path}.weight" if path else "weight"] = path
        return {name: path for name, path in paths.items() if name in self.parameters}

    def __call__(self, parameters: Mapping[str, Tensor], batch: Any) -> Reading:
        """Return features and outputs with `parameters` in place of the model's own; others stay.

        Differentiable in `parameters` where gradients are enabled.
        """
        return run_with(self.module, parameters, self._read, batch)

    def _read(self, batch: Any) -> Reading:
        if self.features is not None:
            return Reading(self.features(self.module, batch), None)
        if self.per_input:
            return self.readout(batch)
        return Reading(pooled_states(self.loaded, batch, self._pooling), None)

    @cached_property
    def _pooling(self) -> Pooling | None:
        return sentence_encoder_settings(self.loaded.folder)[0]


def run_with(
    module: nn.Module, parameters: Mapping[str, Tensor], read: Callable[[Any], Read], batch: Any
) -> Read:
    """Return what `read`, which runs `module`, makes of a batch with `parameters` in place of its own."""
    own = {name: tensor for name, tensor in module.named_parameters() if name in parameters}
    named = {
        f"model.{name}": _beside(tensor, own[name]) if name in own else tensor
        for name, tensor in parameters.items()
    }
    # made anew: a runner that stayed would hold what it runs and be held by it, and outlive its use
    reading: Read = torch.func.functional_call(_Runner(module, read), named, (batch,))
    return reading


def _beside(tensor: Tensor, own: Tensor) -> Tensor:
    """Return weights as the model runs: on its device, and in its half precision where it has one."""
    return tensor.to(own.device, own.dtype if own.dtype.itemsize == 2 else tensor.dtype)


class _Runner(nn.Module):
    """Calls a function of its own while functional_call has its submodule's weights exchanged."""

    def __init__(self, model: nn.Module, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.model = model
        self._read = read

    def forward(self, batch: Batch) -> Any:
        return self._read(batch)
