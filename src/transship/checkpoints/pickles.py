"""Pickled weights, loaded weights-only when the user allows it: the one reader here that needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transship.checkpoints.dtypes import BY_NAME
from transship.checkpoints.weightfile import TensorInfo
from transship.errors import CheckpointError

if TYPE_CHECKING:
    import torch


class PickleFile:
    """A `torch.save` file with a table of tensors; it looks like a `WeightFile`.

    Attributes:
        tensors: every tensor by name.
        metadata: alias → kept name, for tensors that share one piece of memory in the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._values: dict[str, torch.Tensor] = {}
        self.metadata: dict[str, str] = {}
        kept: dict[tuple[Any, ...], str] = {}
        for name, tensor in _load(path).items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            if dtype not in BY_NAME:
                raise CheckpointError(
                    f"tensor {name!r} has the type {dtype}",
                    where=str(path),
                    fix="use weights that are not quantised",
                )
            place = (tensor.data_ptr(), tensor.shape, tensor.stride(), dtype)
            if tensor.numel() and place in kept:
                self.metadata[name] = kept[place]
            else:
                kept[place] = name
                self._values[name] = tensor
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(
                name, tuple(tensor.shape), str(tensor.dtype)[6:], tensor.numel() * tensor.element_size()
            )
            for name, tensor in self._values.items()
        }

    def raw(self, name: str) -> memoryview:
        """Return the bytes of one tensor, in row-major order."""
        import torch

        flat = self._values[name].contiguous().reshape(-1)
        array: Any = flat.view(torch.uint8).numpy()
        return memoryview(array).toreadonly()

    def tensor(self, name: str) -> torch.Tensor:
        """Return one tensor, to be treated as read-only."""
        return self._values[name]

    def close(self) -> None:
        """Let go of the tensors."""
        self._values = {}


def _load(path: Path) -> dict[str, torch.Tensor]:
    """Return the file's table of tensors; one level of wrapping (`state_dict`, `model`) is looked through."""
    import zipfile

    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # torch raises whatever its unpickler meets in a broken or hostile file
        reason = str(error).strip().split("\n")[0][:160] or type(error).__name__
        raise CheckpointError(
            f"it cannot be loaded weights-only ({reason})",
            where=str(path),
            fix="save the model as safetensors",
        ) from error
    for wrapper in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if (
        not isinstance(content, dict)
        or not content
        or not all(
            isinstance(name, str) and isinstance(tensor, torch.Tensor) and not tensor.is_quantized
            for name, tensor in content.items()
        )
    ):
        raise CheckpointError(
            "it holds no plain table of tensors", where=str(path), fix="save model.state_dict()"
        )
    return {name: tensor.detach() for name, tensor in content.items()}
