"""Data sets of the hub by name, through the optional library `datasets`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transship.data.dataset import split_name
from transship.data.locate import hub_parts, not_fetched
from transship.data.tables import MemoryTable, Table
from transship.errors import DataError, MissingError


def hub_table(name: str, config: str | None = None) -> Table:
    """Return all splits of a hub data set `owner/name[@revision]` as one table with a column `split`.

    No code of the data set's repository is run: the library reads its data files.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingError(
            "the library `datasets` is not installed", where=name, fix="pip install 'transship[hub]'"
        ) from error
    plain, revision = hub_parts(name)
    try:
        with _offline_when_unreachable(plain):
            loaded = datasets.load_dataset(plain, config, revision=revision)
    except ValueError as error:
        if "onfig" in str(error):
            configs = str(error).strip().split("\n")[0][:160]
            raise DataError(
                f"it comes in several configurations ({configs})", where=name, fix="pass config="
            ) from error
        raise not_fetched(name, "dataset", error) from error
    except (OSError, RuntimeError) as error:
        raise not_fetched(name, "dataset", error) from error
    return table_of_splits(name, loaded if isinstance(loaded, Mapping) else {"train": loaded})


@contextmanager
def _offline_when_unreachable(name: str) -> Iterator[None]:
    """Ask the hub once; where nothing answers, let the libraries use their cache at once, not after 24 s."""
    import datasets
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    before = datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE
    try:
        huggingface_hub.HfApi().dataset_info(name, timeout=10)
        unreachable = False
    except (HfHubHTTPError, ValueError):
        unreachable = False  # it answered: what the answer means is the loader's to say
    except Exception:  # the HTTP client below the hub's library changes, and with it the errors
        unreachable = True
    if unreachable:
        datasets.config.HF_HUB_OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE = before


def table_of_splits(name: str, splits: Mapping[str, Any]) -> Table:
    """Return the splits (`datasets.Dataset` each) as one table; class names come from its features."""
    import pyarrow

    tables, words = [], []
    for split, part in splits.items():
        table = part.with_format("arrow")[:] if len(part) else part.data.table
        tables.append(table)
        words.append(pyarrow.array([split_name(split)] * len(table), pyarrow.string()))
    names = [
        column for column in tables[0].column_names if all(column in table.column_names for table in tables)
    ]
    columns: dict[str, Any] = {
        column: pyarrow.chunked_array(
            [chunk for table in tables for chunk in table.column(column).chunks],
            tables[0].schema.field(column).type,
        )
        for column in names
    }
    if "split" not in columns:
        columns["split"] = pyarrow.chunked_array(words, pyarrow.string())
    features = next(iter(splits.values())).features
    classes = {
        column: list(feature.names)
        for column, feature in features.items()
        if type(feature).__name__ == "ClassLabel"
    }
    return MemoryTable(name, columns, sum(len(table) for table in tables), classes, folder=Path())
