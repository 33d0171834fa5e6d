"""bfloat16 in, bfloat16 out, for methods that treat every entry alike: two entries in one 32-bit word.

Widening one by one costs a conversion and a shift. Taken in pairs, the even entries of a part are its words
shifted left and the odd ones its words masked: one operation on half as many words. A part is then its even
entries followed by its odd ones, which an elementwise method does not notice; the way back interleaves them
again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from transship.verbs.merge.maths.operands import Floats, Operands, Reader
from transship.verbs.merge.recipe.plan.models import Aligned, Readable
from transship.verbs.merge.recipe.plan.steps import StepInput, TensorStep
from transship.verbs.merge.recipe.read.sources import ModelReference

_UPPER = np.uint32(0xFFFF0000)


def planar_reader(model: Aligned[Readable], source: StepInput) -> Reader | None:
    """Return a reader of parts with even entries first, None where the tensor does not lie so in a file."""
    info = model.info(source.tensor)
    if info is None or info.dtype != "bfloat16" or info.size % 2:
        return None
    raw = model.raw(source.tensor)
    if raw is None:
        return None
    words = np.frombuffer(raw, "<u4")
    if not words.flags.aligned:
        return None
    scratch = np.empty(0, np.uint32)

    def read(start: int, stop: int) -> Floats:
        nonlocal scratch
        if scratch.size < stop - start:
            scratch = np.empty(stop - start, np.uint32)
        half = (stop - start) // 2
        part = words[start // 2 : stop // 2]
        np.left_shift(part, 16, out=scratch[:half])
        np.bitwise_and(part, _UPPER, out=scratch[half : 2 * half])
        return scratch[: stop - start].view(np.float32)

    return read


def planar_operands(
    models: Mapping[ModelReference, Aligned[Readable]], step: TensorStep, plain: Operands
) -> Operands | None:
    """Return operands that read pairs, None where an input does not lie so in a file."""
    readers = [planar_reader(models[each.reference], each) for each in step.inputs]
    base = planar_reader(models[step.base.reference], step.base) if step.base is not None else None
    if any(reader is None for reader in readers) or (step.base is not None and base is None):
        return None
    return dataclasses.replace(plain, models=[reader for reader in readers if reader is not None], base=base)


def interleaved(parts: Iterator[Floats]) -> Iterator[Floats | memoryview]:
    """Round parts with even entries first to bfloat16, to nearest and even on a tie, and yield their bytes
    in order.

    A part with a NaN, an infinity or a number that rounds to one is yielded as it is, for the writer to
    refuse.
    """
    scratch = np.empty(0, np.uint32)
    for values in parts:
        with np.errstate(over="ignore", invalid="ignore"):
            square = np.dot(values, values)
        if not np.isfinite(square) and not (np.abs(values) < 3e38).all():
            yield values
            continue
        if scratch.size != values.size:
            scratch = np.empty(values.size, np.uint32)
        yield _pairs(values.view(np.uint32), scratch).data.cast("B")


def _pairs(bits: npt.NDArray[np.uint32], scratch: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return the words that hold two rounded entries each; overwrites `scratch`."""
    np.right_shift(bits, 16, out=scratch)
    np.bitwise_and(scratch, 1, out=scratch)
    np.add(scratch, 0x7FFF, out=scratch)
    np.add(scratch, bits, out=scratch)
    half = bits.size // 2
    even, odd = scratch[:half], scratch[half:]
    np.right_shift(even, 16, out=even)
    np.bitwise_and(odd, _UPPER, out=odd)
    return np.bitwise_or(even, odd, out=even)
