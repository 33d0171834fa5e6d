"""What is trained and by what: the network with its rows, objectives, phases, and what a method is."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transship.errors import OptionError
from transship.numerics import chunks, derive_seed
from transship.registry import Method
from transship.verbs.adapt.model.backbone import Backbone
from transship.verbs.adapt.model.network import FORWARD_ROWS, AdaptedNetwork, Part, pooled
from transship.verbs.adapt.model.source import SourceSide
from transship.verbs.adapt.train.losses import Loss

Index = Int[Tensor, " batch"]
ALL: frozenset[Part] = frozenset({"embedder", "body", "head"})
PAPER = (
    'Tran et al., "Rethinking Cross-Modal Fine-Tuning: Optimizing the Interaction between Feature Alignment '
    'and Target Fitting" (AISTATS 2026)'
)
# what a parameter may be, by the end of its name: the least, whether that itself is allowed, the most
_RANGES: dict[str, tuple[float, bool, float]] = {
    "steps": (0, True, math.inf),
    "batch": (1, True, math.inf),
    "items": (1, True, math.inf),
    "per_class": (1, True, math.inf),
    "rate": (0, False, math.inf),
    "temperature": (0, False, math.inf),
    "share": (0, True, 1),
    "weight": (0, True, math.inf),
    "keep": (0, True, math.inf),
}


@dataclass(frozen=True, eq=False)
class LearningRows:
    """Inputs with their targets, as tensors.

    Attributes:
        inputs: scaled values.
        targets: as the loss takes them.
        codes: the classes z' of FLD.
        base: outputs of the raw model that the network corrects, or None.
    """

    inputs: Float[Tensor, "inputs channels ..."]
    targets: Tensor
    codes: Int[Tensor, " inputs"]
    base: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True, eq=False)
class Views:
    """What the network makes of some rows.

    Attributes:
        pooled: token means of φ(x).
        features: token means of the body's states.
        source: p_s(z|φ(x)); empty without a source.
        outputs: of the head.
    """

    pooled: Float[Tensor, "rows width"]
    features: Float[Tensor, "rows out"]
    source: Float[Tensor, "rows labels"]
    outputs: Tensor


@dataclass(frozen=True, eq=False)
class LearningProblem:
    """The network with everything that a method works with.

    Attributes:
        network: φ, body and head; while stage 1 runs, the body is the source's own and frozen.
        train: rows to learn from.
        validation: rows to choose by.
        classes: how many classes z' there are.
        loss: of stage 2.
        scale: (mean, std) of numeric targets, for losses in their own units.
        backbone: the pretrained model, untouched.
        source: features, head and ω; None for methods that need none.
        seed: of every draw.
        device: where the network is.
    """

    network: AdaptedNetwork
    train: LearningRows
    validation: LearningRows
    classes: int
    loss: Loss
    scale: tuple[Tensor, Tensor]
    backbone: Backbone
    source: SourceSide | None
    seed: int
    device: torch.device

    @property
    def known(self) -> SourceSide:
        """The source, for those that cannot do without."""
        if self.source is None:
            raise OptionError("the method needs a proxy", where="proxy", fix="name labelled data")
        return self.source

    def outputs_of(self, index: Index) -> Tensor:
        """Return the network's outputs for training rows."""
        outputs: Tensor = self.network(self.train.inputs[index].to(self.device))
        return outputs

    def embedded(self, index: Index) -> Float[Tensor, "batch tokens width"]:
        """Return φ(x) of training rows."""
        tokens: Tensor = self.network.embedder(self.train.inputs[index].to(self.device))
        return tokens

    def source_probabilities(
        self, tokens: Float[Tensor, "batch tokens width"]
    ) -> Float[Tensor, "batch labels"]:
        """Return p_s(z|u) of embedded tokens, through the body as it stands."""
        return self.known.probabilities(self.network.states(tokens))

    def target_loss(self, outputs: Tensor, index: Index) -> Float[Tensor, ""]:
        """Return the task's loss for training rows of the network's outputs, on top of the base's."""
        if self.train.base is not None:
            outputs = outputs + self.train.base[index].to(outputs)
        return self.loss.compute(outputs, self.train.targets[index].to(self.device), self.scale)

    def draw(self, count: int, *keys: object) -> Int[Tensor, " count"]:
        """Return `count` training rows (all, when there are fewer) drawn by seed and keys, in order."""
        order = np.random.default_rng(derive_seed(self.seed, *keys)).permutation(len(self.train))
        return torch.from_numpy(np.sort(order[:count]))

    def source_tokens(self, items: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return (u, mask) of proxy items, through the backbone's own embedding."""
        tokens, mask = self.backbone.source_tokens([self.known.texts[item] for item in items])
        kind = next(self.network.body.parameters()).dtype
        return tokens.clone().to(self.device, kind), mask.to(self.device)

    @torch.no_grad()
    def outputs(self, rows: LearningRows) -> Tensor:
        """Return outputs for rows, the base's among them, batch by batch, in float32 on the CPU."""
        parts = [
            self.network(rows.inputs[part].to(self.device)).float().cpu()
            for part in chunks(len(rows), FORWARD_ROWS)
        ]
        return torch.cat(parts) if rows.base is None else torch.cat(parts) + rows.base

    @torch.no_grad()
    def views(self, rows: LearningRows, index: Int[Tensor, " chosen"]) -> Views:
        """Return pooled features, body features, p_s and outputs of some rows, batch by batch."""
        parts = []
        for part in chunks(len(index), FORWARD_ROWS):
            tokens = self.network.embedder(rows.inputs[index[part]].to(self.device))
            states = self.network.states(tokens)
            given = states.new_zeros(0) if self.source is None else self.source.probabilities(states)
            parts.append((pooled(tokens), states.mean(1), given, self.network.head(states)))
        joined = [torch.cat([value.float().cpu() for value in column]) for column in zip(*parts, strict=True)]
        return Views(*joined)


class Objective:
    """Something to minimise, batch by batch, for one problem; what it keeps between steps is its own."""

    def __init__(self, problem: LearningProblem) -> None:
        self.problem = problem

    def loss(self, index: Index, step: int, steps: int) -> Float[Tensor, ""]:
        raise TypeError(f"{type(self).__name__} defines no loss")

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield what learns beside the network."""
        yield from ()

    def state(self) -> dict[str, Tensor]:
        """Return tensors for a resumed run."""
        return {}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from `state`."""


class TargetLoss(Objective):
    """The task's own loss: stage 2, and the supervised warm-up of φ when the body is frozen."""

    def loss(self, index: Index, step: int, steps: int) -> Float[Tensor, ""]:
        """Return ℓ(head(body(φ(x))), z')."""
        return self.problem.target_loss(self.problem.outputs_of(index), index)


@dataclass(frozen=True, eq=False)
class Phase:
    """A stretch of stage 1.

    Attributes:
        name: as logs call it.
        steps: optimiser steps; a phase of none is left out.
        rate: Adam's learning rate.
        batch: rows per step; fewer where there are fewer, and None for all of them.
        objective: makes what is minimised.
        trains: which parts learn.
        shared: whether several processes share a batch; otherwise each takes the whole of it.
        select: keep the embedder on which a held-out probe errs least, or that from before the phase when
            FLD does not fall or the probe gets worse.
    """

    name: str
    steps: int
    rate: float
    batch: int | None
    objective: Callable[[LearningProblem], Objective]
    trains: frozenset[Part] = frozenset({"embedder"})
    shared: bool = True
    select: bool = False


@dataclass(frozen=True, kw_only=True)
class AdaptMethod(Method):
    """A way to adapt: phases of stage 1 (none by default), then stage 2 on the target loss."""

    # whether labelled data of the backbone's own modality is needed
    needs_source: ClassVar[bool] = False
    # whether ω decides anything: as the weight of FA, or through the recalibrated head
    uses_omega: ClassVar[bool] = False
    # whether the body starts from its pretrained weights
    pretrained: ClassVar[bool] = True
    # what learns in stage 2
    trains: ClassVar[frozenset[Part]] = ALL

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be, before anything is read."""
        for field in dataclasses.fields(self):
            value: Any = getattr(self, field.name)
            limits = next((limits for end, limits in _RANGES.items() if field.name.endswith(end)), None)
            if limits is not None and value is not None:
                _check_range(field.name, float(value), *limits)

    def phases(self) -> Sequence[Phase]:
        """Return stage 1."""
        return ()

    def path(self, points: int) -> Sequence[tuple[dict[str, Any], str]]:
        """Return options under which stage 1 is broken off at so many places, with their names (Figs. 2, 3).

        Draws depend on the step and not on how many there are, so that a shorter stage 1 is the beginning of
        the longer one. A method without such a path returns nothing.
        """
        return ()

    def objective(self, problem: LearningProblem) -> Objective:
        """Return what stage 2 minimises."""
        return TargetLoss(problem)


def _check_range(name: str, value: float, least: float, allowed: bool, most: float) -> None:
    if value < math.inf and (least <= value if allowed else least < value) and value <= most:
        return
    bounds = f"from {least:g}" if allowed else f"above {least:g}"
    bounds += f" to {most:g}" if most < math.inf else ""
    raise OptionError(f"it is {value:g}", where=name, fix=f"give a number {bounds}")
