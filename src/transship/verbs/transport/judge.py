"""How well a target does the fine-tune's task at a strength: against labels, or against the fine-tuned source
itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transship import parallel
from transship.activations.heads import carry
from transship.activations.readout import Readout, Task
from transship.errors import OptionError
from transship.geometry import spearman
from transship.progress import Progress
from transship.verbs.transport.prepare import Teacher
from transship.verbs.transport.settings import GRID
from transship.verbs.transport.token_judge import TokenJudge
from transship.verbs.transport.weights import shifted

# strengths that score worse than the best before the search ends: curves may dip before they rise
PATIENCE = 6
_PAIRS_OF = 400


@dataclass(frozen=True, eq=False)
class Judge:
    """Scores the target as it stands; higher is better.

    Attributes:
        readout: of the target.
        inputs: what it is judged on.
        wanted: labels [inputs], or the fine-tuned source's outputs [inputs, outputs].
        task: of the fine-tuned source.
        own_head: whether the target's own head answers; otherwise a ridge head fitted on `fit`.
        fit: (inputs, outputs of the fine-tuned source) for the ridge head; None cross-fits on `inputs`
            themselves.
        penalty: of the ridge head.
    """

    readout: Readout
    inputs: Sequence[Any]
    wanted: Tensor
    task: Task
    own_head: bool
    fit: tuple[Sequence[Any], Tensor] | None = None
    penalty: float | None = None

    def score(self) -> float:
        """Return the share of inputs answered as wanted; for values and features a rank correlation."""
        reading = self.readout.all(self.inputs)
        if self.task == "features":
            return similarity_agreement(reading.features, self.wanted)
        outputs = reading.outputs if self.own_head else self._carried(reading.features.cpu())
        assert outputs is not None
        return agreement(outputs.cpu(), self.wanted, self.task)

    def _carried(self, features: Tensor) -> Tensor:
        if self.fit is not None:
            known = self.readout.all(self.fit[0]).features.cpu()
            return _ridge_predict(known, self.fit[1], features, self.penalty)
        made = torch.empty(len(features), self.wanted.shape[1])
        halves = torch.arange(len(features)) % 2 == 0
        for half in (halves, ~halves):
            made[half] = _ridge_predict(features[~half], self.wanted[~half], features[half], self.penalty)
        return made


@dataclass(frozen=True)
class Choice:
    """A strength and the curve that it was chosen from.

    Attributes:
        strength: the best, the smallest of equals.
        curve: (strength, score) in rising order.
        by: `validation`, `agreement` or `given`.
    """

    strength: float
    curve: tuple[tuple[float, float], ...]
    by: str

    @property
    def score(self) -> float:
        """The score at the chosen strength."""
        return dict(self.curve).get(self.strength, float("nan"))


def choose_strength(
    judge: Judge | TokenJudge,
    update: Mapping[str, Tensor],
    *,
    by: str,
    grid: Sequence[float] = GRID,
    patience: int = PATIENCE,
    untouched: float | None = None,
    progress: Progress | None = None,
) -> Choice:
    """Return the best strength of the grid: one moved update, many strengths; stops after `patience` worse
    ones.

    Equal scores do not count as worse. `untouched` is the score at strength 0, where it is known.
    """
    curve: list[tuple[float, float]] = []
    best, since = (-np.inf, 0.0), 0
    for number, strength in enumerate(sorted(grid)):
        if progress is not None:
            progress("strength", number, len(grid))
        if strength == 0.0 and untouched is not None:
            score = untouched
        else:
            with shifted(judge.readout.loaded.model, update, strength):
                score = parallel.agreed(judge.score())
        curve.append((strength, score))
        if score > best[0] + 1e-12:
            best, since = (score, strength), 0
        elif score < best[0]:
            since += 1
        if since >= patience and strength >= 2.0:
            break
    if progress is not None:
        progress("strength", len(grid), len(grid))
    return Choice(best[1], tuple(curve), by)


def agreement(outputs: Tensor, wanted: Tensor, task: Task) -> float:
    """Return how often outputs choose what is wanted (labels or outputs); for values their rank
    correlation.
    """
    if task == "values":
        there = wanted.reshape(len(wanted), -1)[:, 0]
        return float(spearman(outputs[:, 0].float().numpy(), there.float().numpy()))
    choices = wanted if wanted.ndim == 1 else wanted.argmax(1)
    return float((outputs.argmax(1) == choices).double().mean())


def teach(readout: Readout, inputs: Sequence[Any], batch_size: int = 64) -> Teacher:
    """Return what the fine-tuned source says about `inputs`."""
    if readout.task in ("tokens", "language"):
        return Teacher(readout.task, None)
    reading = readout.all(inputs, batch_size)
    outputs = reading.features if reading.outputs is None else reading.outputs
    return Teacher(readout.task, outputs.float().cpu())


def require_outputs(teacher: Teacher) -> Tensor:
    """Return the teacher's outputs per input."""
    if teacher.outputs is None:
        raise OptionError(
            "this fine-tune has outputs per token, not per input",
            where="strength",
            fix="give the strength as a number",
        )
    return teacher.outputs


def _ridge_predict(known: Tensor, outputs: Tensor, features: Tensor, penalty: float | None) -> Tensor:
    return carry(known, outputs, penalty, name="features").apply(features.double()).float()


def similarity_agreement(features: Tensor, wanted: Tensor) -> float:
    """Rank correlation of all pairwise cosines: whether two encoders rank neighbours alike."""
    sides = []
    for rows in (features, wanted):
        unit = torch.nn.functional.normalize(rows[:_PAIRS_OF].double().cpu(), dim=1)
        upper = torch.triu_indices(len(unit), len(unit), offset=1)
        sides.append((unit @ unit.T)[upper[0], upper[1]].numpy())
    return float(spearman(sides[0], sides[1]))
