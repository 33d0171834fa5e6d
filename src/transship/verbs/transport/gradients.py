"""What the loss feels: Moments of output gradients of two models in step, and weight gradients of one."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from transship import parallel
from transship.activations import LoadedModel, SitePair
from transship.activations.batches import Numbered
from transship.activations.loading import require_in_memory
from transship.activations.sites import Tap, sides_of, view_of, watching
from transship.activations.step import Lane, StepOptions, Stepper, Stream
from transship.geometry import Moments
from transship.geometry.moments import Part
from transship.verbs.transport.teacher import Loss

_CROSS: tuple[Part, ...] = ("ab",)


class GradientStep:
    """Output gradients of two models over the same inputs, as Moments per matched pair of sites.

    Attributes:
        losses: the source's and the target's, which must be set before the first step.
        moments: target site's name, a tab, source site's name → cross moments of the gradients.
    """

    def __init__(
        self,
        source: LoadedModel,
        target: LoadedModel,
        pairs: Iterable[SitePair],
        options: StepOptions,
        example: Any,
        *,
        unit: bool = True,
    ) -> None:
        self.losses: tuple[Loss, ...] = ()
        self.unit = unit
        # the views of both sites of every pair that has an output to align
        self.views = {
            (pair.name, site.name): (
                view_of(site, "output"),
                view_of(pair.target, "output"),
                site.stack,
                pair.target.stack,
            )
            for pair in pairs
            for site, _ in pair.sources
            if "output" in sides_of(pair.target)
            and "output" in sides_of(site)
            and pair.target.kind != "block"
        }
        streams = {
            key: (Stream(a.tap, stack_a), Stream(b.tap, stack_b))
            for key, (a, b, stack_a, stack_b) in self.views.items()
        }
        self.stepper = Stepper(source, target, list(streams.values()), options, example)
        self.lanes: dict[tuple[str, str], Lane] = {
            key: self.stepper.lanes[pair] for key, pair in streams.items() if pair in self.stepper.lanes
        }
        self.moments: dict[str, Moments] = {}

    def flush(self) -> None:
        """Do nothing: every batch is multiplied at once."""

    def step(self, items: Numbered) -> None:
        inputs, numbers = [item for _, item in items], [number for number, _ in items]
        sides = self.stepper.source, self.stepper.target
        batches = sides[0].loaded.preprocess(inputs), sides[1].loaded.preprocess(inputs)
        aligned = {lane: self.stepper.align(lane, batches, numbers) for lane in set(self.lanes.values())}
        rows: list[dict[tuple[Tap, Lane], Tensor]] = []
        for number, (side, batch, loss) in enumerate(zip(sides, batches, self.losses, strict=True)):
            wanted: dict[Tap, set[Lane]] = {}
            for key, lane in self.lanes.items():
                view = self.views[key][0] if number == 0 else self.views[key][1]
                wanted.setdefault(view.tap, set()).add(lane)
            by_tap: dict[tuple[Tap, Lane], Tensor] = {}
            total = partial(loss, batch, numbers)
            for tap, gradient in output_gradients(side.loaded.model, wanted, total).items():
                if self.unit:
                    gradient = _unit_per_input(gradient, batch.size)
                flat = side.flatten(tap, gradient, batch)
                if flat is None:
                    continue
                for lane in wanted[tap]:
                    operator = aligned[lane].source if number == 0 else aligned[lane].target
                    operator = operator if flat[2] is None else operator.through(flat[2])
                    by_tap[tap, lane] = operator.apply(flat[0])
            rows.append(by_tap)
        self._add(rows)

    def _add(self, rows: list[dict[tuple[Tap, Lane], Tensor]]) -> None:
        for key, lane in self.lanes.items():
            view_a, view_b, _, _ = self.views[key]
            if (view_a.tap, lane) not in rows[0] or (view_b.tap, lane) not in rows[1]:
                continue
            a, b = rows[0][view_a.tap, lane], rows[1][view_b.tap, lane]
            a = a if view_a.part is None else view_a.part.columns(a)
            b = b if view_b.part is None else view_b.part.columns(b)
            name = "\t".join(key)
            if name not in self.moments:
                self.moments[name] = Moments.zeros(
                    a.shape[1], b.shape[1], parts=_CROSS, name=f"{key[0]} gradient", device=b.device
                )
            # gradients span many orders of magnitude and there are few of them: exact products cost little
            self.moments[name].update(a.to(b.device), b, exact=True)


def output_gradients(model: nn.Module, taps: Iterable[Tap], loss: Callable[[], Tensor]) -> dict[Tap, Tensor]:
    """Return ∂loss/∂tensor at every tap that takes part in the loss; no weight gradient is computed."""
    caught: dict[Tap, Tensor] = {}

    def watch(tap: Tap, tensor: Tensor) -> None:
        if not tensor.requires_grad:
            tensor.requires_grad_(True)
        caught.setdefault(tap, tensor)

    frozen = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(False)
    try:
        with torch.enable_grad(), watching(model, list(taps), watch):
            total = loss()
        names = list(caught)
        gradients = torch.autograd.grad(total, [caught[name] for name in names], allow_unused=True)
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)
    return {name: gradient for name, gradient in zip(names, gradients, strict=True) if gradient is not None}


def weight_descent(
    loaded: LoadedModel, batches: Iterable[Sequence[tuple[int, Any]]], loss: Loss, *, vote: str = "mean"
) -> dict[str, Tensor]:
    """Return −∂L/∂θ of every parameter: summed over inputs, or as a count of the inputs' own signs
    (`max`).
    """
    model = loaded.model
    require_in_memory(model, loaded.name, "this method takes gradients of weights")
    parameters = {
        name: parameter for name, parameter in model.named_parameters() if parameter.dtype.is_floating_point
    }
    before = {name: parameter.requires_grad for name, parameter in parameters.items()}
    total: dict[str, Tensor] = {}
    try:
        for parameter in parameters.values():
            parameter.requires_grad_(True)
        for number, items in enumerate(batches):
            if not parallel.mine(number):
                continue
            groups = [[item] for item in items] if vote == "max" else [list(items)]
            for group in groups:
                with torch.enable_grad():
                    value = loss(
                        loaded.preprocess([item for _, item in group]), [number for number, _ in group]
                    )
                gradients = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
                for name, gradient in zip(parameters, gradients, strict=True):
                    if gradient is not None:
                        part = -gradient if vote == "mean" else -torch.sign(gradient)
                        total[name] = total[name] + part if name in total else part
    finally:
        for name, parameter in parameters.items():
            parameter.requires_grad_(before[name])
    return parallel.total(total)


def _unit_per_input(gradient: Tensor, size: int) -> Tensor:
    """Scale every input's gradient to norm 1, so that no single input decides; others are left as they
    are.
    """
    if gradient.shape[0] != size:
        return gradient
    norms = gradient.flatten(1).norm(dim=1).clamp_min(1e-30)
    scaled: Tensor = gradient / norms.reshape(-1, *[1] * (gradient.dim() - 1))
    return scaled
