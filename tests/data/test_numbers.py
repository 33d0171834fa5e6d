"""Arrays, series and vectors: shapes, ragged rows, values that are not finite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from transship import data
from transship.data.numbers import stack_lists
from transship.errors import DataError
from transship.outside import unpacking_at_most


def stored(folder: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.table(columns), folder / "a.parquet")
    return folder / "a.parquet"


nested = arrays(
    np.float32, array_shapes(min_dims=2, max_dims=4, max_side=4), elements=st.floats(-9, 9, width=32)
)


@given(nested)
def test_nested_lists_give_back_the_array(values: np.ndarray):
    column = pa.chunked_array([pa.array(values.tolist())])
    np.testing.assert_array_equal(stack_lists(column, where="x"), values)


def test_chunks_slices_and_fixed_sizes_give_the_same_array():
    values = np.arange(24.0).reshape(6, 4)
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 4)
    large = pa.array(values.tolist(), pa.large_list(pa.float64()))
    for column in (pa.chunked_array([fixed]), pa.chunked_array([large[:2], large[2:]])):
        np.testing.assert_array_equal(stack_lists(column, where="x"), values)
        np.testing.assert_array_equal(stack_lists(column.slice(3), where="x"), values[3:])


def test_series_of_parquet_lists(tmp_path: Path):
    path = stored(tmp_path, {"series": [[1.0, 2.0], [3.0, 4.0]], "label": ["up", "down"]})
    dataset = data.load(path)
    assert dataset.kind == "series"
    assert dataset.inputs.shape == (2, 2)
    assert dataset.label_names == ("down", "up")


def test_vectors_come_with_their_ids(tmp_path: Path):
    dataset = data.load(stored(tmp_path, {"id": ["x", "y"], "embedding": [[1.0, 2.0], [3.0, 4.0]]}))
    assert dataset.kind == "vector"
    assert dataset.ids.tolist() == ["x", "y"]


def test_ragged_rows_are_named_and_can_be_cut_or_filled_up(tmp_path: Path):
    path = stored(tmp_path, {"series": [[1.0, 2.0], [3.0, 4.0], [5.0], [6.0, 7.0, 8.0]]})
    with pytest.raises(DataError, match="the rows are ragged: row 1 has 2 values and row 3 has 1"):
        data.series(path)
    assert data.series(path, length=2).inputs.tolist() == [[1, 2], [3, 4], [5, 0], [6, 7]]


def test_ragged_inner_lists_name_their_row(tmp_path: Path):
    path = stored(tmp_path, {"array": [[[1.0, 2.0], [1.0, 2.0]], [[1.0, 2.0], [1.0]]]})
    with pytest.raises(DataError, match="row 1 has 2 values and row 2 has 1"):
        data.arrays(path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1.0, float("nan")], [1.0, 2.0]], "row 1 holds NaN or infinity"),
        ([[1.0, 2.0], [float("inf"), 2.0]], "row 2 holds NaN or infinity"),
        ([[1.0, 2.0], None], "row 2 is missing"),
        ([[1.0, None], [1.0, 2.0]], "a row holds a value that is missing"),
        ([["a", "b"]], "holds string and no numbers"),
        ([[], []], "it is empty"),
    ],
)
def test_rows_that_are_no_numbers_are_refused(tmp_path: Path, rows: list[Any], message: str):
    with pytest.raises(DataError, match=message):
        data.series(stored(tmp_path, {"series": rows}))


@pytest.mark.parametrize("hole", ["", "NaN", "?", "NA"])
def test_a_wide_table_with_a_missing_number_is_still_a_series(tmp_path: Path, hole: str):
    (tmp_path / "a.csv").write_text(f"label,t0,t1,t2\nup,1,2,3\ndown,4,{hole},6\n")
    with pytest.raises(DataError, match=r"column 't1': row 2 (has no value|is NaN)"):
        data.load(tmp_path / "a.csv")
    dataset = data.load(tmp_path / "a.csv", gaps=True)
    assert dataset.kind == "series"
    np.testing.assert_array_equal(dataset.inputs, [[1, 2, 3], [4, np.nan, 6]])


def test_missing_numbers_are_read_where_they_are_asked_for(tmp_path: Path):
    rows = np.array([[1.0, np.nan], [1.0, 2.0]])
    np.save(tmp_path / "a.npy", rows)
    listed = stored(tmp_path, {"series": [[1.0, None], [1.0, 2.0]]})
    for path in (tmp_path / "a.npy", listed):
        np.testing.assert_array_equal(data.load(path, gaps=True).inputs, rows)
    np.save(tmp_path / "a.npy", rows * np.inf)
    with pytest.raises(DataError, match="row 1 holds infinity"):
        data.load(tmp_path / "a.npy", gaps=True)


def test_npy_is_mapped_and_not_read(tmp_path: Path):
    np.save(tmp_path / "a.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
    dataset = data.vectors(tmp_path / "a.npy")
    assert isinstance(dataset.inputs, np.memmap)
    assert dataset.inputs[2].tolist() == [6, 7, 8]


def test_npz_brings_labels_ids_and_splits(tmp_path: Path):
    np.savez(
        tmp_path / "a.npz", X=np.eye(3), y=[2, 0, 1], id=["a", "b", "c"], split=["train", "train", "test"]
    )
    dataset = data.load(tmp_path / "a")
    assert dataset.kind == "array"
    assert dataset.labels.tolist() == [2, 0, 1]
    assert dataset.ids.tolist() == ["a", "b", "c"]
    assert dataset.split("test").inputs.tolist() == [[0, 0, 1]]


def test_fields_have_fields_as_targets(tmp_path: Path):
    x, y = torch.rand(5, 4, 4) > 0.5, torch.rand(5, 4, 4)
    torch.save({"x": x, "y": y, "viscosity": torch.ones(1, 1)}, tmp_path / "a.pt")
    dataset = data.arrays(tmp_path / "a.pt")
    assert dataset.inputs.shape == (5, 4, 4)
    np.testing.assert_array_equal(dataset.labels, y.double().numpy())
    assert data.arrays(tmp_path / "a.pt", "y", label=False).labels is None


def test_arrays_are_named_where_their_names_are_unusual(tmp_path: Path):
    np.savez(tmp_path / "a.npz", before=np.eye(2), after=np.ones((2, 2)))
    with pytest.raises(DataError, match=r"none of its arrays \(before, after\) is named as array"):
        data.arrays(tmp_path / "a.npz")
    dataset = data.arrays(tmp_path / "a.npz", "before", label="after")
    assert dataset.labels.tolist() == [[1, 1], [1, 1]]
    with pytest.raises(DataError, match=r"no column 'befor'.*did you mean 'before'"):
        data.arrays(tmp_path / "a.npz", "befor")
    with pytest.raises(DataError, match="no column 'afterwards'"):
        data.arrays(tmp_path / "a.npz", "before", label="afterwards")


def test_pickled_objects_are_never_loaded(tmp_path: Path):
    np.save(tmp_path / "a.npy", np.array([[1], [1, 2]], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"pickled objects \(perhaps ragged rows\), which are never loaded"):
        data.arrays(tmp_path / "a.npy")


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.pt"])
def test_broken_and_empty_files_are_refused(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError, match="the file is empty"):
        data.arrays(tmp_path / name)
    (tmp_path / name).write_bytes(b"\x93NUMPY nonsense")
    with pytest.raises(DataError, match="no readable"):
        data.arrays(tmp_path / name)


def test_shapes_that_do_not_fit_the_kind_are_refused(tmp_path: Path):
    np.save(tmp_path / "a.npy", np.zeros((2, 3, 4)))
    with pytest.raises(DataError, match=r"shape \[2, 3, 4\] does not read as vector; give \[rows, width\]"):
        data.vectors(tmp_path / "a.npy")
    assert data.series(tmp_path / "a.npy").inputs.shape == (2, 3, 4)
    with pytest.raises(DataError, match="a npy file holds numbers and no text"):
        data.text(tmp_path / "a.npy")


def test_numeric_columns_of_a_csv_stand_side_by_side(tmp_path: Path):
    (tmp_path / "a.csv").write_text("id,height,weight,label,note\n1,1.5,2,up,x\n2,3,4,down,y\n")
    dataset = data.arrays(tmp_path / "a.csv")
    assert dataset.inputs.tolist() == [[1.5, 2], [3, 4]]
    assert dataset.label_names == ("down", "up")
    assert dataset.ids.tolist() == ["1", "2"]


def test_a_csv_without_numbers_is_refused(tmp_path: Path):
    (tmp_path / "a.csv").write_text("a,b\nx,y\n")
    with pytest.raises(
        DataError, match=r"no column holds numbers or lists of numbers \(the columns are a, b\)"
    ):
        data.arrays(tmp_path / "a.csv")


def torch_file(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(4, dtype=torch.bfloat16),
        torch.eye(4).to_sparse(),
        torch.eye(4, requires_grad=True),
        torch.eye(4).to(torch.float8_e4m3fn),
        torch.quantize_per_tensor(torch.eye(4), 0.5, 0, torch.qint8),
    ],
    ids=["bfloat16", "sparse", "grad", "float8", "quantised"],
)
def test_every_kind_of_real_tensor_gives_its_numbers(tensor: torch.Tensor, tmp_path: Path):
    rows = data.arrays(torch_file(tmp_path / "rows.pt", {"x": tensor})).inputs
    np.testing.assert_array_equal(np.asarray(rows), np.eye(4))


@pytest.mark.parametrize("tensor", [torch.zeros(4, 2, device="meta"), torch.zeros(4, dtype=torch.complex64)])
def test_tensors_without_real_numbers_are_refused(tensor: torch.Tensor, tmp_path: Path):
    with pytest.raises(DataError, match=r"no readable pt file|complex64 and no numbers"):
        data.arrays(torch_file(tmp_path / "rows.pt", tensor))


@pytest.mark.parametrize("content", [torch.zeros(1).expand(10**10, 1), {"x": torch.zeros(1).expand(10**10)}])
def test_a_tensor_that_repeats_one_number_is_refused_before_its_rows_are_made(content: Any, tmp_path: Path):
    with (
        unpacking_at_most(10**9),
        pytest.raises(DataError, match=r"it takes 40\.0 GB, and --memory"),
    ):
        data.arrays(torch_file(tmp_path / "rows.pt", content))


def test_an_archive_is_refused_by_its_listing_before_it_is_unpacked(tmp_path: Path):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((4000, 1000)))
    assert (tmp_path / "a.npz").stat().st_size < 100_000
    with (
        unpacking_at_most(10**7),
        pytest.raises(DataError, match=r"32\.0 MB, and --memory is 10\.0 MB"),
    ):
        data.arrays(tmp_path / "a.npz")
    assert len(data.arrays(tmp_path / "a.npz")) == 4000


@pytest.mark.parametrize("shape", ["(-2, -5)", "(-2, 5)", f"({10**20}, 5)", "(1000000000,)"])
def test_an_array_file_whose_shape_lies_is_refused(shape: str, tmp_path: Path):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(40))
    with pytest.raises(DataError, match="it is no readable npy file"):
        data.arrays(path)
