"""The names that transformers gives a checkpoint's tensors in memory: newer versions rename some modules.

PEFT names an adapter's factors after the modules in memory, so an adapter and its base on disk may meet only
through these rules. They are asked for when plain names do not meet, since that takes torch and transformers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from transship.checkpoints.checkpoint import Checkpoint


def names_in_memory(names: Collection[str], model: nn.Module) -> dict[str, str]:
    """Return the name in memory → the name in the file, for tensors of a checkpoint of `model`."""
    rules = _rules(model)
    return {_renamed(name, rules): name for name in names}


def empty_model(checkpoint: Checkpoint) -> nn.Module | None:
    """Return the checkpoint's model without weights; None where its config does not tell transformers.

    For names alone: `activations.skeleton`, a room above, refuses where this one falls back to plain names.
    """
    try:
        import torch
        import transformers
        from transformers import PreTrainedModel
    except ImportError:
        return None
    named = checkpoint.config.get("architectures")
    made_by = getattr(transformers, str(named[0]), None) if isinstance(named, list) and named else None
    if not isinstance(made_by, type) or not issubclass(made_by, PreTrainedModel):
        return None
    if made_by.config_class is None:
        return None
    try:
        settings = made_by.config_class.from_dict(dict(checkpoint.config))
        with torch.device("meta"):
            made: nn.Module = made_by(settings)
    except Exception:  # any config that its class refuses: the plain names are all there is
        return None
    return made


def _rules(model: nn.Module) -> list[Any]:
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
