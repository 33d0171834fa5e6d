"""What was found of each candidate, kept on disk, so that a killed comparison goes on with the next one."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import transship
from transship import parallel
from transship.atomic import atomic_file, write_json
from transship.verbs.transport.account import Choice
from transship.verbs.transport.plan import Plan

# settings that decide a candidate's strength beside those that name the plan's folder
_DECIDING = ("strength", "path_steps", "head_inputs", "validation", "grid", "roles")


@dataclass(frozen=True)
class Finding:
    """What is known of one candidate.

    Attributes:
        choice: its strength.
        agreement: with the fine-tuned source on the held-out inputs.
        walked: the update by parameter, where it was moved in parts.
    """

    choice: Choice
    agreement: float
    walked: dict[str, Tensor] | None = None


@dataclass(frozen=True)
class SavedTrials:
    """The findings of one plan.

    Attributes:
        folder: where they are; None keeps none.
        about: what they depend on.
    """

    folder: Path | None
    about: str

    @classmethod
    def of(cls, plan: Plan) -> "SavedTrials":
        settings = {name: repr(getattr(plan.settings, name)) for name in _DECIDING}
        labels = plan.labels.tolist() if isinstance(plan.labels, Tensor) else None
        about = json.dumps([settings, labels, transship.__version__], sort_keys=True)
        return cls(None if plan.folder is None else plan.folder / "trials", about)

    def read(self, label: str) -> Finding | None:
        """Return what an earlier run found of a candidate, or None; every process reads the same."""
        file = self._file(label)
        if file is None or not parallel.agreed(file.is_file()):
            return None
        try:
            saved = json.loads(file.read_text(encoding="utf-8"))
            curve = tuple((float(strength), float(score)) for strength, score in saved["curve"])
            choice = Choice(float(saved["strength"]), curve, str(saved["by"]))
            tensors = file.with_suffix(".safetensors")
            walked = load_file(tensors) if saved["walked"] else None
            return Finding(choice, float(saved["agreement"]), walked)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError):
            return None  # damaged: found anew

    def write(self, label: str, finding: Finding) -> None:
        file = self._file(label)
        if file is None or not parallel.is_main():
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        if finding.walked is not None:
            tensors = {name: change.contiguous() for name, change in finding.walked.items()}
            with atomic_file(file.with_suffix(".safetensors"), force=True) as place:
                save_file(tensors, place)
        choice = dataclasses.asdict(finding.choice)
        write_json(
            file,
            {**choice, "agreement": finding.agreement, "walked": finding.walked is not None},
            force=True,
        )

    def _file(self, label: str) -> Path | None:
        if self.folder is None:
            return None
        digest = hashlib.sha256(f"{self.about}\n{label}".encode()).hexdigest()
        return self.folder / f"{digest[:16]}.json"
