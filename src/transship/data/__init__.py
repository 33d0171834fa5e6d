"""What goes in: text, images, arrays, series and vectors from files, folders, memory or the hub.

Importing this room imports numpy and neither pyarrow, PIL nor torch; they come when data is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transship.doors import door

if TYPE_CHECKING:
    from transship.data.dataset import KINDS, Dataset, Kind
    from transship.data.loading import arrays, images, load, series, text, vectors, wrap
    from transship.data.locate import (
        data_files,
        data_folders,
        find_data,
        find_model,
        is_hub_id,
        local_model,
        model_folders,
    )
    from transship.data.pictures import digits
    from transship.data.tables import read_utf8
else:
    __getattr__, __dir__ = door(__name__)

__all__ = [
    "KINDS",
    "Dataset",
    "Kind",
    "arrays",
    "data_files",
    "data_folders",
    "digits",
    "find_data",
    "find_model",
    "images",
    "is_hub_id",
    "load",
    "local_model",
    "model_folders",
    "read_utf8",
    "series",
    "text",
    "vectors",
    "wrap",
]
