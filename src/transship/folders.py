"""Where transship keeps what it computed, and where it looks for settings: by the XDG base directories."""

from __future__ import annotations

import os
from pathlib import Path


def shared_cache() -> Path:
    """Return where data and models may lie: `$XDG_CACHE_HOME/transship`, else `~/.cache/transship`."""
    return _xdg("XDG_CACHE_HOME", ".cache") / "transship"


def cache(kind: str) -> Path:
    """Return where one kind of computed things is kept: under `$TRANSSHIP_CACHE`, else the shared cache."""
    named = os.environ.get("TRANSSHIP_CACHE")
    return (Path(named).expanduser() if named else shared_cache()) / kind


def config() -> Path:
    """Return the folder of a user's settings: `$XDG_CONFIG_HOME/transship`, else `~/.config/transship`."""
    return _xdg("XDG_CONFIG_HOME", ".config") / "transship"


def _xdg(variable: str, default: str) -> Path:
    """Return a base directory; a relative one is ignored, as the specification says."""
    named = Path(os.environ.get(variable, ""))
    return named if named.is_absolute() else Path.home() / default
