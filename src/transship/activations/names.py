"""The names of a model's parameters in memory, and of the same tensors in its checkpoint."""

from typing import Any

from torch import nn

from transship.activations.models import LoadedModel
from transship.checkpoints import Checkpoint
from transship.checkpoints.names import translation


def _parameter_names(model: nn.Module, checkpoint: Checkpoint) -> dict[str, str]:
    """Return parameter → tensor of the checkpoint, tied names included.

    Newer transformers name some modules differently in memory and on disk; its own renaming rules say how.
    What it converts in other ways (experts that are stacked) has no tensor of its own.
    """
    parameters = [name for name, _ in model.named_parameters()]
    stored = [*checkpoint.tensors, *checkpoint.tied]
    renamed = {_renamed(name, rules): name for rules in [_renamings(model)] for name in stored}
    return {name: renamed[other] for name, other in translation(parameters, list(renamed)).items()}


def _renamings(model: nn.Module) -> list[Any]:
    """Return the rules by which transformers renames a file's tensors into the module's; none for other
    modules.
    """
    try:
        from transformers import PreTrainedModel
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightRenaming
    except ImportError:  # transformers before 5 keeps the names of the file
        return []
    if not isinstance(model, PreTrainedModel):
        return []
    return [rule for rule in get_model_conversion_mapping(model) if isinstance(rule, WeightRenaming)]


def _renamed(name: str, rules: list[Any]) -> str:
    if not rules:
        return name
    from transformers.core_model_loading import rename_source_key

    made: str = rename_source_key(name, rules, [])[0]
    return made


def parameter_names(model: LoadedModel, checkpoint: Checkpoint) -> dict[str, str]:
    """Return parameter of the module → independent tensor of its checkpoint."""
    found = _parameter_names(model.model, checkpoint)
    return {name: checkpoint.tied.get(other, other) for name, other in found.items()}
