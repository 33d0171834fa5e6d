"""Adam, and one step of it down the summed losses of several lessons."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from transship import parallel

# weights → a summand of the loss, this process's part of it; None where it has none
Summand = Callable[[Mapping[str, Tensor]], Tensor | None]


class Adam:
    """The update of Kingma and Ba, Algorithm 1, with torch's defaults; a tensor without a slope stays.

    torch.optim.Adam gives the same numbers, but its first use imports torch's compiler: four seconds of CPU
    time, more than most of the work here.
    """

    def __init__(self, tensors: Iterable[Tensor], rate: float) -> None:
        self.tensors, self.rate = list(tensors), rate
        self._first: dict[int, Tensor] = {}
        self._second: dict[int, Tensor] = {}
        self._steps: dict[int, int] = {}

    @torch.no_grad()
    def step(self, slopes: Sequence[Tensor | None], factor: float = 1.0) -> None:
        """Move every tensor against its slope, at a factor of the rate."""
        for place, (tensor, slope) in enumerate(zip(self.tensors, slopes, strict=True)):
            if slope is None:
                continue
            if place not in self._steps:
                self._steps[place] = 0
                self._first[place], self._second[place] = torch.zeros_like(tensor), torch.zeros_like(tensor)
            self._steps[place] += 1
            first = self._first[place].lerp_(slope, 0.1)
            second = self._second[place].mul_(0.999).addcmul_(slope, slope, value=0.001)
            size = second.sqrt().div_((1 - 0.999 ** self._steps[place]) ** 0.5).add_(1e-8)
            tensor.addcdiv_(first, size, value=-factor * self.rate / (1 - 0.9 ** self._steps[place]))

    def moments(self) -> dict[str, Tensor]:
        """Return what the next step depends on, beside the tensors."""
        kept = {"steps": torch.tensor([self._steps.get(place, 0) for place in range(len(self.tensors))])}
        for name, moments in (("first", self._first), ("second", self._second)):
            kept |= {f"{name}.{place}": moment for place, moment in moments.items()}
        return kept

    def restore(self, kept: Mapping[str, Tensor]) -> None:
        """Go on from `moments`."""
        for place, steps in enumerate(kept["steps"].tolist()):
            if steps:
                self._steps[place] = steps
                self._first[place] = kept[f"first.{place}"].to(self.tensors[place]).clone()
                self._second[place] = kept[f"second.{place}"].to(self.tensors[place]).clone()


def follow_slope(
    learnt: Sequence[Tensor],
    build: Callable[[], Mapping[str, Tensor]],
    summands: Sequence[Summand],
    optimiser: Adam,
    factor: float = 1.0,
) -> float:
    """Move `learnt` one step down the sum of the losses of what `build` makes of it; return that sum.

    One summand's graph is held at a time: the weights' derivative is summed, then carried on to what is
    learnt. Processes add their parts up.
    """
    for tensor in learnt:
        tensor.grad = None
    with torch.enable_grad():
        weights = build()
    loss, slopes = _slopes(weights, summands)
    if not loss < float("inf"):
        return loss
    names = [name for name in slopes if weights[name].requires_grad]
    if names:
        torch.autograd.backward([weights[name] for name in names], [slopes[name] for name in names])
    parallel.add_gradients(learnt)
    optimiser.step([tensor.grad for tensor in learnt], factor)
    return loss


def _slopes(weights: Mapping[str, Tensor], summands: Sequence[Summand]) -> tuple[float, dict[str, Tensor]]:
    """Return the loss over all processes, and this one's part of its derivative."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in weights.items()}
    total, slopes = 0.0, dict[str, Tensor]()
    for summand in summands:
        with torch.enable_grad():
            loss = summand(leaves)
        if loss is None:
            continue
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        for name, slope in zip(leaves, gradients, strict=True):
            if slope is not None:
                slopes[name] = slopes[name] + slope if name in slopes else slope
        total += float(loss.detach())
    return sum(parallel.gather(total)), slopes
