"""The update of the source under the names of its module's parameters, wherever it comes from."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from transship.activations import LoadedModel, parameter_names
from transship.activations.loading import values_of
from transship.checkpoints import Adapter, Checkpoint, Update
from transship.checkpoints.names import translation
from transship.errors import CheckpointError

# A fine-tune moves its weights by a few percent; another model of the same shape lies at about √2.
_STRANGER = 0.7


@dataclass(eq=False)
class SourceUpdate:
    """τ_A by parameter name.

    Attributes:
        dense_tensors: in memory, when the models were given as modules.
        update: lazy, when they were given as checkpoints.
        names: parameter of the source's module → tensor of the checkpoint.
        strays: tensors of the update that no parameter of the module holds.
        resized: tensors of another shape in the fine-tune, such as a head with more classes, and the shapes.
        adapter: whether it came as low-rank factors.
    """

    dense_tensors: dict[str, Tensor] = field(default_factory=dict)
    update: Update | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    strays: tuple[str, ...] = ()
    resized: Mapping[str, str] = field(default_factory=dict)
    adapter: bool = False

    @classmethod
    def between_modules(cls, source: nn.Module, tuned: nn.Module) -> "SourceUpdate":
        """Return the difference of two modules' parameters; names may differ by a prefix."""
        before, after = dict(source.named_parameters()), dict(tuned.named_parameters())
        names = translation(list(before), list(after))
        both = {name: (before[name], after[other]) for name, other in names.items()}
        fits = {name: pair for name, pair in both.items() if pair[0].shape == pair[1].shape}
        dense = {name: (b.detach().float() - a.detach().float()).cpu() for name, (a, b) in fits.items()}
        strays = tuple(name for name in after if name not in set(names.values()))
        resized = {name: _resized(*both[name]) for name in both if name not in fits}
        return cls(dense_tensors=dense, strays=strays, resized=resized)

    @classmethod
    def between_checkpoints(cls, source: Checkpoint, tuned: Checkpoint, model: LoadedModel) -> "SourceUpdate":
        """Return the update of `tuned` (a checkpoint or an adapter) over `source`."""
        adapter = isinstance(tuned, Adapter)
        update = (
            Update.from_adapter(tuned, source) if adapter else Update.between(source, tuned, unmatched="skip")
        )
        names = parameter_names(model, source)
        held = set(names.values())
        strays = tuple(name for name in (*update.names, *update.added) if name not in held)
        resized = {}
        for name, other in (
            {} if adapter else translation(list(source.tensors), list(tuned.tensors))
        ).items():
            if source.info(name).shape != tuned.info(other).shape:
                resized[name] = _resized(source.info(name), tuned.info(other))
        return cls(update=update, names=names, strays=strays, resized=resized, adapter=adapter)

    def __contains__(self, name: str) -> bool:
        return name in self.dense_tensors or (self.update is not None and self.names.get(name) in self.update)

    def dense(self, name: str) -> Tensor:
        """Return the change of one parameter, float32."""
        if self.update is None:
            return self.dense_tensors[name]
        return torch.from_numpy(self.update.dense(self.names[name]))

    def factors(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Return factors whose product is the stored change, or None where it is dense."""
        if self.update is None:
            return None
        found = self.update.factors(self.names[name])
        return (
            None
            if found is None
            else (torch.from_numpy(np.array(found[0])), torch.from_numpy(np.array(found[1])))
        )

    def changed(self, names: Iterable[str]) -> dict[str, float]:
        """Return parameter → norm of its change, for those that changed at all."""
        found = {}
        for name in names:
            if name in self:
                norm = float(self.dense(name).double().norm())
                if norm > 0:
                    found[name] = norm
        return found


def _resized(before: Any, after: Any) -> str:
    shapes = [" × ".join(map(str, one.shape)) for one in (before, after)]
    return f"it is {shapes[0]} in the source and {shapes[1]} in its fine-tune"


def not_finite(where: str, tensor: str) -> CheckpointError:
    """Return the error for weights that hold NaN or infinity."""
    return CheckpointError(
        f"its tensor '{tensor}' holds NaN or infinity",
        where=where,
        fix="give finite weights: the file is damaged, or its training diverged",
    )


def check_relation(update: SourceUpdate, source: nn.Module, names: tuple[str, str]) -> float:
    """Return ‖τ_A‖ / ‖θ_A‖; raise when the two are no base and fine-tune.

    Weights of an unrelated model are about orthogonal and of equal size, which gives √2. An adapter names the
    tensors that it was made for, and may change them by as much as it likes.
    """
    moved = before = 0.0
    for name, parameter in values_of(source):
        if name in update and parameter.ndim >= 2:
            size = float(update.dense(name).double().square().sum())
            if not math.isfinite(size):
                raise not_finite(names[1], update.names.get(name, name))
            moved += size
            before += float(parameter.detach().double().square().sum())
    if before == 0.0:
        raise CheckpointError(
            f"it shares no weights with {names[0]}",
            where=names[1],
            fix="give a fine-tune of SOURCE, or an adapter for it",
        )
    relative = math.sqrt(moved / before)
    if relative > _STRANGER and not update.adapter:
        raise CheckpointError(
            f"its weights differ from {names[0]} by {100 * relative:.0f} %, so it is no fine-tune of it",
            where=names[1],
            fix="check the order of arguments: SOURCE TUNED TARGET",
        )
    if relative == 0.0:
        raise CheckpointError(
            f"its weights equal those of {names[0]}", where=names[1], fix="give the fine-tuned model as TUNED"
        )
    return relative
