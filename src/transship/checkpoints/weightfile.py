"""One safetensors file: a strict reader of its header over a memory map.

The format is 8 bytes of header length (little-endian), a JSON header, then the data. Everything that the
header says is checked against the file before a byte of data is touched, so that a lying file is an error
and not a crash.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from transship.checkpoints.dtypes import BY_CODE, BY_NAME, QUANTISED_CODES
from transship.errors import CheckpointError

if TYPE_CHECKING:
    import torch
from collections.abc import Iterable

HEADER_LIMIT = 100_000_000  # the limit that the format's own library sets
_DIMENSIONS_LIMIT = 64  # numpy's
_RELOAD = "fetch or save the file again"


@dataclass(frozen=True)
class TensorInfo:
    """What is known of a tensor before its data is read.

    Attributes:
        dtype: torch's name, such as `bfloat16`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int

    @property
    def size(self) -> int:
        return self.nbytes // BY_NAME[self.dtype].itemsize

    @property
    def floating(self) -> bool:
        """Return whether the elements are real floating-point numbers."""
        return BY_NAME[self.dtype].floating


def quote(name: str) -> str:
    """Return a name from outside as a message can show it: escaped, and not longer than a line."""
    return repr(name if len(name) <= 120 else name[:117] + "…")


class WeightFile:
    """A safetensors file, mapped into memory.

    Attributes:
        tensors: every tensor by name, in the order of the data; `part` stands before each name.
        metadata: the header's free texts.
    """

    pickled: ClassVar[bool] = False

    def __init__(self, path: Path, part: str = "") -> None:
        self.path = path
        self._map, size = _map_file(path)
        try:
            start, entries = _parse_header(self._map, size, path)
            self.metadata: Mapping[str, str] = _metadata(entries.pop("__metadata__", None), path)
            entries = {part + name: entry for name, entry in entries.items()}
            self.tensors, self._offsets = _layout(entries, start, size - start, path)
        except CheckpointError:
            self._map.close()
            raise
        self._view: memoryview | None = memoryview(self._map)
        self._private: mmap.mmap | None = None

    def raw(self, name: str) -> memoryview:
        """Return the bytes of a tensor in the read-only map."""
        start, stop = self._offsets[name]
        return self._open_view()[start:stop]

    def tensor(self, name: str) -> torch.Tensor:
        """Return the tensor over a copy-on-write map of the file: nothing is copied until it is written to.

        torch has no read-only tensors: writing to one over a read-only map would end the process.
        """
        import torch

        info, (start, _) = self.tensors[name], self._offsets[name]
        kind: torch.dtype = getattr(torch, info.dtype)
        if info.size == 0:
            return torch.empty(info.shape, dtype=kind)
        private = None if start % BY_NAME[info.dtype].itemsize else self._private_map()
        if private is None:
            flat = torch.frombuffer(bytearray(self.raw(name)), dtype=kind)
        else:
            flat = torch.frombuffer(private, dtype=kind, count=info.size, offset=start)
        return flat.reshape(info.shape)

    def _private_map(self) -> mmap.mmap | None:
        """Return the copy-on-write map, or None where the system will not promise so much memory."""
        self._open_view()
        if self._private is None:
            try:
                with self.path.open("rb") as file:
                    self._private = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            except OSError:
                return None
            if len(self._private) != len(self._map):
                _refuse("the file has changed since it was opened", self.path, fix="open it again")
        return self._private

    def close(self) -> None:
        """Let go of the map; arrays that still look into it keep it alive until they are gone."""
        self._view = self._private = None

    def _open_view(self) -> memoryview:
        if self._view is None:
            _refuse("it has been closed", self.path, fix="read before closing, or open it again")
        return self._view


def _map_file(path: Path) -> tuple[mmap.mmap, int]:
    if not path.is_file():  # a pipe would be waited for, a folder cannot be mapped
        _refuse("there is no such file", path, fix="check the path, or fetch the missing file")
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < 8:
                _refuse(f"{size} bytes are too few for a safetensors header", path)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), size
    except OSError as error:
        _refuse(f"it cannot be read ({error.strerror})", path, fix="check its path and permissions")


def _parse_header(data: mmap.mmap, size: int, path: Path) -> tuple[int, dict[str, Any]]:
    """Return where the data starts, and the header's entries."""
    length = int.from_bytes(data[:8], "little")
    if length > HEADER_LIMIT or length > size - 8:
        _refuse(f"its header claims {length} bytes, and the file has {size}", path)
    try:
        header = json.loads(
            data[8 : 8 + length].decode("utf-8"),
            object_pairs_hook=_without_duplicates,
            parse_constant=_no_constant,
        )
    except UnicodeDecodeError:
        _refuse("its header is not UTF-8", path)
    except (ValueError, RecursionError) as error:  # JSONDecodeError is a ValueError
        _refuse(f"its header is not valid JSON ({str(error)[:100]})", path)
    if not isinstance(header, dict):
        _refuse("its header is not a JSON object", path)
    return 8 + length, header


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"{quote(name)} appears twice")
        values[name] = value
    return values


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _metadata(found: Any, path: Path) -> dict[str, str]:
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        _refuse("its __metadata__ is not a table of texts", path)
    return found


def _layout(
    entries: dict[str, Any], start: int, size: int, path: Path
) -> tuple[dict[str, TensorInfo], dict[str, tuple[int, int]]]:
    """Check that the tensors cover the `size` bytes from `start` exactly: no hole, no overlap, no rest."""
    placed = sorted((*_entry(name, entry, path), name) for name, entry in entries.items())
    tensors, offsets, end = {}, {}, 0
    for begin, stop, shape, dtype, name in placed:
        if begin != end:
            fault = "overlaps the one before" if begin < end else "leaves a hole before it"
            _refuse(f"tensor {quote(name)} {fault}", path)
        end = stop
        tensors[name] = TensorInfo(name, shape, dtype, stop - begin)
        offsets[name] = (start + begin, start + stop)
    if end != size:
        _refuse(f"its tensors take {end} bytes and {size} are there", path)
    return tensors, offsets


def _entry(name: str, entry: Any, path: Path) -> tuple[int, int, tuple[int, ...], str]:
    """Return (begin, end, shape, dtype) of one header entry, or refuse what does not add up."""
    if not _is_text(name):
        _refuse(f"the tensor name {quote(name)} is no valid text", path)
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        _refuse(f"tensor {quote(name)} lacks its dtype, shape or data_offsets", path)
    code, shape, span = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in BY_CODE:
        _refuse_dtype(name, code, path)
    if not _whole(shape) or len(shape) > _DIMENSIONS_LIMIT:
        _refuse(f"tensor {quote(name)} has no valid shape", path)
    if not _whole(span) or len(span) != 2 or span[0] > span[1]:
        _refuse(f"tensor {quote(name)} has no valid data_offsets", path)
    nbytes, extent = BY_CODE[code].itemsize, BY_CODE[code].itemsize
    for width in shape:
        nbytes, extent = nbytes * width, extent * max(width, 1)
        if extent >= 1 << 62:  # an empty tensor of absurd width would still overflow numpy's strides
            _refuse(f"tensor {quote(name)} has an impossible shape", path)
    if nbytes != span[1] - span[0]:
        _refuse(f"tensor {quote(name)} needs {nbytes} bytes by its shape, not {span[1] - span[0]}", path)
    return span[0], span[1], tuple(shape), BY_CODE[code].name


def _refuse_dtype(name: str, code: Any, path: Path) -> NoReturn:
    if isinstance(code, str) and code in QUANTISED_CODES:
        _refuse(
            f"tensor {quote(name)} is quantised ({code})",
            path,
            fix="use the original weights in bfloat16 or float32",
        )
    _refuse(f"tensor {quote(name)} has the unknown type {quote(str(code))}", path)


def _whole(values: Any) -> bool:
    """Return whether `values` is a list of whole numbers from 0 on (JSON's true is no number)."""
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate, written as an escape
        return False
    return "\0" not in name


def _refuse(what: str, path: Path, *, fix: str = _RELOAD) -> NoReturn:
    raise CheckpointError(what, where=str(path), fix=fix)


PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_METHODS = {
    "gptq": "GPTQ",
    "awq": "AWQ",
    "bitsandbytes": "bitsandbytes",
    "compressed-tensors": "compressed-tensors",
    "fp8": "FP8",
    "fbgemm_fp8": "FP8",
    "hqq": "HQQ",
    "aqlm": "AQLM",
    "mxfp4": "MXFP4",
}
# tensors that only quantised layers have, for files whose config is missing or silent
_TELL_TALES = (
    (".qweight", "GPTQ or AWQ"),
    (".qzeros", "GPTQ or AWQ"),
    (".SCB", "bitsandbytes (8 bit)"),
    (".absmax", "bitsandbytes (4 bit)"),
    (".quant_map", "bitsandbytes (4 bit)"),
    (".weight_packed", "compressed-tensors"),
    (".weight_scale_inv", "FP8"),
)
_OTHER_FORMATS = {
    ".gguf": "GGUF",
    ".ggml": "GGML",
    ".onnx": "ONNX",
    ".h5": "TensorFlow (h5)",
    ".msgpack": "Flax (msgpack)",
    ".npz": "NumPy (npz)",
    ".tflite": "TensorFlow Lite",
}
# data, recipes and words, given where a model belongs
_NO_WEIGHTS = (
    ".csv",
    ".tsv",
    ".txt",
    ".json",
    ".jsonl",
    ".ndjson",
    ".yaml",
    ".yml",
    ".md",
    ".parquet",
    ".npy",
)
_ORIGINAL = (
    "use the original weights (the model that was quantised, in bfloat16 or float32), or dequantise it first"
)


def refuse_quantised(config: Mapping[str, Any], names: Iterable[str], where: str) -> None:
    """Refuse quantised weights by the name of their method."""
    declared = config.get("quantization_config")
    if declared:
        given = declared.get("quant_method") if isinstance(declared, dict) else None
        if given is None and isinstance(declared, dict):
            given = "bitsandbytes" if any("load_in_" in str(key) for key in declared) else "an unnamed method"
        method = _METHODS.get(str(given).lower(), str(given)[:40])
        raise CheckpointError(f"its weights are quantised ({method})", where=where, fix=_ORIGINAL)
    for name in names:
        for suffix, method in _TELL_TALES:
            if name.endswith(suffix):
                raise CheckpointError(
                    f"its weights are quantised ({method}: tensor {name[:100]!r})", where=where, fix=_ORIGINAL
                )


def refuse_format(path: Path) -> None:
    """Refuse a file of another format by its name; a GGUF file also by its first bytes."""
    format_name = _OTHER_FORMATS.get(path.suffix.lower())
    if format_name is None:
        try:
            with path.open("rb") as file:
                format_name = "GGUF" if file.read(4) == b"GGUF" else None
        except OSError as error:
            raise CheckpointError(
                f"it cannot be read ({error.strerror})", where=str(path), fix="check its permissions"
            ) from error
    if format_name in ("GGUF", "GGML"):
        raise CheckpointError(
            f"this is a {format_name} file, which is quantised", where=str(path), fix=_ORIGINAL
        )
    if path.suffix.lower() in _NO_WEIGHTS:
        raise CheckpointError(
            f"a {path.suffix.lower()} file holds no weights",
            where=str(path),
            fix="give a model: a folder with config.json and model.safetensors, an adapter, or a hub id",
        )
    if format_name is not None:
        raise CheckpointError(
            f"this is a {format_name} file",
            where=str(path),
            fix="give the model's safetensors folder instead",
        )


def pickle_refusal(path: Path) -> CheckpointError:
    """Return the error for a pickle that nobody allowed to be opened."""
    return CheckpointError(
        f"{path.name} is a pickle, which can run code when it is opened",
        where=str(path),
        fix="save the model as safetensors (model.save_pretrained does), or pass --allow-pickle",
    )


def nothing_here(folder: Path) -> CheckpointError:
    """Return the error for a folder without weights, which names what lies there instead."""
    for path in sorted(folder.iterdir()):
        format_name = _OTHER_FORMATS.get(path.suffix.lower())
        if format_name in ("GGUF", "GGML"):
            return CheckpointError(
                f"its weights are quantised ({format_name}: {path.name!r})", where=str(folder), fix=_ORIGINAL
            )
        if format_name is not None:
            return CheckpointError(
                f"it holds {format_name} weights ({path.name!r}) only",
                where=str(folder),
                fix="save the model as safetensors (model.save_pretrained does)",
            )
    return CheckpointError(
        "it holds no weights",
        where=str(folder),
        fix="give a folder with model.safetensors, model.safetensors.index.json or adapter_model.safetensors",
    )
