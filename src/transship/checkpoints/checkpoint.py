"""Weights at rest: names, shapes and dtypes at once, data one tensor or one chunk at a time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from transship.checkpoints.dtypes import BY_NAME, CHUNK, Array, Floats, stored, widen
from transship.checkpoints.renaming import find_ties
from transship.checkpoints.weightfile import TensorInfo, quote
from transship.errors import CheckpointError, NumericalError
from transship.numerics import chunks

if TYPE_CHECKING:
    import torch
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

# what a config says of where it came from and how it was saved, not of what the model computes
_INCIDENTAL = frozenset({"_name_or_path", "name_or_path", "transformers_version", "torch_dtype", "dtype"})
_COMPARED_BYTES = 1 << 20


class TensorSource(Protocol):
    """A file that holds tensors."""

    pickled: ClassVar[bool]

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Return what is known of each tensor."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """Return the file's own notes: kept names of tensors that it left out, and free texts."""

    def raw(self, name: str) -> memoryview:
        """Return the bytes of one tensor."""

    def tensor(self, name: str) -> torch.Tensor:
        """Return one tensor as torch sees it."""

    def close(self) -> None:
        """Let go of the file."""


class Checkpoint:
    """Weights at rest, from one file or many shards.

    Attributes:
        name: the reference as the user gave it.
        folder: where it lies; None for sources that are no files.
        config: the model's `config.json`, or empty.
        tensors: every independent tensor by name; aliases are in `tied` only.
        tied: alias → the name in `tensors` whose data it shares. Reading an alias reads that tensor.
        metadata: the free texts in the files' headers.
        trust_remote_code: whether the user allowed code from the model's repository to run (nothing here
            runs it).
    """

    def __init__(
        self,
        name: str,
        sources: Iterable[TensorSource],
        *,
        folder: Path | None = None,
        config: Mapping[str, Any] | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        self.name, self.folder = name, folder
        self.config: dict[str, Any] = dict(config or {})
        self.trust_remote_code = trust_remote_code
        self._sources = tuple(sources)
        self._home: dict[str, TensorSource] = {}
        metadata: dict[str, str] = {}
        for source in self._sources:
            metadata.update(source.metadata)
            for tensor in source.tensors:
                if tensor in self._home:
                    raise CheckpointError(
                        f"two files hold a tensor named {quote(tensor)}",
                        where=name,
                        fix="keep one of the files",
                    )
                self._home[tensor] = source
        infos = {tensor: source.tensors[tensor] for tensor, source in self._home.items()}
        self.metadata: Mapping[str, str] = MappingProxyType(metadata)
        ties = find_ties(infos, self.config, metadata, self._same)
        self.tied: Mapping[str, str] = MappingProxyType(ties)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {tensor: info for tensor, info in infos.items() if tensor not in ties}
        )
        self._fingerprint: str | None = None

    def __repr__(self) -> str:
        size = f"{len(self.tensors)} tensors, {self.parameters:,} parameters"
        return f"{type(self).__name__}({self.name!r}, {size})"

    def __contains__(self, name: object) -> bool:
        return name in self.tensors or name in self.tied

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files; arrays that were read without copying stay valid."""
        for source in self._sources:
            source.close()

    @property
    def pickled(self) -> bool:
        """Whether any of its files is a pickle."""
        return any(source.pickled for source in self._sources)

    @property
    def parameters(self) -> int:
        """Return the number of elements of all independent tensors."""
        return sum(info.size for info in self.tensors.values())

    @property
    def nbytes(self) -> int:
        return sum(info.nbytes for info in self.tensors.values())

    @property
    def dtype(self) -> str:
        """Return the dtype of most of the floating-point elements, or of all elements if none is floating."""
        counts: dict[str, int] = {}
        for info in self.tensors.values():
            counts[info.dtype] = counts.get(info.dtype, 0) + info.size
        floating = {name: count for name, count in counts.items() if BY_NAME[name].floating}
        return max(floating or counts, key=lambda name: counts[name], default="float32")

    def info(self, name: str) -> TensorInfo:
        """Return shape and dtype of a tensor or an alias."""
        return self.tensors[self._resolve(name)]

    def raw(self, name: str) -> memoryview:
        """Return the bytes of a tensor in the file's map, read-only."""
        name = self._resolve(name)
        return self._home[name].raw(name)

    def read(self, name: str) -> Array:
        """Return a tensor in its own dtype, bfloat16 and float8 as float32.

        Where numpy knows the type, nothing is copied and the array is read-only.
        """
        info = self.info(name)
        raw = self.raw(name)
        flat = stored(raw, info.dtype) if BY_NAME[info.dtype].native else widen(raw, info.dtype)
        return flat.reshape(info.shape)

    def floats(
        self, name: str, start: int = 0, stop: int | None = None, *, out: Floats | None = None
    ) -> Floats:
        """Return the elements `start:stop` of the flattened tensor as float32; float32 data is not copied."""
        info = self.info(name)
        return widen(self._part(info, start, stop), info.dtype, out)

    def chunk(self, name: str, start: int, stop: int) -> Array:
        """Return the elements `start:stop` of the flattened tensor as float32, or as float64 if stored so."""
        info = self.info(name)
        part = self._part(info, start, stop)
        return stored(part, info.dtype) if info.dtype == "float64" else widen(part, info.dtype)

    def tensor(self, name: str) -> torch.Tensor:
        """Return a torch tensor in the stored dtype, over a copy-on-write map where possible.

        Writing to it changes neither the file nor what `read` returns; a later `tensor` may see the change.
        """
        name = self._resolve(name)
        return self._home[name].tensor(name)

    def fingerprint(self) -> str:
        """Return a SHA-256 (64 hex digits) of names, shapes, dtypes, values and config.

        It does not depend on the folder, the sharding, the order in the files or how tied weights are stored.
        """
        if self._fingerprint is None:
            digest = hashlib.sha256()
            config = {key: value for key, value in self.config.items() if key not in _INCIDENTAL}
            digest.update(json.dumps(config, sort_keys=True).encode())
            for name in sorted(self.tensors):
                info = self.tensors[name]
                values = hashlib.sha256(self.raw(name)).hexdigest()
                digest.update(json.dumps([name, info.dtype, info.shape, values]).encode())
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def _part(self, info: TensorInfo, start: int, stop: int | None) -> memoryview:
        width = BY_NAME[info.dtype].itemsize
        start, stop, _ = slice(start, stop).indices(info.size)
        return self.raw(info.name)[start * width : max(start, stop) * width]

    def _resolve(self, name: str) -> str:
        name = self.tied.get(name, name)
        if name not in self.tensors:
            raise CheckpointError(
                f"there is no tensor {quote(name)}",
                where=self.name,
                fix=f"run `transship inspect {self.name}`",
            )
        return name

    def _same(self, one: str, other: str) -> bool:
        """Return whether two stored tensors have the same bytes; stops at the first difference."""
        first, second = self._home[one].raw(one), self._home[other].raw(other)
        return all(
            np.array_equal(np.frombuffer(first[part], np.uint8), np.frombuffer(second[part], np.uint8))
            for part in chunks(len(first), _COMPARED_BYTES)
        )


def check_finite(checkpoint: Checkpoint, names: Iterable[str] | None = None) -> None:
    """Raise a NumericalError that names the first of `names` (default all) with a NaN or an infinity."""
    for name in checkpoint.tensors if names is None else names:
        info = checkpoint.info(name)
        if not info.floating:
            continue
        for part in chunks(info.size, CHUNK):
            finite = np.isfinite(checkpoint.chunk(name, part.start, part.stop))
            if not finite.all():
                place = part.start + int(np.argmin(finite))
                raise NumericalError(
                    f"tensor {quote(name)} holds a NaN or an infinity at element {place}",
                    where=checkpoint.name,
                    fix="use weights from before training diverged",
                )


Layout = Literal["linear", "conv1d", "embedding"]
Reader = Callable[[int, int], Floats]
Factors = tuple[Floats, Floats]


class Term(Protocol):
    """One tensor's change, not yet read."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the tensor that changes."""

    def reader(self) -> Reader:
        """Return a function from (start, stop) to those elements of the flattened change."""

    def factors(self) -> Factors | None:
        """Return (up [out, rank], down [rank, in]) whose product is the change, or None where it is dense."""


@dataclass(frozen=True)
class TensorDifference:
    """What one tensor of `tuned` has more than its partner in `base`."""

    base: Checkpoint
    base_name: str
    tuned: Checkpoint
    tuned_name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the tensor that changes."""
        return self.base.info(self.base_name).shape

    def reader(self) -> Reader:
        """Return tuned − base by stretches, in float32; in float64, rounded once, where either is float64."""

        def read(start: int, stop: int) -> Floats:
            after = self.tuned.chunk(self.tuned_name, start, stop)
            before = self.base.chunk(self.base_name, start, stop)
            difference: Floats = np.subtract(after, before).astype(np.float32, copy=False)
            return difference

        return read

    def factors(self) -> None:
        """Return None: a difference is dense."""
        return


@dataclass(frozen=True)
class LowRank:
    """A change given by its two factors, as an adapter stores it.

    Attributes:
        load: reads (up [out, rank], down [rank, in]) with the scale folded in; the product, reshaped, is
            the change.
        layout: how the module holds the weight: `linear` [out, in], `conv1d` [in, out], `embedding` [words,
            width].
    """

    shape: tuple[int, ...]
    load: Callable[[], Factors]
    layout: Layout = "linear"

    def reader(self) -> Reader:
        """Return stretches of the product, computed for whole rows and cut."""
        up, down = self.load()
        width = max(down.shape[1], 1)

        def read(start: int, stop: int) -> Floats:
            first, last = start // width, -(-stop // width)
            rows: Floats = up[first:last] @ down
            return rows.reshape(-1)[start - first * width : stop - first * width]

        return read

    def factors(self) -> Factors:
        return self.load()


@dataclass(frozen=True)
class DenseChange:
    """A change that is at hand, or that a function makes when it is asked for."""

    shape: tuple[int, ...]
    load: Callable[[], Array]

    def reader(self) -> Reader:
        flat = np.asarray(self.load(), np.float32).reshape(-1)
        return lambda start, stop: flat[start:stop]

    def factors(self) -> None:
        """Return None: the change is dense."""
        return
