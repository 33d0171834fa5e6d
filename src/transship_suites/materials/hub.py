"""Needs with hub ids, and data in the layout that the hub's parquet files have. Cheap to import."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from transship_suites.runner import Need

if TYPE_CHECKING:
    from transship.data import Dataset

# the hub's own parquet copy of a data set that was published in another form
CONVERTED = "refs/convert/parquet"
_SPLIT = re.compile(r"(?<![a-z])(train|validation|valid|test)(?![a-z])")


def gpu(memory: int) -> Need:
    """Return the need of a graphics card."""
    source = f"{memory} GB on the card should do; --device cpu runs without one, for weeks"
    return Need("gpu", "cuda", source)


def model(name: str, license: str = "") -> Need:
    """Return the need of a hub model."""
    return Need("model", name, f"hub model, or its files in $TRANSSHIP_MODELS/{name}", license)


def data(name: str, layout: str = "data/SPLIT-*.parquet", license: str = "") -> Need:
    """Return the need of a hub data set; `layout` is what its folder holds."""
    plain = name.partition("@")[0]
    source = f"hub data set, or its files in $TRANSSHIP_DATA/{plain}: {layout}"
    return Need("data", name, source, license)


def read(
    name: str,
    kind: Literal["image", "text"],
    *,
    config: str | None = None,
    column: str | None = None,
    label: str | None = None,
    split: str | None = None,
) -> Dataset:
    """Return a hub data set from its parquet files: its own folder, the hub's cache, or the hub.

    Only files of the usual splits are read: some sets bring corrupted copies or unlabelled rows beside them.

    Args:
        name: `owner/name[@revision]`.
        kind: of the data.
        config: the sub-folder of one configuration, where there are several.
        column: of the inputs, where its name is unusual.
        label: the column of classes, where there are several.
        split: keep one.
    """
    from transship.data import data_files, find_data
    from transship.data.labels import Options
    from transship.data.loading import text_of_table
    from transship.data.locate import hub_parts
    from transship.data.pictures import images_of_table
    from transship.data.tables import open_table
    from transship.errors import DataError

    plain = hub_parts(name)[0]
    found = data_files(plain)
    folder = found[0] if found else find_data(name)
    if config is not None and (folder / config).is_dir():
        folder = folder / config
    files = [file for file in sorted(folder.rglob("*.parquet")) if _split_of(file)]
    if not files:
        raise DataError(
            "it has no parquet files of a train or test split", where=str(folder), fix=f"fetch {name} again"
        )
    title = plain if config is None else f"{plain}/{config}"
    options = Options(column=column, label=label, pair=False, split=split, name=title)
    table = open_table(files)
    if kind == "image":
        return images_of_table(table, options, title, "RGB")
    return text_of_table(table, options, title)


def _split_of(file: Path) -> str | None:
    """Return the split that a file, or else its folder, is named after: `train-00000-of-00001.parquet`."""
    for text in (file.stem, file.parent.name):
        word = _SPLIT.search(text)
        if word is not None:
            return word[0]
    return None
