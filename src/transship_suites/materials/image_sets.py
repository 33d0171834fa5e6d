"""The image sets of CLIP's fine-tunes: hub ids, columns, splits, and the words of their zero-shot heads.

Prompts and the names that data sets lack are those that CLIP's authors published for these sets
(github.com/openai/CLIP, data/prompts.md, MIT), and FusionBench's for the three that they did not have.
"""

from __future__ import annotations

import dataclasses
import string
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from transship_suites.materials.hub import CONVERTED, data, read
from transship_suites.runner import Need

if TYPE_CHECKING:
    from transship.data import Dataset

_PHOTO = ("a photo of a {}.", "a photo of the {}.")
_NUMBER = ('a photo of the number: "{}".',)
_TEN = tuple(string.digits)
_VIEWS = tuple(f"{one} {what} of" for what in ("imagery", "photo", "view") for one in ("satellite", "aerial"))
_QUALITIES = ("", "blurry ", "black and white ", "low contrast ", "high contrast ", "bad ", "good ")
_THINGS = tuple(
    template
    for article in ("a", "the")
    for template in (
        *(f"a {quality}photo of {article} {{}}." for quality in _QUALITIES),
        f"a photo of {article} small {{}}.",
        f"a photo of {article} big {{}}.",
    )
)
_SIGNS = (
    *(f"red and white circle {speed} kph speed limit" for speed in (20, 30, 50, 60, 70, 80)),
    "end / de-restriction of 80 kph speed limit",
    *(f"red and white circle {speed} kph speed limit" for speed in (100, 120)),
    *(f"red and white circle red {one} and black car no passing" for one in ("car", "truck")),
    "red and white triangle road intersection warning",
    "white and yellow diamond priority road",
    "red and white upside down triangle yield right-of-way",
    "stop",
    "empty red and white circle",
    "red and white circle no truck entry",
    "red circle with white horizonal stripe no entry",
    "red and white triangle with exclamation mark warning",
    *(
        f"red and white triangle with black {one} curve approaching warning"
        for one in ("left", "right", "double")
    ),
    "red and white triangle rough / bumpy road warning",
    "red and white triangle car skidding / slipping warning",
    *(
        f"red and white triangle with {one} warning"
        for one in (
            "merging / narrow lanes",
            "person digging / construction / road work",
            "traffic light approaching",
            "person walking",
            "child and person walking",
            "bicyle",
            "snowflake / ice",
            "deer",
        )
    ),
    "white circle with gray strike bar no speed limit",
    *(
        f"blue circle with white {one} mandatory"
        for one in (
            "right turn arrow",
            "left turn arrow",
            "forward arrow",
            "forward or right turn arrow",
            "forward or left turn arrow",
            "keep right arrow",
            "keep left arrow",
        )
    ),
    "blue circle with white arrows indicating a traffic circle",
    *(
        f"white circle with gray strike bar indicating no passing for {one} has ended"
        for one in ("cars", "trucks")
    ),
)
_LAND = (
    "annual crop land",
    "forest",
    "brushland or shrubland",
    "highway or road",
    "industrial buildings or commercial buildings",
    "pasture land",
    "permanent crop land",
    "residential buildings or homes or apartments",
    "river",
    "lake or sea",
)
_FACES = ("angry", "disgusted", "fearful", "happy", "neutral", "sad", "surprised")


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
    templates: tuple[str, ...] = _PHOTO
    names: tuple[str, ...] = ()
    config: str | None = None
    layout: str = "data/SPLIT-*.parquet"
    image: str | None = None
    label: str | None = None
    test: str = "test"

    @property
    def need(self) -> Need:
        """What a suite declares."""
        return data(self.hub, self.layout)


# as FusionBench names the tasks, in its order: the first 8, 14 and 20 are its three collections
IMAGE_SETS = {
    "sun397": ImageSet("SUN397", "tanganke/sun397"),
    "stanford-cars": ImageSet(
        "Cars",
        "tanganke/stanford_cars",
        (
            *_PHOTO,
            "a photo of my {}.",
            "i love my {}!",
            *(f"a photo of my {one} {{}}." for one in ("dirty", "clean", "new", "old")),
        ),
    ),
    "resisc45": ImageSet(
        "RESISC45",
        "tanganke/resisc45",
        tuple(f"{view} {article}{{}}." for article in ("", "a ", "the ") for view in _VIEWS),
    ),
    "eurosat": ImageSet(
        "EuroSAT",
        "tanganke/eurosat",
        tuple(f"a centered satellite photo of {article}{{}}." for article in ("", "a ", "the ")),
        _LAND,
    ),
    "svhn": ImageSet(
        "SVHN", "ufldl-stanford/svhn", _NUMBER, _TEN, "cropped_digits", "cropped_digits/SPLIT-*.parquet"
    ),
    "gtsrb": ImageSet(
        "GTSRB",
        "tanganke/gtsrb",
        tuple(f'a {one} photo of a "{{}}" traffic sign.' for one in ("zoomed in", "centered", "close up")),
        _SIGNS,
    ),
    "mnist": ImageSet("MNIST", "ylecun/mnist", _NUMBER, _TEN, "mnist", "mnist/SPLIT-*.parquet"),
    "dtd": ImageSet(
        "DTD",
        "tanganke/dtd",
        tuple(
            f"a photo of {article} {{}} {one}."
            for article in ("a", "the")
            for one in ("texture", "pattern", "thing", "object")
        ),
    ),
    "oxford_flowers102": ImageSet(
        "Flowers102", "dpdl-benchmark/oxford_flowers102", ("a photo of a {}, a type of flower.",)
    ),
    "pcam": ImageSet(
        "PCAM",
        "1aurent/PatchCamelyon",
        ("this is a photo of {}",),
        ("lymph node", "lymph node containing metastatic tumor tissue"),
    ),
    "fer2013": ImageSet(
        "FER2013",
        f"clip-benchmark/wds_fer2013@{CONVERTED}",
        (
            "a photo of a {} looking face.",
            "a photo of a face showing the emotion: {}.",
            "a photo of a face looking {}.",
            "a face that looks {}.",
            "they look {}.",
            "look at how {} they are.",
        ),
        _FACES,
        "default",
        "default/SPLIT/*.parquet",
        "jpg",
        "cls",
    ),
    "oxford-iiit-pet": ImageSet(
        "Oxford-IIIT Pet", "timm/oxford-iiit-pet", ("a photo of a {}, a type of pet.",), label="label"
    ),
    "stl10": ImageSet("STL10", "tanganke/stl10"),
    "cifar100": ImageSet("CIFAR100", "tanganke/cifar100", _THINGS),
    "cifar10": ImageSet("CIFAR10", "tanganke/cifar10", _THINGS),
    "food101": ImageSet("Food101", "ethz/food101", ("a photo of {}, a type of food.",), test="validation"),
    "fashion_mnist": ImageSet(
        "Fashion-MNIST",
        "zalando-datasets/fashion_mnist",
        config="fashion_mnist",
        layout="fashion_mnist/SPLIT-*.parquet",
    ),
    "emnist_letters": ImageSet(
        "EMNIST",
        "tanganke/emnist_letters",
        ('a photo of the digit character: "{}".',),
        tuple(string.ascii_uppercase),
    ),
    "kmnist": ImageSet(
        "KMNIST", "tanganke/kmnist", ("a photo of the character {}.",), tuple("おきすつなはまやれを")
    ),
    "rendered-sst2": ImageSet(
        "Rendered SST2",
        f"nateraw/rendered-sst2@{CONVERTED}",
        ("a {} review of a movie.",),
        ("negative", "positive"),
        "default",
        "default/SPLIT/*.parquet",
    ),
}
# of THESEUS, in the order of its tables
EIGHT = ("eurosat", "svhn", "gtsrb", "resisc45", "dtd", "stanford-cars", "mnist", "sun397")


@cache
def _whole(task: str) -> Dataset:
    chosen = IMAGE_SETS[task]
    return read(chosen.hub, "image", config=chosen.config, column=chosen.image, label=chosen.label)


def image_rows(task: str, split: str, most: int | None = None, *, seed: int = 0) -> Dataset:
    """Return the rows of a split (`train` or `test`), or `most` of them drawn by the seed; decoded lazily."""
    chosen = IMAGE_SETS[task]
    found = _whole(task).split(chosen.test if split == "test" else split)
    return found if most is None else found.take(most, seed)


def class_names(task: str) -> tuple[str, ...]:
    """Return the words that prompts use for the classes, in the order of the labels."""
    own = IMAGE_SETS[task].names
    found = _whole(task).label_names
    return own[: len(found)] if own else tuple(name.replace("_", " ") for name in found)


def with_validation(train: Dataset, share: float, most: int, *, seed: int) -> Dataset:
    """Return the training rows with a drawn part of them marked as validation rows."""
    import numpy as np

    count = max(1, min(most, round(share * len(train))))
    held = np.random.default_rng(seed).permutation(len(train))[:count]
    splits = np.full(len(train), "train", dtype="<U10")
    splits[held] = "validation"
    return dataclasses.replace(train, splits=splits)
