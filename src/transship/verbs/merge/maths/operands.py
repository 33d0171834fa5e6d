"""One tensor in all models of a merge, read in parts; numpy alone, so that recipes start without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from transship.numerics import chunks, derive_seed

Floats = npt.NDArray[np.float32]
# (start, stop) of the flattened tensor → its float32 elements, valid until the reader is called again
Reader = Callable[[int, int], Floats]
CHUNK = 1 << 17  # elements, as the writer has them


@dataclass(frozen=True)
class Operands:
    """One tensor in all models of a merge: read in parts, so that none of them has to be in memory whole.

    Attributes:
        name: the output tensor's name.
        shape: the same in all models.
        models: readers of x_1 … x_n, without the base where the method treats it apart.
        base: the reader of b, or None.
        values: parameter → its value for each of `models`.
        labels: what the recipe calls the models; random draws are keyed by them.
        seed: the recipe's.
        rounded: rounds an array in place to the dtype that mergekit would hold it in; None for float32.
        survey: what the method's `survey` returned for the whole model, or None.
    """

    name: str
    shape: tuple[int, ...]
    models: Sequence[Reader]
    base: Reader | None = None
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    labels: Sequence[str] = ()
    seed: int = 0
    rounded: Callable[[Floats], Floats] | None = None
    survey: Any = None

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def row(self) -> int:
        """Return the length of a row: the product of all axes but the first, or the whole of a vector."""
        return self.size if len(self.shape) < 2 else self.size // max(self.shape[0], 1)

    def parts(self) -> Iterator[slice]:
        """Yield the parts in which an elementwise formula is worked off."""
        return chunks(self.size, CHUNK)

    def row_parts(self, row: int | None = None) -> Iterator[slice]:
        """Yield parts that hold whole rows."""
        row = row or self.row
        return chunks(self.size, max(1, CHUNK // max(row, 1)) * max(row, 1)) if self.size else iter(())

    def origin(self, part: slice) -> Floats:
        """Return a part of b; it may look into the file, so nobody writes to it."""
        return self.origin_reader()(part.start, part.stop)

    def origin_reader(self) -> Reader:
        if self.base is None:
            raise ValueError(f"{self.name} has no base")
        return self.base

    def model(self, index: int, part: slice) -> Floats:
        """Return a part of x_index; it may look into the file, so nobody writes to it."""
        return self.models[index](part.start, part.stop)

    def update(self, index: int, part: slice, origin: Floats | None = None) -> Floats:
        """Return a part of x_index − b, or of x_index when there is no base, as an array of its own."""
        values = self.model(index, part)
        if self.base is None:
            return np.array(values)
        return self.round(np.subtract(values, self.origin(part) if origin is None else origin))

    def updates(self, part: slice, origin: Floats | None = None) -> list[Floats]:
        return [self.update(index, part, origin) for index in range(len(self.models))]

    def round(self, values: Floats) -> Floats:
        """Round to the dtype of mergekit's arithmetic, in place; does nothing in float32."""
        return values if self.rounded is None else self.rounded(values)

    def number(self, parameter: str) -> list[float]:
        return [float(value) for value in self.values[parameter]]

    def random(self, index: int) -> np.random.Generator:
        """Return the generator of one model's draws for this tensor, always from its start."""
        key = derive_seed(self.seed, self.name, self.labels[index])
        return np.random.Generator(np.random.Philox(key=key))


# starts a walk over all tensors; operands are made one after another, so that their buffers are not kept
Survey = Callable[[], Iterator[Operands]]
