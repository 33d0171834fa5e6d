"""Files that lie: each is refused in one sentence, or reads as its header says."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors

from transship.checkpoints import WeightFile
from transship.checkpoints import open as open_checkpoint
from transship.checkpoints.dtypes import BY_CODE
from transship.errors import CheckpointError

ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def raw_file(header: Any, data: bytes = bytes(24), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


LIES = {
    "empty": (b"", "too few"),
    "seven bytes": (b"1234567", "too few"),
    "length beyond the file": (raw_file({"a": ENTRY}, length=10_000), "claims 10000 bytes"),
    "enormous length": (raw_file({"a": ENTRY}, length=2**64 - 1), "claims"),
    "not UTF-8": (raw_file(b'{"\xff": 1}'), "not UTF-8"),
    "not JSON": (raw_file(b'{"a": '), "not valid JSON"),
    "a list": (raw_file([1]), "not a JSON object"),
    "NaN": (raw_file(b'{"a": NaN}'), "not valid JSON"),
    "deep": (raw_file(b"[" * 100_000 + b"]" * 100_000), "not valid JSON"),
    "endless number": (raw_file(b'{"a": ' + b"9" * 10_000 + b"}"), "not valid JSON"),
    "twice": (raw_file(b'{"a": %b, "a": %b}' % ((json.dumps(ENTRY).encode(),) * 2)), "'a' appears twice"),
    "entry is text": (raw_file({"a": "F32"}), "lacks its dtype"),
    "no shape": (raw_file({"a": {"dtype": "F32", "data_offsets": [0, 24]}}), "lacks its dtype"),
    "unknown type": (raw_file({"a": ENTRY | {"dtype": "F31"}}), "unknown type 'F31'"),
    "type is a list": (raw_file({"a": ENTRY | {"dtype": ["F32"]}}), "unknown type"),
    "four-bit type": (raw_file({"a": ENTRY | {"dtype": "F4"}}), r"quantised \(F4\)"),
    "negative width": (raw_file({"a": ENTRY | {"shape": [-2, -3]}}), "no valid shape"),
    "fraction": (raw_file({"a": ENTRY | {"shape": [2.0, 3]}}), "no valid shape"),
    "true is no number": (raw_file({"a": ENTRY | {"shape": [True, 6]}}), "no valid shape"),
    "many dimensions": (raw_file({"a": ENTRY | {"shape": [1] * 100 + [6]}}), "no valid shape"),
    "absurd empty": (
        raw_file({"a": {"dtype": "F32", "shape": [0, 2**62, 8], "data_offsets": [0, 0]}}, b""),
        "impossible",
    ),
    "wrong size": (raw_file({"a": ENTRY | {"shape": [2, 4]}}), "needs 32 bytes by its shape, not 24"),
    "backwards": (raw_file({"a": ENTRY | {"data_offsets": [24, 0]}}), "no valid data_offsets"),
    "three offsets": (raw_file({"a": ENTRY | {"data_offsets": [0, 24, 24]}}), "no valid data_offsets"),
    "offsets beyond": (raw_file({"a": ENTRY | {"data_offsets": [100, 124]}}), "leaves a hole"),
    "overlap": (raw_file({"a": ENTRY, "b": ENTRY | {"data_offsets": [12, 36]}}, bytes(36)), "'b' overlaps"),
    "same place": (raw_file({"a": ENTRY, "b": ENTRY}), "overlaps"),
    "hole": (raw_file({"a": ENTRY, "b": ENTRY | {"data_offsets": [32, 56]}}, bytes(56)), "leaves a hole"),
    "truncated": (raw_file({"a": ENTRY}, bytes(23)), "take 24 bytes and 23 are there"),
    "rest": (raw_file({"a": ENTRY}, bytes(25)), "take 24 bytes and 25 are there"),
    "metadata": (raw_file({"__metadata__": {"a": 1}, "a": ENTRY}), "__metadata__"),
    "surrogate": (raw_file(b'{"\\ud800": %b}' % json.dumps(ENTRY).encode()), "no valid text"),
}


@pytest.mark.parametrize("kind", LIES)
def test_a_lying_file_is_refused_in_one_sentence(kind: str, tmp_path: Path):
    content, message = LIES[kind]
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(tmp_path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_names_in_messages_are_cut_and_escaped(tmp_path: Path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(raw_file({"\x1b[31m" + "x" * 100_000: ENTRY | {"dtype": "?"}}))
    with pytest.raises(CheckpointError) as caught:
        WeightFile(path)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_what_is_no_regular_file_is_refused(tmp_path: Path):
    import os

    os.mkfifo(tmp_path / "pipe.safetensors")  # opening it would wait for ever
    for name in ("pipe.safetensors", "missing.safetensors"):
        with pytest.raises(CheckpointError, match="no such file"):
            WeightFile(tmp_path / name)


def mutations(original: bytes, count: int, seed: int):
    """Yield mutated files: flipped bits, cuts, lying lengths, and headers edited at random."""
    rng = np.random.default_rng(seed)
    size = struct.unpack("<Q", original[:8])[0]
    values = [
        0,
        1,
        -1,
        3,
        24,
        2**31,
        2**63,
        2**70,
        1.5,
        True,
        None,
        "F32",
        "F64",
        "BF16",
        [],
        [0],
        [1, 2],
        {},
        "ü",
    ]
    for number in range(count):
        content, kind = bytearray(original), number % 6
        if kind == 0:  # bits of the length and the header
            for place in rng.integers(0, 8 + size, rng.integers(1, 4)):
                content[place] ^= 1 << int(rng.integers(8))
        elif kind == 1:  # bits anywhere
            content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        elif kind == 2:
            del content[int(rng.integers(len(content))) :]
        elif kind == 3:
            content[:8] = struct.pack("<Q", int(rng.integers(0, 2 * len(content))))
        else:
            header = json.loads(original[8 : 8 + size])
            for _ in range(int(rng.integers(1, 3))):
                edit(header, values, rng)
            data = original[8 + size :]
            if kind == 5:
                data = data[: len(data) - int(rng.integers(0, 16))] + bytes(int(rng.integers(0, 16)))
            content = bytearray(raw_file(header, data))
        yield bytes(content)


def edit(header: dict[str, Any], values: list[Any], rng: np.random.Generator) -> None:
    name = list(header)[int(rng.integers(len(header)))]
    value = values[int(rng.integers(len(values)))]
    if not isinstance(header[name], dict):
        header[name] = value
        return
    choice = int(rng.integers(6))
    keys = list(header[name])
    key = keys[int(rng.integers(len(keys)))] if keys else "dtype"
    if choice == 0:
        header[name] = value
    elif choice == 1:
        header[name].pop(key, None)
    elif choice == 2:
        header["copy of " + name] = header[name]
    elif choice == 3 and isinstance(header[name].get(key), list) and header[name][key]:
        numbers = header[name][key]
        numbers[int(rng.integers(len(numbers)))] = value
    elif choice == 4 and isinstance(header[name].get("data_offsets"), list):
        move = int(rng.integers(-16, 17))
        header[name]["data_offsets"] = [n + move for n in header[name]["data_offsets"] if isinstance(n, int)]
    else:
        header[name][key] = value


def test_600_mutated_files_read_consistently_or_are_refused(tmp_path: Path, make_file: Callable[..., bytes]):
    rng = np.random.default_rng(0)
    tensors = {
        "layer.0.weight": rng.standard_normal((60, 4)).astype(np.float32),
        "layer.0.bias": rng.standard_normal(3).astype(np.float16),
        "empty": np.zeros((0, 5), np.float32),
        "scalar": np.array(2.5, np.float64),
        "steps": np.arange(4, dtype=np.int64),
    }
    original = make_file(tensors, {"format": "pt"})
    path = tmp_path / "model.safetensors"
    opened = refused = 0
    tracemalloc.start()
    try:
        for content in mutations(original, 600, seed=1):
            path.write_bytes(content)
            try:
                opened += read_everything(path, content)
            except CheckpointError:
                refused += 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert opened + refused == 600
    assert opened > 40, "bits flipped in the data leave a valid file"
    assert refused > 300
    assert peak < 20_000_000


def read_everything(path: Path, content: bytes) -> int:
    """Open and read a file; what we accept, the format's own library accepts with the same bytes."""
    with open_checkpoint(path) as checkpoint:
        reference = dict(safetensors.deserialize(content))
        assert set(reference) == {*checkpoint.tensors, *checkpoint.tied}
        for name, info in checkpoint.tensors.items():
            assert bytes(checkpoint.raw(name)) == bytes(reference[name]["data"])
            assert list(info.shape) == reference[name]["shape"]
            assert BY_CODE[reference[name]["dtype"]].name == info.dtype
            assert checkpoint.read(name).shape == info.shape
            if info.dtype != "complex64":
                assert checkpoint.floats(name).size == info.size
    return 1
