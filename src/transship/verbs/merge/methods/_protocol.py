"""What a method of a recipe is, and what it sees: the operands of one tensor, read in parts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from transship.numerics import chunks, derive_seed
from transship.registry import Method, has_method, method_class, method_names

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
        """Return the number of elements."""
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
        if self.base is None:
            raise ValueError(f"{self.name} has no base")
        return self.base(part.start, part.stop)

    def origin_reader(self) -> Reader:
        """Return the reader of b."""
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

    def round(self, values: Floats) -> Floats:
        """Round to the dtype of mergekit's arithmetic, in place; does nothing in float32."""
        return values if self.rounded is None else self.rounded(values)

    def number(self, parameter: str) -> list[float]:
        """Return a per-model parameter as numbers."""
        return [float(value) for value in self.values[parameter]]

    def random(self, index: int) -> np.random.Generator:
        """Return the generator of one model's draws for this tensor, always from its start."""
        key = derive_seed(self.seed, self.name, self.labels[index])
        return np.random.Generator(np.random.Philox(key=key))


# starts a walk over all tensors; operands are made one after another, so that their buffers are not kept
Survey = Callable[[], Iterator[Operands]]


class RecipeMethod(Method):
    """A method that joins models tensor by tensor without data.

    The fields of the dataclass are its parameters. Those in `per_model` have a value for each model in
    `Operands`.

    Attributes:
        base: `required` or `optional`: b is read apart; `input`: a base is a model like the others.
        least: the fewest models that it takes, the base not counted where it is read apart.
        most: the most models, or None.
        required: parameters that a recipe must give.
        per_model: parameters with a value for each model.
        spelling: field → the parameter's name in recipes, where that is no Python name.
        whole: float32 copies of one tensor that it holds in memory.
        elementwise: whether an entry of the output depends on the same entry of the inputs alone.
        parity: whether `arithmetic: mergekit` can round its steps; the others are refused with it where
            mergekit would work in bfloat16 or float16, and are the same as without it in float32.
        finite: whether NaN or infinities in an input stop it, so that inputs are looked at beforehand.
    """

    base: ClassVar[Literal["required", "optional", "input"]] = "required"
    least: ClassVar[int] = 1
    most: ClassVar[int | None] = None
    required: ClassVar[tuple[str, ...]] = ()
    per_model: ClassVar[tuple[str, ...]] = ()
    spelling: ClassVar[Mapping[str, str]] = {}
    whole: ClassVar[int] = 0
    parity: ClassVar[bool] = False
    finite: ClassVar[bool] = False
    elementwise: ClassVar[bool] = False

    def merge(self, operands: Operands) -> Iterator[Floats]:
        """Yield the merged tensor in flat parts, in order; each is used up before the next."""
        raise TypeError(f"{type(self).__name__} does not say how it merges")

    @property
    def wants_survey(self) -> bool:
        """Return whether the method has to see all tensors before it can merge one."""
        return False

    def survey(self, tensors: Survey) -> Any:
        """Return what the method has to know of the whole model; `tensors` can be gone through repeatedly."""
        return None


@functools.cache
def recipe_method(name: str) -> type[RecipeMethod] | None:
    """Return the method that `merge_method: name` means, None where there is none; imports that one alone.

    Recipes write words with underscores or hyphens, and `regmean++` for `regmean_plus_plus`.
    """
    plain = name.replace("++", "-plus-plus").replace("_", "-")
    if not has_method("merge", plain):
        return None
    kind = method_class("merge", plain)
    return kind if issubclass(kind, RecipeMethod) else None


def recipe_methods() -> tuple[str, ...]:
    """Return the names that `merge_method` can have, as recipes write them; imports every method."""
    names = [name for name in method_names("merge") if recipe_method(name) is not None]
    return tuple(name.replace("-plus-plus", "++").replace("-", "_") for name in names)
