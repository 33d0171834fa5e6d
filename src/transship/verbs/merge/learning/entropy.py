"""Learning without labels: coefficients (AdaMerging) and masks (Concrete) that make predictions sure.

The loss is the sum over tasks of the mean entropy of the predictions that the merged backbone makes with each
task's own head.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from transship import parallel
from transship.errors import NumericalError
from transship.numerics import derive_seed
from transship.verbs.merge.fusion.protocol import Seen, Vector
from transship.verbs.merge.learning.needs import check_classes, class_logits
from transship.verbs.merge.methods._learned import Watch, nobody

Granularity = Literal["task", "tensor"]
# (learnt tensors) → the merged backbone
Build = Callable[[], Vector]


@dataclass(frozen=True)
class Descent:
    """Adam on the entropy of predictions.

    Attributes:
        steps: one batch of every task each.
        learning_rate: Adam's.
        batch_size: inputs of each task per step.
        seed: of the order of inputs, and of random masks.
        watch: called with (steps done, steps in all, what) after every step.
    """

    steps: int = 1000
    learning_rate: float = 1e-3
    batch_size: int = 16
    seed: int = 0
    watch: Watch = nobody

    def minimise(self, learnt: Sequence[Tensor], build: Build, tasks: Sequence[Seen]) -> list[float]:
        """Move `learnt` down the loss of what `build` makes of it; returns the loss of every step.

        One task's graph is held at a time: the backbone's derivative is summed over tasks, then carried on to
        what is learnt. Processes share the rows of each batch.
        """
        draws = [
            task.draws(self.batch_size, derive_seed(self.seed, "entropy", place, task.name))
            for place, task in enumerate(tasks)
        ]
        optimiser = torch.optim.Adam(learnt, lr=self.learning_rate)
        losses = []
        for step in range(self.steps):
            optimiser.zero_grad(set_to_none=True)
            with torch.enable_grad():
                backbone = build()
            leaves = {name: tensor.detach().requires_grad_() for name, tensor in backbone.items()}
            total, slopes = 0.0, dict[str, Tensor]()
            for task, stream in zip(tasks, draws, strict=True):
                rows = next(stream)
                own = parallel.share(rows)
                if not own:
                    continue
                with torch.enable_grad():
                    outputs = task.read(leaves, task.batch(own)).outputs
                    # of the mean over the batch, this process's summands
                    loss = entropy(class_logits(outputs, task, "this method")) * (len(own) / len(rows))
                found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
                for name, slope in zip(leaves, found, strict=True):
                    if slope is not None:
                        slopes[name] = slopes[name] + slope if name in slopes else slope
                total += float(loss.detach())
            total = sum(parallel.gather(total))
            if not total < float("inf"):
                raise NumericalError(
                    f"the entropy became {total} in step {step + 1}",
                    where=", ".join(task.name for task in tasks),
                    fix="choose a smaller learning rate",
                )
            names = [name for name in slopes if backbone[name].requires_grad]
            if names:
                torch.autograd.backward([backbone[name] for name in names], [slopes[name] for name in names])
            parallel.add_gradients(learnt)
            optimiser.step()
            losses.append(total)
            self.watch(step + 1, self.steps, f"entropy {total:.3f}")
        return losses


def entropy(logits: Float[Tensor, "inputs classes"]) -> Float[Tensor, ""]:
    """Return the mean over inputs of −Σ_c p log(p + 1e-8)."""
    chances = logits.softmax(-1)
    return -(chances * (chances + 1e-8).log()).sum(-1).mean()


@dataclass(frozen=True)
class Coefficients:
    """AdaMerging's λ: one number for each update, or one for each update and tensor.

    Attributes:
        values: `{"": [updates]}`, or tensor name → [updates].
        losses: of every step.
    """

    values: dict[str, Float[Tensor, " updates"]]
    losses: list[float]

    def of(self, name: str) -> Float[Tensor, " updates"]:
        """Return the coefficients of one tensor."""
        return self.values.get(name, self.values.get("", torch.empty(0)))

    def merged(self, updates: Sequence[Mapping[str, Tensor]]) -> Vector:
        """Return Σ_k λ_k τ_k."""
        return mixed(self.of, updates)


def mixed(of: Callable[[str], Tensor], updates: Sequence[Mapping[str, Tensor]]) -> Vector:
    """Return Σ_k λ_k τ_k, with the coefficients that `of` gives for a tensor."""
    found = {}
    for name in updates[0]:
        values = of(name)
        total = values[0] * updates[0][name]
        for place in range(1, len(updates)):
            total = total + values[place] * updates[place][name]
        found[name] = total
    return found


def learn_coefficients(
    base: Mapping[str, Tensor],
    updates: Sequence[Mapping[str, Tensor]],
    tasks: Sequence[Seen],
    *,
    per: Granularity = "tensor",
    start: float = 0.3,
    descent: Descent | None = None,
) -> Coefficients:
    """Return AdaMerging's coefficients: θ = θ_0 + Σ_k λ_k τ_k of least entropy on the tasks' inputs."""
    for task in tasks:
        check_classes(task, dict(base), "adamerging")
    names = [""] if per == "task" else list(base)
    values = {name: torch.full((len(updates),), start, requires_grad=True) for name in names}
    shared = values.get("")

    def of(name: str) -> Tensor:
        return values[name] if shared is None else shared

    def build() -> Vector:
        return {name: base[name] + change for name, change in mixed(of, updates).items()}

    losses = (descent or Descent()).minimise(list(values.values()), build, tasks)
    return Coefficients({name: value.detach() for name, value in values.items()}, losses)


@dataclass(frozen=True)
class ConcreteMask:
    """The learnt logits of Concrete's mask, and the mask drawn from them in the end.

    Attributes:
        logits: tensor → [as the tensor].
        scale: λ.
        seed: of the final draw.
    """

    logits: Vector
    scale: float
    temperature: float
    seed: int
    losses: list[float]

    def of(self, name: str) -> Tensor:
        """Return the final mask of one tensor, keyed by its name and divided by its mean."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "concrete", name))
        return relaxed(self.logits[name], self.temperature, generator)

    def merged(self, updates: Sequence[Mapping[str, Tensor]]) -> Vector:
        """Return λ Σ_k M ⊙ τ_k."""
        return {name: self.scale * self.of(name) * summed(updates, name) for name in self.logits}


def relaxed(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """Return a relaxed Bernoulli sample σ((log u − log(1 − u) + logit)/T), divided by its mean."""
    uniform = torch.rand(logits.shape, generator=generator).clamp_(1e-6, 1 - 1e-6).to(logits.device)
    mask = torch.sigmoid((uniform.log() - (-uniform).log1p() + logits) / temperature)
    return mask / mask.mean().clamp_min(1e-6)


def summed(updates: Sequence[Mapping[str, Tensor]], name: str) -> Tensor:
    """Return Σ_k τ_k of one tensor."""
    return torch.stack([update[name] for update in updates]).sum(0)


def learn_mask(
    base: Mapping[str, Tensor],
    updates: Sequence[Mapping[str, Tensor]],
    tasks: Sequence[Seen],
    *,
    scale: float = 0.3,
    temperature: float = 0.5,
    descent: Descent | None = None,
) -> ConcreteMask:
    """Return Concrete's mask M: θ = θ_0 + λ Σ_k M ⊙ τ_k of least entropy, over random masks."""
    for task in tasks:
        check_classes(task, dict(base), "concrete")
    descent = descent or Descent(steps=2000)
    joint = {name: summed(updates, name) for name in base}
    logits = {name: torch.zeros_like(tensor, requires_grad=True) for name, tensor in joint.items()}
    generator = torch.Generator().manual_seed(derive_seed(descent.seed, "concrete"))

    def build() -> Vector:
        return {
            name: base[name] + scale * relaxed(logits[name], temperature, generator) * change
            for name, change in joint.items()
        }

    losses = descent.minimise(list(logits.values()), build, tasks)
    found = {name: value.detach() for name, value in logits.items()}
    return ConcreteMask(found, scale, temperature, descent.seed, losses)
