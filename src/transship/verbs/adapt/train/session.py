"""The state of a training that may be killed: written whole between steps, and gone on from.

Every draw of a training depends on seed, phase and step alone, so weights, optimiser moments, what objectives
keep and the step's number are all there is to remember; a resumed training ends in the same bytes.
"""

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transship.atomic import atomic_file
from transship.errors import OutputError

_FILE = "state.safetensors"


class Session:
    """A folder for checkpoints, or none.

    Attributes:
        folder: where; None keeps nothing.
        key: names arguments, data and backbone: another fit's folder is refused.
        every: seconds between two checkpoints.
    """

    def __init__(self, folder: Path | None, key: str, *, every: float = 30.0) -> None:
        self.folder, self.key, self.every = folder, key, every
        self._last = time.monotonic()

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the tensors and facts of the last checkpoint, if there is one."""
        from safetensors import safe_open
        from safetensors.torch import load

        if self.folder is None or not (self.folder / _FILE).is_file():
            return None
        with safe_open(self.folder / _FILE, "pt") as file:
            about = json.loads((file.metadata() or {})["about"])
        tensors: dict[str, Tensor] = load((self.folder / _FILE).read_bytes())
        if about["key"] != self.key:
            raise OutputError(
                "it holds the checkpoint of another fit (other data, arguments or backbone)",
                where=str(self.folder),
                fix="name another folder, or remove it",
            )
        return tensors, about

    def due(self) -> bool:
        """Return whether it is time for a checkpoint."""
        return self.folder is not None and time.monotonic() - self._last >= self.every

    def save(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        """Write a checkpoint, whole or not at all."""
        from safetensors.torch import save_file

        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
        with atomic_file(self.folder / _FILE, force=True, sync=False) as draft:
            save_file(plain, draft, {"about": json.dumps(about | {"key": self.key})})
        self._last = time.monotonic()

    def clear(self) -> None:
        """Remove the checkpoint: the training is done."""
        if self.folder is not None:
            (self.folder / _FILE).unlink(missing_ok=True)


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's moments by name."""
    return {
        f"optimiser.{number}.{name}": value if isinstance(value, Tensor) else torch.tensor(value)
        for number, state in optimiser.state_dict()["state"].items()
        for name, value in state.items()
    }


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimiser_tensors` gave."""
    found: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimiser."):
            _, number, key = name.split(".", 2)
            found.setdefault(int(number), {})[key] = value
    optimiser.load_state_dict({**optimiser.state_dict(), "state": found})


__all__ = ["Session", "load_optimiser", "optimiser_tensors"]
