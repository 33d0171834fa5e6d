"""Images from folders, bytes, structs and pixels; the embedded digits."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from transship import data
from transship.errors import DataError
from transship.outside import unpacking_at_most


def png(grey: int, size: int = 4, form: str = "PNG") -> bytes:
    target = io.BytesIO()
    Image.fromarray(np.full((size, size), grey, np.uint8)).save(target, form)
    return target.getvalue()


def folder_of(root: Path, *names: str) -> Path:
    for place, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(png(place))
    return root


def test_sub_folders_are_classes(tmp_path: Path):
    dataset = data.images(folder_of(tmp_path, "cat/1.png", "cat/2.PNG", "ant/1.png"))
    assert dataset.label_names == ("ant", "cat")
    assert dataset.labels.tolist() == [0, 1, 1]
    assert dataset.ids.tolist() == ["ant/1.png", "cat/1.png", "cat/2.PNG"]
    assert dataset.inputs[1].mode == "RGB"


def test_a_flat_folder_has_no_labels(tmp_path: Path):
    dataset = data.load(folder_of(tmp_path, "a.png", "b.png"))
    assert dataset.kind == "image"
    assert dataset.labels is None


def test_folders_named_after_splits_are_splits(tmp_path: Path):
    dataset = data.images(folder_of(tmp_path, "train/cat/1.png", "train/dog/1.png", "val/cat/1.png"))
    assert dict(dataset.split_sizes) == {"train": 2, "validation": 1}
    assert dataset.split("validation").labels.tolist() == [0]
    assert data.images(tmp_path, split="train").label_names == ("cat", "dog")


def test_an_image_beside_class_folders_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match=r"'stray.png' lies beside class folders"):
        data.images(folder_of(tmp_path, "cat/1.png", "stray.png"))


def test_a_folder_without_data_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match="neither images nor a table"):
        data.load(tmp_path)


def test_notes_beside_images_do_not_hide_them(tmp_path: Path):
    folder_of(tmp_path, "a.png")
    (tmp_path / "readme.txt").write_text("about")
    assert data.load(tmp_path).kind == "image"


@pytest.mark.parametrize("form", ["PNG", "JPEG", "BMP"])
def test_columns_of_bytes_and_of_structs_give_the_same_images(tmp_path: Path, form: str):
    encoded = [png(10, form=form), png(200, form=form)]
    pq.write_table(pa.table({"image": encoded, "label": [0, 1]}), tmp_path / "plain.parquet")
    structs = [{"bytes": each, "path": f"{place}.x"} for place, each in enumerate(encoded)]
    pq.write_table(pa.table({"image": structs, "label": [0, 1]}), tmp_path / "structs.parquet")
    plain, struct = data.load(tmp_path / "plain.parquet"), data.load(tmp_path / "structs.parquet")
    assert plain.kind == struct.kind == "image"
    assert plain.fingerprint() == struct.fingerprint()
    assert [image.getpixel((0, 0))[0] for image in plain.inputs] == pytest.approx([10, 200], abs=2)


def test_structs_without_bytes_are_read_from_their_path(tmp_path: Path):
    (tmp_path / "one.png").write_bytes(png(77))
    pq.write_table(
        pa.table(
            {"image": [{"bytes": None, "path": "one.png"}]},
            schema=pa.schema([("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())]))]),
        ),
        tmp_path / "a.parquet",
    )
    assert data.images(tmp_path / "a.parquet").inputs[0].getpixel((0, 0)) == (77, 77, 77)


def test_images_are_decoded_only_when_they_are_asked_for(tmp_path: Path):
    pq.write_table(pa.table({"image": [png(1), b"no image", None]}), tmp_path / "a.parquet")
    dataset = data.images(tmp_path / "a.parquet")
    assert len(dataset) == 3
    assert dataset.inputs[0].size == (4, 4)
    with pytest.raises(DataError, match=r"a.parquet, column 'image': the image of row 2 cannot be decoded"):
        dataset.inputs[1]
    with pytest.raises(DataError, match="the image of row 3 is missing"):
        dataset.inputs[2]


def test_a_truncated_image_is_refused(tmp_path: Path):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:900])
    with pytest.raises(DataError, match=r"row 1 \(cut.png\) cannot be decoded"):
        data.images(tmp_path).inputs[0]


def test_a_column_without_images_is_refused(tmp_path: Path):
    pq.write_table(pa.table({"image": [[1.0, 2.0]]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="holds list and no encoded images"):
        data.images(tmp_path / "a.parquet")


def test_the_mode_may_be_kept_or_chosen(tmp_path: Path):
    folder_of(tmp_path, "a.png")
    assert data.images(tmp_path, mode=None).inputs[0].mode == "L"
    assert data.images(tmp_path, mode="L").inputs[0].mode == "L"


def test_pixels_in_memory_are_images():
    pixels = np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3)
    dataset = data.wrap(pixels, kind="image")
    assert np.asarray(dataset.inputs[0]).tolist() == pixels[0].tolist()
    with pytest.raises(DataError, match="the pixels are float64"):
        data.wrap(pixels / 255, kind="image")


def test_digits_are_scikit_learns():
    reference = load_digits()
    dataset = data.digits(kind="array")
    np.testing.assert_allclose(dataset.inputs, reference.images / 16)
    assert dataset.labels.tolist() == reference.target.tolist()
    image = data.load("digits").inputs[5]
    np.testing.assert_array_equal(np.asarray(image)[..., 0], np.rint(reference.images[5] / 16 * 255))
    assert image.mode == "RGB"


def test_digits_are_split_evenly_and_by_seed():
    dataset = data.digits()
    assert dict(dataset.split_sizes) == {"train": 1438, "test": 359}
    assert np.ptp(np.bincount(dataset.split("test").labels)) <= 3
    assert data.digits(seed=1).splits.tolist() != dataset.splits.tolist()
    assert data.digits(split="test").fingerprint() == dataset.split("test").fingerprint()


def test_a_picture_is_refused_by_its_header_before_it_is_decoded(tmp_path: Path):
    Image.new("1", (13_000, 13_000)).save(tmp_path / "large.png")  # 169 megapixels in 20 kB
    with unpacking_at_most(10**9), pytest.raises(DataError, match=r"row 1: unpacked it takes 1\.4 GB"):
        data.images(tmp_path).inputs[0]
