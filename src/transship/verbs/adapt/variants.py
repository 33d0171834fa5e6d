"""Stage 2 in more than one way: a linear head or label transport, the embedder frozen or not.

`predictor="auto"` and `freeze_embedder="auto"` fit every way that the task allows, each with the whole
budget, and keep the one with the lowest validation metric; of equals the first, and the plainest comes first.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transship.registry import build_method
from transship.verbs.adapt.adapted import Adapted
from transship.verbs.adapt.fitting import adapt
from transship.verbs.adapt.protocol import AdaptMethod
from transship.verbs.adapt.settings import Settings
from transship.verbs.adapt.splitting import Split, plain
from transship.verbs.adapt.targets import find_task


def adapt_best(
    X: Any,  # noqa: N803 - scikit-learn's name
    y: Any,
    settings: Settings,
    *,
    compare: bool = False,
    seen: Any = None,
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[Adapted, Split]:
    """Fit in every way that `auto` leaves open; return the best on validation. Arguments as of `adapt`."""
    ways = variants(settings, y)
    if len(ways) == 1:
        return adapt(X, y, ways[0], compare=compare, seen=seen, tell=tell)
    best: tuple[float, Adapted, Split] | None = None
    tried: dict[str, float] = {}
    for way in ways:
        adapted, split = adapt(X, y, way, compare=compare, seen=seen, tell=tell if best is None else _silent)
        value = float(adapted.about["validation"][adapted.about["metric"]])
        tried[_name(way)] = value
        tell(f"{_name(way)}: validation {adapted.about['metric']} {value:.4f}")
        if best is None or value < best[0]:
            best = (value, adapted, split)
    assert best is not None
    best[1].about["variants"] = tried
    return best[1], best[2]


def variants(settings: Settings, y: Any) -> list[Settings]:
    """Return the settings with every `auto` of stage 2 replaced by what it may stand for."""
    predictors, frozen = [settings.predictor], [settings.freeze_embedder]
    if settings.predictor == "auto":
        method: AdaptMethod = build_method("adapt", settings.method, settings.method_options)
        fits = method.needs_source and settings.base == "none"
        classes = find_task(plain(y, "y"), settings.task) == "classification"
        predictors = ["linear", "transport"] if fits and classes else ["linear"]
    if settings.freeze_embedder == "auto":
        frozen = [False, True]
    ways = []
    for predictor in predictors:
        for freeze in frozen:
            way = dataclasses.replace(settings, predictor=predictor, freeze_embedder=freeze)
            if settings.work is not None and len(predictors) * len(frozen) > 1:
                way = dataclasses.replace(way, work=Path(settings.work) / f"{predictor}-{freeze}")
            ways.append(way)
    return ways


def _name(way: Settings) -> str:
    return f"{way.predictor} head, {'embedder frozen' if way.freeze_embedder else 'everything trained'}"


def _silent(line: str) -> None:
    """Say nothing: baselines were told once."""


__all__ = ["adapt_best", "variants"]
