"""Needs with hub ids, and data in the layout that the hub's parquet files have. Cheap to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transship.suites.runner import Need

if TYPE_CHECKING:
    from transship.data import Dataset

# the hub's own parquet copy of a data set that was published in another form
CONVERTED = "refs/convert/parquet"


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


def read(name: str, kind: Any, *, config: str | None = None, **options: Any) -> Dataset:
    """Return a hub data set from its parquet files: its own folder, the hub's cache, or the hub.

    Args:
        name: `owner/name[@revision]`.
        kind: of the data.
        config: the sub-folder of one configuration, where there are several.
        options: of `transship.data.load`.
    """
    from transship.data import data_files, find_data, load
    from transship.data.locate import hub_parts

    plain = hub_parts(name)[0]
    found = data_files(plain)
    folder = found[0] if found else find_data(name)
    if config is not None and (folder / config).is_dir():
        folder = folder / config
    return load(folder, kind, name=plain if config is None else f"{plain}/{config}", **options)
