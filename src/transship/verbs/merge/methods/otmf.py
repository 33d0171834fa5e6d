"""OTMF: masks on two updates, learnt so that features stay where they were."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from transship import parallel
from transship.errors import DataError, OptionError
from transship.finish.descent import Adam
from transship.geometry import sinkhorn, sinkhorn_divergence
from transship.numerics import chunks, derive_seed
from transship.verbs.merge.maths.states import State, Vector, numbers
from transship.verbs.merge.protocol import Arrival, ContinualMethod, Joint, LearnedMethod, TaskView

Granularity = Literal["entry", "row", "tensor"]


@dataclass(frozen=True, kw_only=True)
class Otmf(LearnedMethod, ContinualMethod):
    """Mix merged and new update under two masks that align the features with both models by transport.

    Pan et al., "Merging without Forgetting". τ_m ← α M_pre ⊙ τ_m + (1 − α) M_post ⊙ τ_t (Eq. 4), from masks
    of ones at every step. Odd iterations move M_pre against the Sinkhorn cost between the features of the new
    mix and of the merged model before it, on inputs of the task before; even ones move M_post likewise
    towards the model that arrives, on its inputs (Algorithm 1, whose single X and whose masks outlasting a
    step cannot be meant). Features have unit length; an iteration is one batch. A recipe's models are taken
    in its order.

    Attributes:
        alpha: the share of what was merged; `running` takes (t − 1)/t.
        iterations: E, for both masks together.
        learning_rate: of the two Adam optimisers.
        granularity: one mask number per `entry` (the paper), per `row` (all axes but the first share it) or
            per `tensor`; the last two need no memory to speak of.
        loss: `sinkhorn` compares the batches as sets; `paired` takes the mean squared distance of each
            input's two features.
        debiased: subtract half of each set's transport to itself.
        epsilon: the blur, as a share of the mean cost.
        batch_size: inputs per iteration.
    """

    paper: ClassVar[str] = "Pan et al., 2025"
    held: ClassVar[tuple[float, float]] = (12.0, 0.0)
    needs_data: ClassVar[bool] = True
    replay: ClassVar[bool] = True

    alpha: float | Literal["running"] = 0.8
    iterations: int = 100
    learning_rate: float = 0.01
    granularity: Granularity = "entry"
    loss: Literal["sinkhorn", "paired"] = "sinkhorn"
    debiased: bool = False
    epsilon: float = 0.05
    batch_size: int = 64

    def __post_init__(self) -> None:
        """Refuse shares outside [0, 1]."""
        if self.alpha != "running" and not 0 <= self.alpha <= 1:
            raise OptionError(f"alpha is {self.alpha}", where="otmf", fix="choose it from 0 to 1")

    def learn(self, joint: Joint) -> Vector:
        """Return the merged vector after the last model, each opened when it is its turn."""
        state: State = {}
        before: TaskView | None = None
        for number, model in enumerate(joint.models, 1):
            if number > 2:  # the one before is still read
                joint.models[number - 3].close()
            task = model.view()
            arrival = Arrival(number, joint.base, model.update(), task, before, joint.seed)
            state = self.add(state, arrival) if state else self.first(arrival)
            joint.progress("merging models", number, len(joint.models))
            before = task
        return self.merged(state, joint.base)

    def add(self, state: State, arrival: Arrival) -> State:
        """Return the masked mix, the last losses and the masks' range."""
        pre = state["merged"]
        alpha = (arrival.number - 1) / arrival.number if self.alpha == "running" else float(self.alpha)
        sides = (
            MaskedUpdate(pre, alpha, self.granularity),
            MaskedUpdate(arrival.update, 1.0 - alpha, self.granularity),
        )
        losses = self._train(sides, arrival) if self.iterations > 0 else {}
        return {"merged": mix(sides), "numbers": numbers(**losses)}

    def _train(self, sides: "tuple[MaskedUpdate, MaskedUpdate]", arrival: Arrival) -> dict[str, float]:
        if arrival.previous is None or not arrival.previous.count or not arrival.incoming.count:
            raise DataError(
                "it needs inputs of this task and of the one before",
                where="otmf",
                fix="start with --keep-inputs, and give --data to every add",
            )
        tasks = (arrival.previous, arrival.incoming)
        references = [
            self._features(task, _sum(arrival.base, side.update))
            for task, side in zip(tasks, sides, strict=True)
        ]
        rows = [
            task.draws(self.batch_size, derive_seed(arrival.seed, "otmf", arrival.number, which))
            for which, task in zip(("pre", "post"), tasks, strict=True)
        ]
        optimisers = [Adam(side.masks.values(), self.learning_rate) for side in sides]
        figures: dict[str, float] = {}
        for iteration in range(self.iterations):
            turn = iteration % 2
            chosen = next(rows[turn])
            loss, slopes = self.slopes(arrival.base, sides, tasks[turn], chosen, references[turn][chosen])
            side = sides[turn]
            optimisers[turn].step([side.chain(name, slopes.pop(name, None)) for name in side.masks])
            which = ("pre", "post")[turn]
            figures.setdefault(f"loss_{which}_first", loss)
            figures[f"loss_{which}_last"] = loss
        masks = [mask for side in sides for mask in side.masks.values()]
        figures["mask_least"] = min(float(mask.min()) for mask in masks)
        figures["mask_most"] = max(float(mask.max()) for mask in masks)
        return figures

    def slopes(
        self,
        base: Mapping[str, Tensor],
        sides: "tuple[MaskedUpdate, MaskedUpdate]",
        task: TaskView,
        rows: Sequence[int],
        reference: Float[Tensor, "inputs width"],
    ) -> tuple[float, Vector]:
        """Return the loss on some inputs and its derivative by the mixed weights; both masks are constants.

        Processes share the inputs: each one's features, which all of them compare, carry its part of the
        derivative.
        """
        weights = mix(sides)
        for name, tensor in weights.items():
            tensor.add_(base[name]).requires_grad_()
        places = list(parallel.share(range(len(rows))))
        with torch.enable_grad():
            own = None
            if places:
                own = _unit(task.read(weights, task.batch([rows[place] for place in places])).features)
            features = parallel.rows_with_own(len(rows), places, own)
            loss = self.distance(features, reference)
        names = list(weights) if places else []
        leaves = [weights[name] for name in names]
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True) if places else ()
        slopes = {name: slope for name, slope in zip(names, gradients, strict=True) if slope is not None}
        return float(loss.detach()), parallel.total(slopes)

    def distance(
        self, features: Float[Tensor, "inputs width"], reference: Float[Tensor, "inputs width"]
    ) -> Float[Tensor, ""]:
        """Return the loss between two sets of unit features; ⟨P, C⟩ with the envelope's gradient P."""
        if self.loss == "paired":
            return (features - reference).square().sum(1).mean()
        if self.debiased:
            return sinkhorn_divergence(features, reference, epsilon=self.epsilon)
        return sinkhorn(features, reference, epsilon=self.epsilon).cost

    def _features(self, task: TaskView, backbone: Vector) -> Tensor:
        features = []
        with torch.no_grad():
            for number, part in enumerate(chunks(task.count, self.batch_size)):
                if parallel.mine(number):
                    rows = range(part.start, part.stop)
                    features.append((rows, _unit(task.read(backbone, task.batch(rows)).features)))
        return parallel.rows_of_all(task.count, features)

    def memory(self, sizes: Mapping[str, torch.Size]) -> int:
        """Return the bytes of the mixed weights, their derivative, and masks with their Adam moments.

        An entry mask takes 3 numbers per weight and side, beside the mix and its derivative: 8 copies.
        """
        weights = sum(size.numel() for size in sizes.values())
        masks = sum(mask_shape(size, self.granularity).numel() for size in sizes.values())
        return 4 * (2 * weights + 6 * masks)


class MaskedUpdate:
    """One update under its mask.

    Attributes:
        update: τ.
        share: α or 1 − α.
        masks: one tensor per tensor, broadcastable to it, from ones.
    """

    def __init__(self, update: Mapping[str, Tensor], share: float, granularity: Granularity) -> None:
        self.update, self.share = update, share
        self.masks = {
            name: tensor.new_ones(mask_shape(tensor.shape, granularity)) for name, tensor in update.items()
        }

    def chain(self, name: str, slope: Tensor | None) -> Tensor | None:
        """Return the loss's derivative by the mask, share · τ ⊙ slope, from that by the weight (used up)."""
        if slope is None:
            return None
        return slope.mul_(self.update[name]).mul_(self.share).sum_to_size(self.masks[name].shape)


def mask_shape(shape: torch.Size, granularity: Granularity) -> torch.Size:
    """Return the mask's shape for a tensor: the tensor's, its rows', or one number."""
    if granularity == "entry" or not shape:
        return shape
    if granularity == "tensor":
        return torch.Size([1] * len(shape))
    return torch.Size([shape[0], *[1] * (len(shape) - 1)])


def mix(sides: tuple[MaskedUpdate, MaskedUpdate]) -> Vector:
    """Return α M_pre ⊙ τ_m + (1 − α) M_post ⊙ τ_t."""
    pre, post = sides
    with torch.no_grad():
        return {
            name: (pre.masks[name] * tensor)
            .mul_(pre.share)
            .addcmul_(post.masks[name].expand_as(tensor), post.update[name], value=post.share)
            for name, tensor in pre.update.items()
        }


def _sum(base: Mapping[str, Tensor], update: Mapping[str, Tensor]) -> Vector:
    return {name: base[name] + change for name, change in update.items()}


def _unit(features: Tensor) -> Tensor:
    # double: the transport's iterations and its stopping rule want the digits
    return functional.normalize(features.double(), dim=1)
