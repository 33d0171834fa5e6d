"""What may not be written over: the models and data that a transport reads."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transship.errors import OutputError


def require_apart(out: Any, inputs: Mapping[str, Any]) -> None:
    """Refuse an output that is an input, holds one, or is a file of one; `--force` does not help.

    Args:
        out: the folder or file that is to be written.
        inputs: what is read, by what the user calls it; what is no local path is passed over.
    """
    final = _real(out)
    for role, given in inputs.items():
        place = None if given is None else _real(given)
        if place is None or not place.exists():
            continue
        relation = None
        if final == place:
            relation = "is"
        elif final in place.parents:
            relation = "holds"
        elif place in final.parents and final.is_file():
            relation = "is a file of"
        if relation is not None:
            raise OutputError(
                f"it {relation} {role} ({given}), which is never written over",
                where=str(out),
                fix="choose another name",
            )


def require_folder(given: Any, option: str) -> None:
    """Refuse a folder that cannot be made or written to; nothing is created."""
    final = _real(given)
    above = next(place for place in (final, *final.parents) if place.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise OutputError(
            f"{above} is no folder that can be written to",
            where=option,
            fix=f"name another folder with {option}",
        )


def _real(given: Any) -> Path:
    return Path(os.path.realpath(Path(given).expanduser()))
