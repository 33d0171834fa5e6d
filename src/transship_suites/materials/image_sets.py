"""The image sets of CLIP's fine-tunes (`image_sets.toml`): hub ids, columns, splits, words of heads."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from transship.data import Dataset
from transship_suites.materials.origins import data, read
from transship_suites.runner import Need, read_toml


@dataclass(frozen=True)
class ImageSet:
    """One image set.

    Attributes:
        title: as tables call it.
        hub: its id.
        templates: prompts, a class's name in the place of {}.
        names: of the classes; empty takes those of the data, underscores as spaces.
        config: the configuration, where it has several.
        layout: of its folder.
        image: its column of images; None for the usual name.
        label: its column of classes.
        test: the split that is measured on.
    """

    title: str
    hub: str
    templates: tuple[str, ...] = ("a photo of a {}.", "a photo of the {}.")
    names: tuple[str, ...] = ()
    config: str | None = None
    layout: str = "data/SPLIT-*.parquet"
    image: str | None = None
    label: str | None = None
    test: str = "test"

    @property
    def need(self) -> Need:
        return data(self.hub, self.layout)


def _read(about: dict[str, Any]) -> ImageSet:
    words: dict[str, Any] = {key: tuple(about.pop(key)) for key in ("templates", "names") if key in about}
    return ImageSet(**about, **words)


IMAGE_SETS = {task: _read(about) for task, about in read_toml(Path(__file__).with_suffix(".toml")).items()}


@cache
def _whole(task: str) -> Dataset:
    chosen = IMAGE_SETS[task]
    return read(chosen.hub, "image", config=chosen.config, column=chosen.image, label=chosen.label)


def image_rows(task: str, split: str, most: int | None = None, *, seed: int = 0) -> Dataset:
    """Return the rows of a split (`train` or `test`), or `most` of them drawn by the seed; decoded lazily."""
    rows = _whole(task).split(IMAGE_SETS[task].test if split == "test" else split)
    return rows if most is None else rows.take(most, seed)


def class_names(task: str) -> tuple[str, ...]:
    """Return the words that prompts use for the classes, in the order of the labels."""
    own, stored = IMAGE_SETS[task].names, _whole(task).label_names
    return own[: len(stored)] if own else tuple(name.replace("_", " ") for name in stored)


def with_validation(train: Dataset, share: float, most: int, *, seed: int) -> Dataset:
    """Return the training rows with a drawn part of them marked as validation rows."""
    count = max(1, min(most, round(share * len(train))))
    held = np.random.default_rng(seed).permutation(len(train))[:count]
    splits = np.full(len(train), "train", dtype="<U10")
    splits[held] = "validation"
    return dataclasses.replace(train, splits=splits)
