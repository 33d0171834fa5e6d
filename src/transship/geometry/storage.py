"""Small numeric files: safetensors with JSON in the header, version-checked, renamed into place."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from transship.errors import DataError


def write_arrays(path: str | Path, arrays: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write `arrays` and the strings `about` them; the old file stays until the new one is whole."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        whole = {name: array.detach().cpu().contiguous() for name, array in arrays.items()}
        save_file(whole, beside, metadata=dict(about))
        _order_header(beside)
        os.replace(beside, target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _order_header(path: Path) -> None:
    """Sort the strings in the header, which the writer leaves in an order of chance."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
        ordered = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(ordered) <= size:  # padded with spaces, as the format has it
            file.seek(8)
            file.write(ordered.ljust(size))


def read_arrays(path: str | Path, kind: str, version: int) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return arrays and strings of a file of format `kind`, at most of `version`; else one clear error."""
    where = str(path)
    if not Path(path).is_file():
        raise DataError("there is no such file", where=where, fix="check the path")
    try:
        with safe_open(where, framework="pt") as file:
            about = dict(file.metadata() or {})
            _check_kind(about, kind, version, where)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(
            f"is not a readable safetensors file ({error})",
            where=where,
            fix="write it again: it may be cut off",
        ) from error
    broken = next((name for name, array in arrays.items() if not _finite(array)), None)
    if broken is not None:
        raise DataError(f"the array '{broken}' holds NaN or Inf", where=where, fix="write it again")
    return arrays, about


def _finite(array: Tensor) -> bool:
    return not array.is_floating_point() or bool(torch.isfinite(array.sum()))


def _check_kind(about: Mapping[str, str], kind: str, version: int, where: str) -> None:
    if about.get("format") != kind:
        raise DataError(
            f"is a file of format '{about.get('format', 'unknown')}', not '{kind}'",
            where=where,
            fix="check the path",
        )
    found = about.get("version", "")
    if not found.isdigit() or int(found) > version:
        raise DataError(
            f"has version '{found}', and this transship reads up to {version}",
            where=where,
            fix="update transship, or write the file again",
        )
