"""How far a collection is, kept in a folder so that a killed one goes on."""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from transship.activations.plan import MomentKeeper
from transship.errors import OptionError
from transship.geometry import load_moments, save_moments


@dataclass
class Progress:
    """How far the work is, with a digest of the inputs read, which a resumed run is held to."""

    batches: int = 0
    inputs: int = 0
    digest: str = ""
    finished: bool = False

    def __post_init__(self) -> None:
        self._again = ""
        self._checked = 0

    def see(self, items: Sequence[tuple[int, Any]], *, again: bool = False) -> None:
        made = hashlib.blake2b((self._again if again else self.digest).encode(), digest_size=16)
        for _, item in items:
            made.update(_bytes(item))
        if again:
            self._again = made.hexdigest()
            self._checked += 1
            if self._checked == self.batches and self._again != self.digest:
                raise OptionError(
                    "the saved state is of other inputs",
                    where="resume",
                    fix="give the same inputs, or another folder",
                )
            return
        self.digest = made.hexdigest()
        self.batches += 1
        self.inputs += len(items)

    def finish(self) -> None:
        self.finished = True


class SavedState:
    """Saved states in a folder: each whole in a folder of its own, renamed into place; the newest counts."""

    def __init__(self, folder: Path, kept: MomentKeeper, about: dict[str, Any], every: int) -> None:
        if every < 1:
            raise OptionError(f"save every {every} batches", where="save_every", fix="give 1 or more")
        self.folder, self.kept = folder, kept
        # rows are multiplied when a state is saved, so the interval is part of what makes two runs the same
        self.about = {**about, "save_every": every, "names": sorted(kept.moments)}

    def _found(self) -> list[Path]:
        places = self.folder.glob("state-*") if self.folder.is_dir() else []
        return sorted(place for place in places if place.name[6:].isdigit())

    def resume(self) -> Progress:
        found = self._found()
        if not found:
            return Progress()
        described = json.loads((found[-1] / "state.json").read_text(encoding="utf-8"))
        if described["about"] != json.loads(json.dumps(self.about)):
            raise OptionError(
                "the folder holds the state of another collection",
                where=str(self.folder),
                fix="choose another folder, or the same models and options",
            )
        moments = load_moments(found[-1] / "moments.safetensors")
        self.kept.moments.update({name: moments[name] for name in self.kept.moments})
        self.kept.counted = described["rows"]
        return Progress(**described["done"])

    def save(self, done: Progress) -> None:
        self.kept.flush()
        self.folder.mkdir(parents=True, exist_ok=True)
        older = self._found()
        place = self.folder / f"state-{done.batches + done.finished:09d}"
        if place in older:
            return
        made = self.folder / f"{place.name}.{os.getpid()}.part"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        save_moments(made / "moments.safetensors", self.kept.moments)
        progress = {
            "batches": done.batches,
            "inputs": done.inputs,
            "digest": done.digest,
            "finished": done.finished,
        }
        described = {"about": self.about, "rows": self.kept.counted, "done": progress}
        (made / "state.json").write_text(json.dumps(described), encoding="utf-8")
        made.rename(place)
        for old in (*older, *self.folder.glob("state-*.part")):
            shutil.rmtree(old, ignore_errors=True)


def signature(model: nn.Module) -> str:
    """Return a digest of some numbers of every weight: enough to tell a fine-tune from its base."""
    made = hashlib.blake2b(digest_size=16)
    for name, parameter in model.named_parameters():
        flat = parameter.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // 64)][:64].double().cpu()
        made.update(name.encode() + np.asarray(some).tobytes())
    return made.hexdigest()


def _bytes(item: Any) -> bytes:
    if isinstance(item, str):
        return item.encode("utf-8", "surrogatepass") + b"\0"
    if isinstance(item, tuple | list):
        return b"".join(_bytes(one) for one in item)
    if hasattr(item, "tobytes"):
        return bytes(item.tobytes())
    return np.asarray(item).tobytes()
