"""The names of a model's parameters in memory, and of the same tensors in its checkpoint."""

from torch import nn

from transship.activations.models import LoadedModel
from transship.checkpoints import Checkpoint
from transship.checkpoints.names import translation
from transship.checkpoints.renaming import names_in_memory


def _parameter_names(model: nn.Module, checkpoint: Checkpoint) -> dict[str, str]:
    """Return parameter → tensor of the checkpoint, tied names included.

    What transformers converts in other ways than by renaming (experts that are stacked) has no tensor of its
    own.
    """
    parameters = [name for name, _ in model.named_parameters()]
    renamed = names_in_memory([*checkpoint.tensors, *checkpoint.tied], model)
    return {name: renamed[other] for name, other in translation(parameters, list(renamed)).items()}


def parameter_names(model: LoadedModel, checkpoint: Checkpoint) -> dict[str, str]:
    """Return parameter of the module → independent tensor of its checkpoint."""
    found = _parameter_names(model.model, checkpoint)
    return {name: checkpoint.tied.get(other, other) for name, other in found.items()}
