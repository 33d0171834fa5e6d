"""Fine-tuning curves: from the target as it was, and from where the transport leaves it (Figure 2)."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from transship.activations.readout import Readout
from transship.errors import DataError

if TYPE_CHECKING:
    from transship.verbs.transport.result import Result

Rows = tuple[Sequence[Any], Tensor]


@dataclass(frozen=True)
class Point:
    """A measurement on test rows after some steps."""

    step: int
    loss: float
    accuracy: float


@dataclass(frozen=True)
class WarmStart:
    """Two fine-tunes that see the same batches at the same rate.

    Attributes:
        target: from the untouched target.
        transported: from the transported one.
        labels: how many labelled rows they were trained on.
        head: what both began with.
    """

    target: tuple[Point, ...]
    transported: tuple[Point, ...]
    labels: int
    head: str = "the target's own head"

    def curves(self) -> dict[str, tuple[Point, ...]]:
        """Return the curves by the names that people read."""
        return {"from the target": self.target, "from the transported": self.transported}

    def lines(self) -> Iterator[str]:
        """Yield the curves for a terminal."""
        yield f"accuracy of fine-tunes on {self.labels} labels, which begin with {self.head}, after steps"
        yield f"{'':20s}" + "".join(f"  {point.step:>8d}" for point in self.target)
        for name, curve in self.curves().items():
            yield f"{name:20s}" + "".join(f"  {point.accuracy:8.4f}" for point in curve)


def warm_start(
    result: "Result",
    train: Rows,
    test: Rows,
    *,
    heads: tuple[nn.Linear, nn.Linear] | None = None,
    head: str = "the target's own head",
    steps: Sequence[int] = (0, 10, 25, 50, 100),
    rate: float = 1e-4,
    batch_size: int = 32,
    seed: int = 0,
    trainable: Callable[[str], bool] = lambda name: True,
) -> WarmStart:
    """Fine-tune copies of the target and of the transported target alike, and measure at `steps`.

    Args:
        result: the transport.
        train: labelled rows to train on: inputs, classes [rows].
        test: labelled rows to measure on.
        heads: new heads on the features of the untouched and of the transported target, trained too; without
            them the models' own are.
        head: what is said of them.
        steps: when to measure.
        rate: of AdamW.
        batch_size: rows per step, drawn alike for both.
        seed: of these draws.
        trainable: which parameters, by name.
    """
    curves = []
    for number, module in enumerate((copy.deepcopy(result.target.model.model), result.model())):
        own = None if heads is None else copy.deepcopy(heads[number])
        loaded = dataclasses.replace(result.target.model, model=module.eval())
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(trainable(name))
        learning = _Learning(Readout(loaded), own, train, test)
        curves.append(learning.curve(sorted(steps), rate, batch_size, seed))
    return WarmStart(curves[0], curves[1], len(train[0]), head)


def milestones(steps: int) -> tuple[int, ...]:
    """Return when fine-tunes of so many steps are measured."""
    return tuple(sorted({0, *(round(steps * part) for part in (0.1, 0.25, 0.5, 1.0))}))


@dataclass
class _Learning:
    readout: Readout
    head: nn.Linear | None
    train: Rows
    test: Rows

    def curve(self, steps: Sequence[int], rate: float, batch_size: int, seed: int) -> tuple[Point, ...]:
        parts = [self.readout.loaded.model, *([] if self.head is None else [self.head])]
        learned = [one for part in parts for one in part.parameters() if one.requires_grad]
        optimiser = torch.optim.AdamW(learned, lr=rate)
        generator = torch.Generator().manual_seed(seed)
        points = []
        for step in range(max(steps) + 1):
            if step in steps:
                points.append(self._point(step))
            rows = torch.randint(len(self.train[0]), (batch_size,), generator=generator).tolist()
            with torch.enable_grad():
                batch = self.readout.loaded.preprocess([self.train[0][row] for row in rows])
                read = self.readout(batch)
                made = self._outputs(read.features, read.outputs)
                optimiser.zero_grad(set_to_none=True)
                wanted = self.train[1][rows].to(made.device)
                nn.functional.cross_entropy(made, wanted).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return tuple(points)

    def _point(self, step: int) -> Point:
        read = self.readout.all(self.test[0])
        with torch.no_grad():
            made = self._outputs(read.features, read.outputs).cpu()
        right = (made.argmax(1) == self.test[1]).double().mean()
        return Point(step, float(nn.functional.cross_entropy(made, self.test[1])), float(right))

    def _outputs(self, features: Tensor, outputs: Tensor | None) -> Tensor:
        if self.head is not None:
            made: Tensor = self.head(features.to(self.head.weight))
            return made
        if outputs is None:
            raise DataError(
                "it has no head to fine-tune", where=self.readout.loaded.name, fix="give a headed target"
            )
        return outputs
