"""Adam on a list of tensors, in place."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


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
    def step(self, slopes: Sequence[Tensor | None]) -> None:
        """Move every tensor against its slope."""
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
            tensor.addcdiv_(first, size, value=-self.rate / (1 - 0.9 ** self._steps[place]))
