"""The models of a recipe at work: their weights as vectors, and how each runs on its own data."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transship.activations import FunctionalModel, LoadedModel, load_model, parameter_names
from transship.activations.loading import require_in_memory
from transship.checkpoints import Checkpoint
from transship.checkpoints import open as open_checkpoint
from transship.errors import CheckpointError
from transship.verbs.merge.maths.operands import Floats
from transship.verbs.merge.maths.states import Vector
from transship.verbs.merge.recipe.plan.merge import MergePlan
from transship.verbs.merge.recipe.plan.models import StoredModel
from transship.verbs.merge.recipe.plan.steps import StepInput, TensorStep
from transship.verbs.merge.recipe.read.sources import ModelReference
from transship.verbs.merge.recipe.run.tensors import Tensors
from transship.verbs.merge.tasks.folder import whole_model
from transship.verbs.merge.tasks.model import TaskModel, TaskRows, task_rows

INPUTS = 256  # of each task, unless the recipe says otherwise
TRIED = 96  # the same for `weights: auto`, which reads them in every trial


@dataclass(eq=False)
class RecipeModel:
    """One model of a recipe, which runs. Weights are read anew at every call.

    Attributes:
        tensors: of the recipe's plan.
        place: which of the models it is.
        reference: what the recipe calls it.
        opening: how it is opened: device, device_map and dtype of `load_model`.
        labelled: also read the labels of its data.
        label_share: of all rows; labels of no more are read.
    """

    tensors: Tensors
    place: int
    reference: ModelReference
    opening: Mapping[str, Any]
    labelled: bool = False
    label_share: float = 1.0

    @property
    def plan(self) -> MergePlan:
        return self.tensors.plan

    @property
    def name(self) -> str:
        return str(self.reference)

    @cached_property
    def loaded(self) -> LoadedModel:
        loaded = load_model(str(self._checkpoint.folder), head=True, name=self.name, **self.opening)
        require_in_memory(loaded.model, self.name, "a merge runs it with other weights")
        return loaded

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        """The files that it is loaded from; with an adapter that brings a head, those of the two together."""
        stored = self.plan.models[self.reference].model
        assert isinstance(stored, StoredModel)
        if stored.update is None or stored.adapter is None or not stored.update.added:
            return stored.checkpoint
        return open_checkpoint(whole_model(stored, owner=self))

    @cached_property
    def _stored(self) -> dict[str, str]:
        """Tensor of the model's own file → parameter of the module; the names may be quite different."""
        return {name: parameter for parameter, name in parameter_names(self.loaded, self._checkpoint).items()}

    @cached_property
    def names(self) -> dict[str, str]:
        """Tensor of the output → parameter of the module, for those that are merged and that run."""
        aligned = self.plan.models[self.reference]
        parameters = dict(self.loaded.model.named_parameters())
        names = {}
        for step in self.plan.merged:
            parameter = self._stored.get(aligned.names[step.inputs[self.place].tensor])
            if parameter is not None and parameters[parameter].shape == step.shape:
                names[step.name] = parameter
        if not names:
            raise CheckpointError(
                "none of the merged tensors is a weight that the model runs with",
                where=self.name,
                fix="give a model that transformers loads",
            )
        return names

    @cached_property
    def rows(self) -> TaskRows:
        """Its inputs, and labels where they were asked for."""
        rule = self.plan.recipe.data_of(self.reference)
        assert rule is not None
        names = getattr(self.loaded.config, "id2label", None) or {}
        return task_rows(
            rule.load(labelled=self.labelled),
            None,
            None,
            label_names=[str(names[key]) for key in sorted(names, key=int)],
            label_share=self.label_share,
            most=rule.inputs or (INPUTS if self.plan.recipe.weights is None else TRIED),
            seed=self.plan.recipe.seed,
            where=self.name,
        )

    def view(self) -> TaskModel:
        """Return the model over its inputs, with its own head."""
        self._place_head()
        return TaskModel(self.name, FunctionalModel(self.loaded), self.names, None, self.rows.inputs)

    def close(self) -> None:
        """Let go of the module; the next `view` opens it again."""
        self.__dict__.pop("loaded", None)

    def labels(self) -> Tensor | None:
        return self.rows.labels

    def update(self) -> Vector:
        """Return τ over the names."""
        weights, base = self.weights(), base_weights(self.tensors, self.names)
        return {name: tensor.sub_(base[name]) for name, tensor in weights.items()}

    def weights(self) -> Vector:
        """Return θ over the names."""
        steps = {step.name: step for step in self.plan.merged}
        return {name: _read(self.tensors, steps[name].inputs[self.place], steps[name]) for name in self.names}

    def head_names(self) -> dict[str, str]:
        """Return parameter of the module → tensor of the output, for the head that the recipe keeps."""
        aligned = self.plan.models[self.reference]
        steps = self.plan.outcome.heads.get(self.reference, ())
        names = {self._stored.get(aligned.names[step.inputs[0].tensor]): step.name for step in steps}
        return {parameter: name for parameter, name in names.items() if parameter is not None}

    def _place_head(self) -> None:
        """Give the module the head that the recipe keeps for this model (an adapter may bring its own)."""
        own = dict(self.loaded.model.named_parameters())
        aligned = self.plan.models[self.reference]
        for step in self.plan.outcome.heads.get(self.reference, ()):
            parameter = self._stored.get(aligned.names[step.inputs[0].tensor])
            if parameter is not None and own[parameter].shape == step.shape:
                with torch.no_grad():
                    own[parameter].copy_(_read(self.tensors, step.inputs[0], step))


def base_weights(tensors: Tensors, names: Mapping[str, str]) -> Vector:
    """Return θ_0 over the names."""
    return {
        step.name: _read(tensors, step.base, step)
        for step in tensors.plan.merged
        if step.name in names and step.base is not None
    }


def whole_tensor(parts: Iterable[Floats], step: TensorStep) -> Tensor:
    """Return the parts of a step's tensor as one."""
    whole = np.concatenate([np.array(part) for part in parts])
    return torch.from_numpy(whole).reshape(step.shape)


def _read(tensors: Tensors, source: StepInput, step: TensorStep) -> Tensor:
    values = np.array(tensors.reader(source)(0, step.size), dtype=np.float32)
    if not np.isfinite(values).all():
        raise tensors.culprit(step) or CheckpointError(
            f"tensor '{step.name}' holds a NaN or an infinity", where=str(source.reference), fix="check it"
        )
    return torch.from_numpy(values).reshape(step.shape)


def recipe_models(
    tensors: Tensors,
    opening: Mapping[str, Any] | None = None,
    *,
    labelled: bool = False,
    label_share: float = 1.0,
) -> list[RecipeModel]:
    """Return the models that are merged, in the recipe's order."""
    inputs = tensors.plan.merged[0].inputs
    return [
        RecipeModel(tensors, place, source.reference, opening or {}, labelled, label_share)
        for place, source in enumerate(inputs)
    ]


def shared_names(models: Sequence[RecipeModel]) -> dict[str, str]:
    """Return the names that all models run with; a model that lacks one of another's is an error."""
    first = models[0]
    for model in models[1:]:
        if missing := sorted(first.names.keys() ^ model.names.keys()):
            raise CheckpointError(
                f"it and {first.name} do not run with the same weights, as '{missing[0]}'",
                where=model.name,
                fix="give fine-tunes of one model class",
            )
    return first.names
