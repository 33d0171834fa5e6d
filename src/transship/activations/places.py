"""A place for a head: the class of transformers that holds a task's head on a bare model.

The class is built around the bare model's own modules, so that it has their weights and follows their
changes. Its last Linear is a blank. New layers before it (a pooler, a dense layer with an activation) pass
features on: a Linear that is a small multiple of I stays where tanh, GELU and SiLU are nearly straight, and a
rectifier gets a shift that keeps features above zero. A head is then fitted on what the class itself hands
its last Linear, so that what `from_pretrained` opens answers as the head was fitted.
"""

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from transship.activations.loading import quiet
from transship.activations.models import LoadedModel
from transship.activations.readout import Readout, Task
from transship.activations.sites import Tap, watching
from transship.errors import TransshipError

# Of new Linears: tanh(x/64) takes half a percent of a feature of size 8. A power of two rounds nothing.
SCALE = 1 / 64
# A share of features that are zero: an activation cut them off.
_RECTIFIED = 0.2
_AUTO = {
    ("tokens", "text"): "AutoModelForTokenClassification",
    ("classes", "text"): "AutoModelForSequenceClassification",
    ("values", "text"): "AutoModelForSequenceClassification",
    ("classes", "vision"): "AutoModelForImageClassification",
}


def with_place(
    bare: LoadedModel, task: Task, width: int, names: Sequence[str], inputs: Sequence[Any]
) -> LoadedModel | str:
    """Return the bare model in the class that can hold a head of its task, blank; or why no class can.

    Args:
        bare: a model without a head; its modules and weights are shared.
        task: of the head's outputs.
        width: how many outputs there are.
        names: of classes, where they have names.
        inputs: a few raw inputs, which show that the class runs.
    """
    kind = _class_for(bare, task)
    if isinstance(kind, str):
        return kind
    title = kind.__name__
    config = _config(bare, title, task, width, names)
    try:
        with quiet(), torch.device("meta"):
            model: nn.Module = kind(config)
        _share(model, bare.model)
        place = dataclasses.replace(bare, model=model.eval(), config=config, blank=True)
        head = Readout(place).head
        if head is None or head.out_width != width:
            return f"{title} ends in no linear layer"
        _fill(model, head.path, bare.device)
        _settle(place, head.path, inputs)
    except (TransshipError, RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        return f"{title} cannot be built on it ({' '.join(str(error).split())[:120]})"
    return place


def body_of(place: nn.Module) -> nn.Module:
    """Return the bare model inside a headed one."""
    body: nn.Module = getattr(place, str(place.base_model_prefix))
    return body


def _class_for(bare: LoadedModel, task: Task) -> Any:
    """Return the class of transformers, or why there is none."""
    import transformers  # start-up

    model = bare.model
    if not isinstance(model, transformers.PreTrainedModel) or bare.config is None:
        return f"{type(model).__name__} is no model of transformers"
    if any(parameter.is_meta for parameter in model.parameters()):
        return "a part of it rests on disk"
    auto = getattr(transformers, _AUTO.get((task, bare.kind), ""), None)
    if auto is None:
        return f"transformers has no pipeline from {bare.kind} to {task}"
    if type(bare.config) not in auto._model_mapping:
        return f"transformers has no {auto.__name__.removeprefix('AutoModel')} for {type(model).__name__}"
    kind = auto._model_mapping[type(bare.config)]
    return kind[0] if isinstance(kind, tuple) else kind


def _config(bare: LoadedModel, title: str, task: Task, width: int, names: Sequence[str]) -> Any:
    """Return the bare model's config with the head's labels, and the pooling that is nearest to its own."""
    config = copy.deepcopy(bare.config)
    labels = list(names) if len(names) == width else [f"LABEL_{number}" for number in range(width)]
    config.architectures = [title]
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: number for number, label in enumerate(labels)}
    if task == "values":
        config.problem_type = "regression"
    if hasattr(config, "classifier_pooling"):
        config.classifier_pooling = "mean" if Readout(bare).pooling == "mean" else "cls"
    if getattr(config, "pad_token_id", None) is None and bare.tokenizer is not None:
        config.pad_token_id = bare.tokenizer.pad_token_id
    return config


def _share(model: nn.Module, bare: nn.Module) -> None:
    """Put the bare model's modules and parameters into the headed one."""
    body = body_of(model)
    for name, child in bare.named_children():
        if isinstance(getattr(body, name, None), nn.Module):
            setattr(body, name, child)
    for name, parameter in bare.named_parameters(recurse=False):
        if getattr(body, name, None) is not None:
            setattr(body, name, parameter)
    for name, buffer in bare.named_buffers(recurse=False):
        if getattr(body, name, None) is not None:
            setattr(body, name, buffer)


def _new(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that the bare model did not have."""
    for path, module in model.named_modules():
        if any(parameter.is_meta for parameter in module.parameters(recurse=False)):
            yield path, module


def _fill(model: nn.Module, head: str, device: torch.device) -> None:
    """Give new layers their values: zero for the head, and what passes features on before it."""
    dtype = next(parameter.dtype for parameter in model.parameters() if not parameter.is_meta)
    for path, module in list(_new(model)):
        module.to_empty(device=device, recurse=False).to(dtype)
        with torch.no_grad():
            for name, parameter in module.named_parameters(recurse=False):
                parameter.copy_(_value(parameter, module, path, name, head))


def _value(parameter: Tensor, module: nn.Module, path: str, name: str, head: str) -> Tensor:
    if path == head or name == "bias":
        return torch.zeros_like(parameter)
    if isinstance(module, nn.Linear) and parameter.shape[0] == parameter.shape[1]:
        return SCALE * torch.eye(len(parameter), dtype=parameter.dtype, device=parameter.device)
    if "norm" in type(module).__name__.lower() and parameter.ndim == 1:
        return torch.ones_like(parameter)
    raise ValueError(f"its {path}.{name} is new and has no neutral value")


def _settle(place: LoadedModel, head: str, inputs: Sequence[Any]) -> None:
    """Run it once; where an activation cuts features off, shift them so that it no longer does."""
    readout, batch = Readout(place), place.preprocess(inputs)
    linears = [
        (path, module)
        for path, module in place.model.named_modules()
        if isinstance(module, nn.Linear) and path != head and _passes_on(module)
    ]
    arriving: dict[str, Tensor] = {}

    def keep(tap: Tap, tensor: Tensor) -> None:
        arriving[tap.path] = tensor.detach().flatten(0, -2)

    with torch.no_grad():
        with watching(place.model, [Tap(path, "input") for path, _ in linears], keep):
            features = readout(batch).features
        if not bool(torch.isfinite(features).all()):
            raise ValueError("its features are not finite")
        if float((features == 0).double().mean()) < _RECTIFIED:
            return
        for path, module in linears:
            if module.bias is not None and path in arriving:
                module.weight.mul_(1 / SCALE)
                module.bias.copy_(2 * arriving[path].abs().amax(0))


def _passes_on(linear: nn.Linear) -> bool:
    weight = linear.weight
    if weight.shape[0] != weight.shape[1]:
        return False
    return torch.equal(weight, SCALE * torch.eye(len(weight), dtype=weight.dtype, device=weight.device))
