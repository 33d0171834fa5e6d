"""Symbolic links in a model folder: those that stay in it are followed, no other is."""

from __future__ import annotations

import os
from pathlib import Path

from transship.checkpoints.weightfile import quote
from transship.errors import CheckpointError


def refuse_links(folder: Path) -> None:
    """Refuse a model folder in which a file is a link to somewhere else."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() and path.is_file():
            inside(path, folder)


def inside(path: Path, folder: Path) -> Path:
    """Return the path of a folder's file; refuse one that leads out of the folder.

    A snapshot in the hub's cache links to the blobs of the same repository, and these count as its own.
    """
    real, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    blobs = root.parents[1] / "blobs" if root.parent.name == "snapshots" else None
    if real.is_relative_to(root) or (blobs is not None and real.parent == blobs):
        return path
    raise CheckpointError(
        f"{quote(path.relative_to(folder).as_posix())} is a link to a file outside the folder",
        where=str(folder),
        fix="put the file itself there",
    )
