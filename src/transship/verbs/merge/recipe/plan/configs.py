"""The output's config: the donor's, with as many layers and words as the output has."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from transship.verbs.merge.recipe.plan.layout import Layout, config_value
from transship.verbs.merge.recipe.plan.models import Models
from transship.verbs.merge.recipe.plan.slices import Span
from transship.verbs.merge.recipe.plan.steps import Step
from transship.verbs.merge.recipe.plan.vocabulary import Vocabulary
from transship.verbs.merge.recipe.read.schema import Recipe

_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "decoder_start_token_id")


def output_config(
    recipe: Recipe,
    models: Models,
    layout: Layout,
    spans: Sequence[Span],
    steps: Sequence[Step],
    vocabulary: Vocabulary | None,
) -> dict[str, Any]:
    """Return the config that belongs to the steps' tensors."""
    donor = models[recipe.donor].model
    config = copy.deepcopy(donor.config)
    config.pop("_name_or_path", None)
    for stack in layout.stacks:
        mine = [span for span in spans if span.module == stack.module]
        layers = sum(span.layers for span in mine)
        if stack.keys and config_value(config, stack.keys) != layers:
            section = config
            for key in stack.keys[:-1]:
                section = section[key]
            _per_layer_lists(section, stack.layers, mine, models)
            section[stack.keys[-1]] = layers
    written = {step.name for step in steps}
    if any(alias in written for alias in donor.tied):
        _set(config, "tie_word_embeddings", False)
    if vocabulary is not None:
        _set(config, "vocab_size", vocabulary.rows)
        given = models[vocabulary.carrier].model.config
        config |= {key: given[key] for key in _SPECIAL if key in given and key in config}
    return config


def _set(config: dict[str, Any], key: str, value: Any) -> None:
    """Set a key where the config has it, at the top or in its text part; at the top where neither has."""
    text = config.get("text_config")
    nested = isinstance(text, dict) and key in text
    if nested:
        config["text_config"][key] = value
    if key in config or not nested:
        config[key] = value


def _per_layer_lists(
    section: dict[str, Any],
    layers: int,
    spans: Sequence[Span],
    models: Models,
) -> None:
    """Give lists with an entry for each layer (such as `layer_types`) those of the layers in use."""
    for key, value in section.items():
        if isinstance(value, list) and len(value) == layers and "layer" in key:
            chosen: list[Any] = []
            for span in spans:
                given = models[span.references[0]].model.config
                own = given.get(key) or next(
                    (part[key] for part in given.values() if isinstance(part, dict) and key in part), value
                )
                chosen += own[span.firsts[0] : span.firsts[0] + span.layers]
            section[key] = chosen
