"""Which rows of a fused weight belong to which map, from the tables in `families` and a config's numbers."""

import re
from typing import Any

from transship.activations import families
from transship.activations.sites import Part


def fused_weight(relative: str, config: Any) -> families.FusedWeight | None:
    kind = getattr(config, "model_type", "")
    for fusion in families.FUSIONS:
        fits = not fusion.model_types or kind in fusion.model_types
        fits = fits and all(getattr(config, field, None) == value for field, value in fusion.when)
        if fits and re.search(fusion.pattern, relative):
            return fusion
    return None


def fused_parts(fusion: families.FusedWeight, total: int, config: Any) -> list[tuple[str, Part]] | None:
    """Return the parts of a fused output of `total` rows, or None where the counts do not add up."""
    groups = _count(fusion.groups, config) or 1
    period = total // groups
    lengths = [
        period // len(fusion.parts) if length == "rest" else _count(length, config)
        for _, length in fusion.parts
    ]
    if groups * sum(lengths) != total:
        return None
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    return [
        (role, Part(groups, period, start, start + length))
        for (role, _), start, length in zip(fusion.parts, starts, lengths, strict=True)
    ]


def _count(expression: str, config: Any) -> int:
    product = 1
    for name in expression.split("*"):
        product *= families.COUNTS[name] if name in families.COUNTS else _config_number(name, config)
    return product


def _config_number(name: str, config: Any) -> int:
    if name == "heads_per_kv":
        return _config_number("heads", config) // max(1, _config_number("kv_heads", config))
    for field in families.CONFIG_NAMES[name]:
        try:
            value = getattr(config, field, None)
        except (RuntimeError, ValueError):  # configs whose layers differ refuse to give one number
            continue
        if isinstance(value, int):
            return value
    if name == "kv_heads":
        # multi-query models that name no count have one pair of key and value
        return 1 if getattr(config, "multi_query", False) else _config_number("heads", config)
    if name == "head":
        return _config_number("width", config) // max(1, _config_number("heads", config))
    return 0
