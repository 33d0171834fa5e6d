"""Take new data in: a pretrained transformer for a modality that it has never seen.

The public names are imported when they are first used: the command line reads options without torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Adapted": "adapted",
    "Recraft": "estimator",
    "Settings": "settings",
    "Source": "source.model",
    "load_adapted": "artifact",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
