"""Reading in the stored dtype, by chunks, as bytes, as torch tensors; what the fingerprint depends on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from transship.checkpoints import check_finite, copied, write_checkpoint
from transship.checkpoints import open as open_checkpoint
from transship.errors import CheckpointError, NumericalError

KINDS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
         torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]  # fmt: skip


@pytest.fixture
def every_kind(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    tensors = {str(kind): (torch.randn(3, 5, generator=generator) * 3).to(kind) for kind in KINDS}
    save_file(
        {**tensors, "empty": torch.zeros(0, 4), "scalar": torch.tensor(1.5)}, tmp_path / "k.safetensors"
    )
    return tmp_path / "k.safetensors"


def test_every_dtype_reads_as_torch_reads_it(every_kind: Path):
    expected = load_file(every_kind)
    checkpoint = open_checkpoint(every_kind)
    assert set(checkpoint.tensors) == set(expected)
    for name, tensor in expected.items():
        assert checkpoint.info(name).dtype == str(tensor.dtype).removeprefix("torch.")
        assert tuple(tensor.shape) == checkpoint.info(name).shape
        wide = (
            tensor.float()
            if tensor.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
            else tensor
        )
        np.testing.assert_array_equal(checkpoint.read(name), wide.numpy())
        assert checkpoint.read(name).dtype == wide.numpy().dtype
        np.testing.assert_array_equal(checkpoint.floats(name), tensor.float().reshape(-1).numpy())
        assert torch.equal(
            checkpoint.tensor(name).reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)
        )
        assert bytes(checkpoint.raw(name)) == bytes(tensor.reshape(-1).view(torch.uint8).numpy())


def test_chunks_are_slices_of_the_flat_tensor(every_kind: Path):
    checkpoint = open_checkpoint(every_kind)
    whole = checkpoint.floats("torch.bfloat16")
    for start, stop in ((0, 4), (3, 11), (14, None), (15, 15), (5, 99)):
        np.testing.assert_array_equal(checkpoint.floats("torch.bfloat16", start, stop), whole[start:stop])


def test_known_types_are_not_copied(minilm: Path):
    checkpoint = open_checkpoint(minilm)
    array = checkpoint.read("embeddings.word_embeddings.weight")
    assert not array.flags.owndata
    assert not array.flags.writeable
    assert np.shares_memory(array, checkpoint.floats("embeddings.word_embeddings.weight"))


def test_writing_to_a_torch_tensor_leaves_the_file_alone(every_kind: Path):
    before = every_kind.read_bytes()
    checkpoint = open_checkpoint(every_kind)
    checkpoint.tensor("torch.float32").zero_()
    assert every_kind.read_bytes() == before
    assert checkpoint.read("torch.float32").any()


def test_unaligned_tensors_are_read(tmp_path: Path):
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    header += b" " * ((1 - len(header)) % 4)
    (tmp_path / "u.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + np.array([1, 2], np.float32).tobytes()
    )
    checkpoint = open_checkpoint(tmp_path / "u.safetensors")
    np.testing.assert_array_equal(checkpoint.read("a"), [1, 2])
    assert checkpoint.tensor("a").tolist() == [1, 2]


def test_arrays_outlive_the_checkpoint(every_kind: Path):
    with open_checkpoint(every_kind) as checkpoint:
        array = checkpoint.read("torch.float32")
        expected = array.copy()
    np.testing.assert_array_equal(array, expected)
    with pytest.raises(CheckpointError, match="closed"):
        checkpoint.read("torch.float32")


def test_an_unknown_tensor_is_named(every_kind: Path):
    with pytest.raises(CheckpointError, match="no tensor 'nothing'"):
        open_checkpoint(every_kind).read("nothing")


def test_the_fingerprint_follows_the_content_not_the_files(minilm: Path, tmp_path: Path):
    base = open_checkpoint(minilm)
    write_checkpoint(tmp_path / "copy", reversed(list(copied(base))), like=base, max_shard_size="30MB")
    copy = open_checkpoint(tmp_path / "copy")
    assert len(list((tmp_path / "copy").glob("*.safetensors"))) > 2
    assert len(base.fingerprint()) == 64
    assert copy.fingerprint() == base.fingerprint()


def test_the_fingerprint_sees_a_bit_a_name_and_a_setting(make_folder: Callable[..., Path]):
    values = np.arange(8, dtype=np.float32)
    changed = values.copy()
    changed.view(np.uint32)[3] ^= 1
    prints = [
        open_checkpoint(make_folder(str(number), tensors, config)).fingerprint()
        for number, (tensors, config) in enumerate([
            ({"a": values}, {"x": 1}),
            ({"a": changed}, {"x": 1}),
            ({"b": values}, {"x": 1}),
            ({"a": values}, {"x": 2}),
            ({"a": values.reshape(2, 4)}, {"x": 1}),
            ({"a": values}, {"x": 1, "_name_or_path": "elsewhere", "torch_dtype": "float32"}),
        ])
    ]  # fmt: skip
    assert len(set(prints)) == 5
    assert prints[0] == prints[-1]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named(value: float, make_folder: Callable[..., Path]):
    bad = np.zeros(300_000, np.float32)
    bad[200_001] = value
    checkpoint = open_checkpoint(make_folder("m", {"good": np.ones(3, np.float32), "bad.weight": bad}))
    with pytest.raises(NumericalError, match=r"'bad\.weight' holds a NaN or an infinity at element 200001"):
        check_finite(checkpoint)
    check_finite(checkpoint, ["good"])
