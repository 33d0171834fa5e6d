"""What teachers say, read once and kept on disk under the hash of what it depends on."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from transship import parallel
from transship.errors import TransshipError
from transship.geometry.maps import read_arrays, write_arrays

_KIND, _VERSION = "transship.teacher", 1


def kept_outputs(folder: Path | None, key: str, ask: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return what a teacher says: from the folder where it was asked before, otherwise asked and kept there.

    Args:
        folder: where outputs are kept; None keeps none.
        key: names teacher and inputs.
        ask: runs the teacher; every process takes part.
    """
    file = None
    if folder is not None:
        file = folder / f"teacher-{hashlib.sha256(key.encode()).hexdigest()[:24]}.safetensors"
    known = parallel.agreed(None if file is None or not parallel.is_main() else _read(file, key))
    if known is not None:
        return known
    outputs = {name: tensor.detach().cpu() for name, tensor in ask().items()}
    if file is not None and parallel.is_main():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_arrays(file, outputs, {"format": _KIND, "version": str(_VERSION), "key": key})
    return outputs


def _read(file: Path, key: str) -> dict[str, Tensor] | None:
    if not file.is_file():
        return None
    try:
        outputs, about = read_arrays(file, _KIND, _VERSION)
    except TransshipError:
        return None  # damaged: it is asked again
    return outputs if about.get("key") == key else None
