"""Images, decoded lazily: folders with or without classes, columns of encoded bytes, embedded digits."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from transship.data.dataset import Dataset, split_name
from transship.data.labels import Options, assemble, need_column
from transship.data.rows import LazyRows
from transship.data.tables import DataTable
from transship.errors import DataError, TransshipError
from transship.outside import require_room

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
)
_SPLITS = frozenset({"train", "validation", "test"})
Mode = Literal["RGB", "L"] | None
_PIXEL_BYTES = 8  # decoded and converted: twice up to four


class EncodedImages(LazyRows):
    """Images from rows of encoded bytes, paths, or {bytes, path} structs; row `i` is decoded when indexed."""

    def __init__(self, rows: Sequence[Any], where: str, folder: Path | None, mode: Mode) -> None:
        self.rows, self.where, self.folder, self.mode = rows, where, folder, mode

    def __len__(self) -> int:
        return len(self.rows)

    def _row(self, index: int) -> Image:
        from PIL import Image

        encoded = self.encoded(index)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # its size is looked at below
                with Image.open(io.BytesIO(encoded)) as image:
                    require_room(_PIXEL_BYTES * image.width * image.height, f"{self.where}, row {index + 1}")
                    image.load()
                    return image.convert(self.mode) if self.mode and image.mode != self.mode else image.copy()
        except TransshipError:
            raise
        except Exception as error:  # Pillow's readers raise whatever they meet in a broken or hostile file
            raise self._refusal(index, "cannot be decoded") from error

    def raw(self, index: int) -> bytes:
        """Return the encoded bytes, so that a fingerprint decodes nothing."""
        return f"image {self.mode} ".encode() + self.encoded(index)

    def encoded(self, index: int) -> bytes:
        value = self.rows[index]
        if isinstance(value, dict):
            value = value.get("bytes") or value.get("path")
        if isinstance(value, (bytes, bytearray)):
            return bytes(value)
        if isinstance(value, (str, Path)) and str(value):
            return self._read(index, Path(value))
        raise self._refusal(index, "is missing")

    def _read(self, index: int, path: Path) -> bytes:
        try:
            return ((self.folder or Path()) / path).read_bytes()
        except OSError as error:
            raise self._refusal(index, f"cannot be read ({error.strerror})") from error

    def _refusal(self, index: int, what: str) -> DataError:
        value = self.rows[index]
        named = f" ({value})" if isinstance(value, (str, Path)) else ""
        return DataError(
            f"the image of row {index + 1}{named} {what}", where=self.where, fix="replace or drop it"
        )


class PixelImages(LazyRows):
    """Images from an array of pixels [rows, height, width(, 3)], uint8."""

    def __init__(self, pixels: NDArray[np.uint8], mode: Mode) -> None:
        self.pixels, self.mode = pixels, mode

    def __len__(self) -> int:
        return len(self.pixels)

    def _row(self, index: int) -> Image:
        from PIL import Image

        image = Image.fromarray(self.pixels[index])
        return image.convert(self.mode) if self.mode and image.mode != self.mode else image

    def raw(self, index: int) -> bytes:
        row = self.pixels[index]
        return f"pixels {self.mode} {row.shape} ".encode() + bytes(row.tobytes())


def images_of_table(table: DataTable, options: Options, name: str, mode: Mode) -> Dataset:
    """Return the images of a table's column of encoded bytes, paths or structs."""
    column = need_column("image", table.names, options.column, where=table.source)
    rows = table.rows_of(column)
    where = f"{table.source}, column '{column}'"
    head = rows[0]
    if not isinstance(head, (bytes, str, dict, type(None))):
        raise DataError(
            f"it holds {type(head).__name__} and no encoded images",
            where=where,
            fix="store PNG or JPEG bytes, name another column with --column, or read it with arrays()",
        )
    inputs = EncodedImages(rows, where, table.folder(), mode)
    if head is None:
        raise DataError("the image of row 1 is missing", where=where, fix="replace or drop it")
    return assemble(table, inputs, "image", options, used=[column], name=name)


def images_of_folder(folder: Path, options: Options, name: str, mode: Mode) -> Dataset:
    """Return the images below a folder: its sub-folders are classes, and above them perhaps splits.

    Layouts: `*.png`, `class/*.png`, `split/*.png`, `split/class/*.png`. Ids are the paths below the folder.
    """
    files = sorted(
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.suffix.lower() in IMAGE_SUFFIXES
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not files:
        raise DataError(
            "the folder holds neither images nor a table",
            where=str(folder),
            fix="give one with png, jpg, parquet, jsonl, csv or txt files below it",
        )
    tops = {split_name(file.parts[0]) if len(file.parts) > 1 else "" for file in files}
    split_level = 1 if tops <= _SPLITS else 0
    depths = {len(file.parts) - split_level for file in files}
    if len(depths) > 1:
        flat = next(file for file in files if len(file.parts) - split_level == min(depths))
        raise DataError(
            f"'{flat}' lies beside class folders"
            if min(depths) == 1
            else f"class folders differ in depth at '{flat}'",
            where=str(folder),
            fix="put every image into a folder of its class, or none",
        )
    labels: NDArray[np.int64] | None = None
    label_names: tuple[str, ...] = ()
    if depths != {1} and options.label is not False:
        classes = np.array(["/".join(file.parts[split_level:-1]) for file in files])
        names, places = np.unique(classes, return_inverse=True)
        labels, label_names = places.astype(np.int64).reshape(-1), tuple(map(str, names))
    dataset = Dataset(
        name=name,
        kind="image",
        inputs=EncodedImages([str(file) for file in files], str(folder), folder, mode),
        labels=labels,
        label_names=label_names,
        ids=np.array([file.as_posix() for file in files], dtype=object),
        has_ids=True,
        splits=np.array([split_name(file.parts[0]) for file in files]) if split_level else None,
    )
    return dataset.split(options.split) if options.split is not None else dataset


def digits(
    *, kind: Literal["image", "array"] = "image", split: str | None = None, seed: int = 0, mode: Mode = "RGB"
) -> Dataset:
    """Return scikit-learn's 1,797 handwritten digits, 8×8 with 17 greys, 10 classes; 80 % train, 20 % test.

    As images (PIL, greys stretched to 0–255) or as an array float32 [rows, 8, 8] between 0 and 1. The splits
    are stratified and drawn with `seed`.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    grey = bunch.images.astype(np.float32) / np.float32(16)
    pixels = np.rint(grey * 255).astype(np.uint8)
    dataset = Dataset(
        name="digits",
        kind=kind,
        inputs=PixelImages(pixels, mode) if kind == "image" else grey,
        labels=bunch.target.astype(np.int64),
        label_names=tuple(str(name) for name in bunch.target_names),
        ids=np.arange(len(pixels)),
        has_ids=True,
    )
    dataset = dataset.with_splits(seed=seed, stratified=True)
    return dataset.split(split) if split is not None else dataset
