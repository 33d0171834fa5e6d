"""Where models come from: the base of a fusion and the fine-tunes that it admits, in memory or on disk.

The backbone is what a fine-tune shares with the base's headless model; all else of a fine-tune is its head.
The names are settled by the first fine-tune (a pooler that its class does not have, a tower that it does not
use, stay as in the base), and every later one must have them.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from transship.activations import FunctionalModel, load_model
from transship.activations.functional import Features
from transship.errors import CheckpointError, NumericalError
from transship.verbs.merge.fusion.task import TaskFiles
from transship.verbs.merge.maths.states import Vector, norm
from transship.verbs.merge.tasks.heads import LinearHead
from transship.verbs.merge.tasks.model import TaskModel

# A fine-tune moves its weights by a few percent; another model of the same shape lies at about √2.
STRANGER = 0.7


@dataclass(frozen=True, eq=False)
class FineTune:
    """A fine-tune that fits the base.

    Attributes:
        source: as the user gave it.
        fingerprint: of its weights.
        update: τ = θ − θ_0 of the backbone.
        model: how it runs.
        label_names: of its classes.
        files: what its folder holds beside the backbone; None in memory and without a head.
    """

    source: str
    fingerprint: str
    update: Vector
    model: TaskModel
    label_names: tuple[str, ...] = ()
    files: TaskFiles | None = None


class FusionOrigin(ABC):
    """The base of a fusion.

    Attributes:
        name: as the user gave it.
    """

    name: str

    @property
    @abstractmethod
    def weights(self) -> Vector:
        """All float32 weights of the base's model, by name."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash of the weights."""

    @abstractmethod
    def admit(self, tuned: Any, name: str, names: Sequence[str] = ()) -> FineTune:
        """Return the fine-tune as an update of this base, or refuse it in one sentence.

        Args:
            tuned: the fine-tune.
            name: what the task is called.
            names: the settled tensors; the first fine-tune settles them by those of its update.
        """

    def backbone(self, names: Iterable[str]) -> Vector:
        """Return θ_0: the settled tensors of the base, or all before any are settled."""
        weights = self.weights
        return {name: weights[name] for name in names} or weights

    def _update(self, tuned: Mapping[str, Tensor], where: str, names: Sequence[str]) -> Vector:
        """Return τ over the settled names, or, at first, over all that both have; check shapes and values."""
        weights = self.weights
        names = names or [name for name in weights if name in tuned]
        if not names:
            raise CheckpointError(
                f"it shares no weights with {self.name}", where=where, fix="give a fine-tune of that base"
            )
        missing = [name for name in names if name not in tuned]
        if missing:
            raise CheckpointError(
                f"it lacks '{missing[0]}'{_others(missing)}, which the base has",
                where=where,
                fix="give a complete fine-tune of the same architecture",
            )
        update = {}
        for name in names:
            new = tuned[name].detach()
            if new.shape != weights[name].shape:
                raise CheckpointError(
                    f"'{name}' has shape {list(new.shape)} and {list(weights[name].shape)} in {self.name}",
                    where=where,
                    fix="give a fine-tune of that base",
                )
            update[name] = new.float().to(weights[name].device) - weights[name]
            if not bool(torch.isfinite(update[name]).all()):
                raise NumericalError(
                    f"tensor '{name}' holds a NaN or an infinity",
                    where=where,
                    fix="use weights from before training diverged",
                )
        self._check_relation(update, where)
        return update

    def _check_relation(self, update: Vector, where: str) -> None:
        matrices = [name for name, change in update.items() if change.ndim >= 2] or list(update)
        before = norm({name: self.weights[name] for name in matrices})
        moved = norm({name: update[name] for name in matrices})
        if before > 0 and moved / before > STRANGER:
            raise CheckpointError(
                f"its weights differ from {self.name} by {100 * moved / before:.0f} %; it is no fine-tune",
                where=where,
                fix=f"give a fine-tune of {self.name}, or start another fusion with its own base",
            )


class ModuleOrigin(FusionOrigin):
    """A base in memory: an nn.Module that makes features, and fine-tunes as state dicts."""

    def __init__(
        self,
        module: nn.Module,
        *,
        features: Features | None = None,
        head: str = "head",
        preprocess: Callable[[Any], Any] | None = None,
        device: str = "auto",
    ) -> None:
        loaded = load_model(module, device=device, preprocess=preprocess)
        self.name = loaded.name
        self.model = FunctionalModel(loaded, features or _call)
        self.head = head + "."
        self._weights = {
            name: tensor.float()
            for name, tensor in self.model.parameters.items()
            if not name.startswith(self.head)
        }

    @property
    def weights(self) -> Vector:
        """The module's float parameters without its head."""
        return self._weights

    def fingerprint(self) -> str:
        return fingerprint(self._weights)

    def admit(self, tuned: Any, name: str, names: Sequence[str] = ()) -> FineTune:
        """Return a state dict (or a module) as an update; `head.weight` and `head.bias` are its head."""
        given: Mapping[str, Tensor] = tuned.state_dict() if isinstance(tuned, nn.Module) else tuned
        inside = {key: value for key, value in given.items() if not key.startswith(self.head)}
        module = self.model.module
        known = {key for key, _ in module.named_parameters(remove_duplicate=False)}
        known |= {key for key, _ in module.named_buffers()}
        extra = [key for key, value in inside.items() if key not in known and value.is_floating_point()]
        if extra:
            raise CheckpointError(
                f"it holds '{extra[0]}'{_others(extra)}, which the base has not",
                where=name,
                fix=f"give the base's own tensors and a head as {self.head}weight and {self.head}bias",
            )
        update = self._update(inside, name, names)
        head = None
        if f"{self.head}weight" in given:
            bias = given.get(f"{self.head}bias")
            head = LinearHead(
                given[f"{self.head}weight"].detach().float(), None if bias is None else bias.detach().float()
            )
        model = TaskModel(name, self.model, {key: key for key in update}, head)
        digest = fingerprint({**inside, **({} if head is None else {self.head: head.weight})})
        return FineTune(name, digest, update, model)


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Return a SHA-256 of names, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _call(module: nn.Module, batch: Any) -> Tensor:
    if hasattr(batch, "inputs"):  # a Batch of the module's own preprocess
        positional = [batch.inputs[""]] if "" in batch.inputs else []
        features = module(*positional, **{name: value for name, value in batch.inputs.items() if name})
    else:
        features = module(batch)
    if not isinstance(features, Tensor) or features.ndim != 2:
        raise CheckpointError(
            "the base's module does not return features [inputs, width]",
            where=type(module).__name__,
            fix="pass features=lambda module, batch: …",
        )
    return features


def _others(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
