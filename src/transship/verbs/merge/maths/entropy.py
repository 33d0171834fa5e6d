"""Learning without labels: Adam on the entropy of predictions.

The loss is the sum over tasks of the mean entropy of the predictions that the merged backbone makes with each
task's own head.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from transship import parallel
from transship.errors import NumericalError
from transship.numerics import derive_seed
from transship.progress import Progress, quiet
from transship.verbs.merge.maths.checks import class_logits
from transship.verbs.merge.maths.states import Vector
from transship.verbs.merge.protocol import Seen

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
        progress: is told how many steps are done.
    """

    steps: int = 1000
    learning_rate: float = 1e-3
    batch_size: int = 16
    seed: int = 0
    progress: Progress = quiet

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
                gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
                for name, slope in zip(leaves, gradients, strict=True):
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
            self.progress("learning", step + 1, self.steps)
        return losses


def entropy(logits: Float[Tensor, "inputs classes"]) -> Float[Tensor, ""]:
    """Return the mean over inputs of −Σ_c p log(p + 1e-8)."""
    chances = logits.softmax(-1)
    return -(chances * (chances + 1e-8).log()).sum(-1).mean()
