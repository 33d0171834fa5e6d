"""What is not opened, and what its owner can do: quantised weights, pickles, other formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transship.errors import CheckpointError

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
