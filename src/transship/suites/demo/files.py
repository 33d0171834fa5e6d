"""The demo's data as files, so that every command of the README can be tried on what the demo leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transship.suites.demo.models import Digits

SPLITS = ("train", "test")


def leave_behind(
    folder: Path, tasks: Mapping[str, tuple[Digits, Digits]], waves: tuple[tuple[Any, Any], tuple[Any, Any]]
) -> Path:
    """Write `folder/NAME.npz` for every task and `folder/waves.npz`, unless the folder is there.

    Each file has inputs (`x` [n, 1, 8, 8] or `series` [n, 64]), `label` [n] and `split` [n]: train or test.
    """
    from transship.checkpoints import atomic_folder

    if folder.exists():
        return folder
    with atomic_folder(folder) as place:
        for name, parts in tasks.items():
            _write(place / f"{name}.npz", "x", [part.images for part in parts], [p.labels for p in parts])
        signals = [inputs.reshape(len(inputs), -1) for inputs, _ in waves]
        _write(place / "waves.npz", "series", signals, [labels for _, labels in waves])
    return folder


def _write(file: Path, name: str, inputs: list[Any], labels: list[Any]) -> None:
    splits = np.repeat(SPLITS, [len(part) for part in labels])
    np.savez_compressed(
        file,
        allow_pickle=False,
        **{name: np.concatenate(inputs), "label": np.concatenate(labels), "split": splits},
    )
