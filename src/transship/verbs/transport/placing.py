"""Where a carried head goes: into the target's own last Linear, into the class of transformers that holds
such a head, or into files beside a model that no class holds with a head.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from safetensors.torch import save
from torch import Tensor, nn

from transship.activations import LoadedModel, body_of, parameter_names
from transship.activations.readout import Readout
from transship.checkpoints.card import as_json
from transship.checkpoints.write import TensorPlan
from transship.verbs.transport.heads import CarriedHead
from transship.verbs.transport.models import Participant

# what a class with a head says in its config, apart from its labels
_SAID = ("classifier_pooling", "pad_token_id", "problem_type")


def copy_of(target: Participant, *, headed: bool) -> tuple[nn.Module, nn.Module]:
    """Return a copy of the target, in its place where it gets a head, and the body in it whose parameters
    move.
    """
    if not headed or target.place is None:
        module = copy.deepcopy(target.model.model)
        return module, module
    module = copy.deepcopy(target.place.model)
    return module, body_of(module)


def install(module: nn.Module, target: Participant, head: CarriedHead) -> None:
    """Put a carried head into the last Linear of a copy, where it has one."""
    site = Readout(target.reading).head
    if site is None:
        return
    linear = module.get_submodule(site.path)
    assert isinstance(linear, nn.Linear)
    linear.weight = nn.Parameter(head.weight.to(linear.weight))
    if linear.bias is not None:
        linear.bias = nn.Parameter(head.bias.to(linear.weight))
    linear.out_features = head.weight.shape[0]
    config = getattr(module, "config", None)
    if config is not None and head.label_names and len(head.label_names) == linear.out_features:
        config.id2label = dict(enumerate(head.label_names))
        config.label2id = {name: number for number, name in enumerate(head.label_names)}


def plans_with(
    target: Participant, plans: list[TensorPlan], head: CarriedHead
) -> tuple[list[TensorPlan], dict[str, Any], dict[str, str | bytes]]:
    """Return the tensors, the config and the further files of the target with the head."""
    assert target.checkpoint is not None
    config = dict(target.checkpoint.config)
    if target.place is not None:
        placed = _relabelled(config, head, target.place.model)
        return list(_placed(target, target.place, plans, head)), placed, {}
    readout, names = Readout(target.model), parameter_names(target.model, target.checkpoint)
    if readout.head is None or readout.head.weight not in names:  # a bare model, or a zero-shot head
        return plans, config, beside(target, head)
    values = {names[readout.head.weight]: head.weight}
    if readout.head.bias is not None:
        values[names[readout.head.bias]] = head.bias
    replaced = [
        plan._replace(shape=tuple(values[plan.name].shape), producer=_keeping(values[plan.name]))
        if plan.name in values
        else plan
        for plan in plans
    ]
    return replaced, _relabelled(config, head), {}


def beside(target: Participant, head: CarriedHead) -> dict[str, str | bytes]:
    """Return the files of a head that no class holds on the target."""
    about = {"task": head.task, "labels": list(head.label_names), "pooling": _pooling(target)}
    return {
        "head.safetensors": save({"weight": head.weight, "bias": head.bias}),
        "head.json": as_json(about),
    }


def how_to_load(target: Participant, head: CarriedHead | None) -> list[str]:
    """Return why a head stands beside its model, with the three lines that load it; of a head in a class that
    pools otherwise than the target does, that.
    """
    if head is not None and target.place is not None:
        return _other_pooling(target, target.place)
    if head is None or not target.no_place or target.model.config is None:
        return []
    return [
        f"the head is in head.safetensors beside the model, because {target.no_place}; to answer with it:",
        f'`body = {type(target.model.model).__name__}.from_pretrained("OUT")`',
        '`head = safetensors.torch.load_file("OUT/head.safetensors")`',
        f'`outputs = features @ head["weight"].T + head["bias"]`, where features are {_features(target)}',
    ]


def _other_pooling(target: Participant, place: LoadedModel) -> list[str]:
    pools = target.model.kind == "text" and Readout(target.model).pooling == "mean"
    if not pools or _per_token(place) or hasattr(place.config, "classifier_pooling"):
        return []
    return [
        f"its head reads what {type(place.model).__name__} does, the first token, and not the mean of all"
    ]


def _per_token(place: LoadedModel) -> bool:
    return Readout(place).answers == "tokens"


def _features(target: Participant) -> str:
    return {
        "cls": "`body(**inputs)[0][:, 0]`",
        "mean": "the mean of `body(**inputs)[0]` over the tokens that are no padding",
        "last": "`body(**inputs)[0]` at the last token that is no padding",
    }.get(_pooling(target), "the image embeddings, at unit length")


def _pooling(target: Participant) -> str:
    readout = Readout(target.model)
    return readout.pooling if readout.head is None else "image embedding, unit length"


def _placed(
    target: Participant, place: LoadedModel, plans: list[TensorPlan], head: CarriedHead
) -> Iterator[TensorPlan]:
    """Yield the tensors that the class has, named as it reads them, and those of its head."""
    assert target.checkpoint is not None
    prefix = f"{place.model.base_model_prefix}."
    inside = {name for name, _ in place.model.named_parameters(remove_duplicate=False)}
    stored = parameter_names(target.model, target.checkpoint)
    held = {tensor for name, tensor in stored.items() if prefix + name in inside}
    dropped = ({*stored.values()} - held) | set(target.model.unused)
    named = any(plan.name.startswith(prefix) for plan in plans)
    dtype = next(plan.dtype for plan in plans if plan.name in held and len(plan.shape) > 1)
    for plan in plans:
        if plan.name not in dropped:
            yield plan if named else plan._replace(name=prefix + plan.name)
    linear = Readout(place).head
    assert linear is not None
    values = {linear.weight: head.weight, linear.bias: head.bias}
    for name, parameter in place.model.named_parameters():
        if name.removeprefix(prefix) not in stored:
            value = values.get(name, parameter.detach().cpu())
            yield TensorPlan(name, tuple(value.shape), dtype, _keeping(value))


def _relabelled(config: dict[str, Any], head: CarriedHead, model: nn.Module | None = None) -> dict[str, Any]:
    """Return a config with the head's labels, and the class that holds it where that is another."""
    outputs = head.weight.shape[0]
    names = (
        head.label_names
        if len(head.label_names) == outputs
        else [f"LABEL_{number}" for number in range(outputs)]
    )
    relabelled = {
        **config,
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }
    if "num_labels" in config:
        relabelled["num_labels"] = outputs
    if model is not None:
        options = {name: getattr(model.config, name, None) for name in _SAID}
        relabelled |= {name: value for name, value in options.items() if value is not None}
        relabelled["architectures"] = [type(model).__name__]
    return relabelled


def _keeping(value: Tensor) -> Callable[[], Tensor]:
    return lambda: value
