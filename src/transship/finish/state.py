"""The state of a finish on disk: what is learnt, Adam's moments, and the outcome of runs that have ended."""

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load, save_file
from torch import Tensor

from transship import parallel
from transship.atomic import atomic_file
from transship.errors import OutputError
from transship.finish.descent import Adam

EVERY = 30.0  # seconds between two saved states


@dataclass(frozen=True)
class RunFacts:
    """How far a run is.

    Attributes:
        number: of the run.
        done: steps.
        score: the best held-out loss.
        step: where it was.
        curve: (step, held-out loss).
        ended: whether the run is over.
    """

    number: int
    done: int
    score: float
    step: int
    curve: tuple[tuple[int, float], ...] = ()
    ended: bool = False


@dataclass(eq=False)
class FinishState:
    """What is kept of a finish, in memory and where a folder was given on disk.

    Attributes:
        file: where; None keeps nothing on disk.
        key: names models, inputs and settings.
        runs: number → facts.
        tensors: `run.number.best.name`, and of the one that is running `learnt.name` and `adam.name`.
        saved: when the file was last written, by the monotonic clock.
    """

    file: Path | None
    key: str
    runs: dict[int, RunFacts] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    saved: float = field(default_factory=time.monotonic)

    @classmethod
    def resume(cls, folder: Path | None, key: str, start: Mapping[str, Tensor]) -> "FinishState":
        """Return the state in a folder, or a new one where there is none or that of another finish."""
        digest = hashlib.sha256(key.encode())
        for name in sorted(start):
            digest.update(name.encode())
            digest.update(start[name].detach().float().cpu().contiguous().numpy().tobytes())
        name = digest.hexdigest()
        state = cls(None if folder is None else folder / name[:32] / "state.safetensors", name)
        kept = parallel.agreed(state._load() if parallel.is_main() else None)
        if kept is not None:
            state.runs, state.tensors = kept
        return state

    def _load(self) -> tuple[dict[int, RunFacts], dict[str, Tensor]] | None:
        if self.file is None or not self.file.is_file():
            return None
        with safe_open(self.file, "pt") as file:
            about = json.loads((file.metadata() or {}).get("about", "{}"))
        if about.get("key") != self.key:
            return None
        runs = [
            RunFacts(**{**entry, "curve": tuple((step, loss) for step, loss in entry["curve"])})
            for entry in about["runs"]
        ]
        return {facts.number: facts for facts in runs}, load(self.file.read_bytes())

    def outcome(self, number: int) -> tuple[RunFacts, dict[str, Tensor]] | None:
        facts = self.runs.get(number)
        return (facts, self._group(f"{number}.best.")) if facts is not None and facts.ended else None

    def running(self, number: int) -> bool:
        """Return whether a run was under way."""
        return number in self.runs and not self.runs[number].ended

    def go_on(self, learnt: Mapping[str, Tensor], optimiser: Adam) -> tuple[RunFacts, dict[str, Tensor]]:
        """Put back what was learnt and Adam's moments; return the facts and what was best."""
        number = max(self.runs)
        with torch.no_grad():
            for name, tensor in self._group("learnt.").items():
                learnt[name].copy_(tensor)
        optimiser.restore(self._group("adam."))
        return self.runs[number], self._group(f"{number}.best.")

    def save(
        self, facts: RunFacts, learnt: Mapping[str, Tensor], optimiser: Adam, best: Mapping[str, Tensor]
    ) -> None:
        """Write a run that is under way, every so often."""
        if self.file is None or time.monotonic() - self.saved < EVERY or not parallel.is_main():
            return
        running = {f"learnt.{name}": tensor for name, tensor in learnt.items()}
        running |= {f"adam.{name}": tensor for name, tensor in optimiser.moments().items()}
        self._write({**self.runs, facts.number: facts}, {**self._ended(), **running, **_best(facts, best)})

    def end(self, facts: RunFacts, best: Mapping[str, Tensor]) -> None:
        facts = RunFacts(**{**asdict(facts), "curve": facts.curve, "ended": True})
        self.tensors = {**self._ended(), **_best(facts, best)}
        self.runs[facts.number] = facts
        if self.file is not None and parallel.is_main():
            self._write(self.runs, self.tensors)

    def clear(self) -> None:
        """Remove the file: the finish is done."""
        if self.file is not None and parallel.is_main():
            shutil.rmtree(self.file.parent, ignore_errors=True)

    def _ended(self) -> dict[str, Tensor]:
        ended = tuple(f"{number}.best." for number, facts in self.runs.items() if facts.ended)
        return {name: tensor for name, tensor in self.tensors.items() if name.startswith(ended)}

    def _group(self, prefix: str) -> dict[str, Tensor]:
        return {
            name.removeprefix(prefix): tensor.clone()
            for name, tensor in self.tensors.items()
            if name.startswith(prefix)
        }

    def _write(self, runs: Mapping[int, RunFacts], tensors: Mapping[str, Tensor]) -> None:
        assert self.file is not None
        plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        about = {"key": self.key, "runs": [asdict(facts) for facts in runs.values()]}
        with contextlib.suppress(OSError, OutputError):  # not kept, a killed run begins anew
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(self.file, force=True, sync=False) as draft:
                save_file(plain, draft, {"about": json.dumps(about)})
        self.saved = time.monotonic()


def _best(facts: RunFacts, best: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{facts.number}.best.{name}": tensor for name, tensor in best.items()}
