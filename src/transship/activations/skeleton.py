"""A model's sites without its weights: the module tree is built on the meta device, from the config alone."""

import contextlib
from typing import Any

import torch
from torch import nn

from transship.activations.loading import model_class, quiet
from transship.activations.sites import Site, find_sites
from transship.checkpoints import Checkpoint
from transship.errors import CheckpointError


def skeleton(checkpoint: Checkpoint) -> nn.Module:
    """Return the checkpoint's model with the head that its config names, without memory for weights."""
    import transformers

    if checkpoint.folder is None or not checkpoint.config:
        raise CheckpointError(
            "there is no config to build a model from", where=checkpoint.name, fix="give the model's folder"
        )
    with quiet():
        config = transformers.AutoConfig.from_pretrained(
            checkpoint.folder, trust_remote_code=checkpoint.trust_remote_code
        )
        kind: Any = transformers.AutoModel
        with contextlib.suppress(CheckpointError):
            kind = model_class(config, True, checkpoint.name)
        with torch.device("meta"):
            build = getattr(kind, "from_config", None) or kind._from_config
            model: nn.Module = build(config)
    return model.eval()


def checkpoint_sites(checkpoint: Checkpoint) -> list[Site]:
    """Return the sites whose weights the checkpoint has; no weight is read.

    A config may name a head, or a family bring a pooler, that the file does not hold.
    """
    model = skeleton(checkpoint)
    prefix = getattr(model, "base_model_prefix", "") + "."
    held = {*checkpoint.tensors, *checkpoint.tied}
    held |= {name.removeprefix(prefix) for name in held} | {prefix + name for name in held}
    # a residual stream has no weight of its own
    return [site for site in find_sites(model) if site.weight is None or site.weight in held]
