"""Whether an adapter belongs to a base: by the name of its own, and by the weights where that lies here."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path, PurePath

import numpy as np

from transship import checkpoints
from transship.checkpoints import Adapter, Checkpoint
from transship.checkpoints.pairing import translation
from transship.errors import CheckpointError, TransshipError, TransshipWarning
from transship.verbs.merge.recipe.plan.models import middle_part

KINSHIP = (
    0.3  # cosine between the matrices of a fine-tune and its base; two trainings from scratch have about 0
)
SAMPLED = 8  # matrices, the largest
_SAME = 0.005  # of the norm: more than rounding to bfloat16 moves weights
# (what, where, what to do): refuses, warns or lets pass
Complain = Callable[[str, str, str], None]


def refuse(what: str, where: str, fix: str) -> None:
    """Raise what is wrong with a model."""
    raise CheckpointError(what, where=where, fix=fix)


def check_adapter(
    adapter: Adapter, base: Checkpoint, *, where: str = "", complain: Complain = refuse
) -> None:
    """Refuse an adapter whose base has other weights than `base`; warn where only the names differ.

    The base that the adapter names is opened where it is a folder here; nothing is looked for on the hub.
    Folders are called anything, so another name alone is no proof. `complain` is less strict where a recipe
    is; `where` names the adapter as the user did.
    """
    named, where = adapter.base_name, where or adapter.name
    if not named:
        return
    folder, likeness = Path(named).expanduser(), None
    if folder.is_dir() and base.folder is not None:
        likeness = (1.0, 0.0) if folder.resolve() == base.folder.resolve() else _compare(folder, base)
    if likeness is None:
        if PurePath(named).name not in _names(base):
            _warn(where, f"it says that it was trained on {named}, and it is added to {base.name}")
        return
    cosine, distance = likeness
    if distance < _SAME:
        return
    if cosine >= KINSHIP:
        apart = f"{100 * distance:.1f} % from those of {base.name}"
        _warn(where, f"it was trained on {named}, whose weights are {apart}")
        return
    other = f"another model than {base.name} (cosine of matrices {cosine:.2f})"
    fix = "add it to its own base, or take an adapter of this one"
    complain(f"it was trained on {named}, which is {other}", where, fix)


def _warn(where: str, what: str) -> None:
    warnings.warn(f"{where}: {what}", TransshipWarning, stacklevel=3)


def _compare(folder: Path, base: Checkpoint) -> tuple[float, float] | None:
    """Return cosine and relative distance of the largest matrices; None where they cannot be compared."""
    try:
        with checkpoints.open(folder) as other:
            shared = [
                (mine, theirs)
                for mine, theirs in translation(list(base.tensors), list(other.tensors)).items()
                if base.info(mine).shape == other.info(theirs).shape and len(base.info(mine).shape) == 2
                if base.info(mine).floating and other.info(theirs).floating
            ]
            shared.sort(key=lambda pair: -base.info(pair[0]).size)
            if not shared:
                return 0.0, 1.0  # nothing in common
            parts = [(_middle(base, mine), _middle(other, theirs)) for mine, theirs in shared[:SAMPLED]]
    except TransshipError:
        return None
    first, second = (np.concatenate(side).astype(np.float64) for side in zip(*parts, strict=True))
    lengths = float(np.linalg.norm(first)), float(np.linalg.norm(second))
    if 0.0 in lengths:
        return None
    cosine = float(first @ second) / (lengths[0] * lengths[1])
    return cosine, float(np.linalg.norm(first - second)) / lengths[0]


def _middle(checkpoint: Checkpoint, name: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array(checkpoint.floats(name, *middle_part(checkpoint.info(name).size)))


def _names(base: Checkpoint) -> set[str]:
    """Return what a base may be called: its reference's last part, or the repository's in the hub's cache."""
    places = [base.name, *([str(base.folder)] if base.folder is not None else [])]
    names = {PurePath(place.split("@")[0]).name for place in places}
    for place in places:
        names |= {part.split("--")[-1] for part in PurePath(place).parts if part.startswith("models--")}
    given = base.config.get("_name_or_path")
    return names | ({PurePath(given).name} if isinstance(given, str) else set())
