"""Writing weights: tensor by tensor, in the asked dtype, sharded, beside the target, then renamed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from transship.atomic import atomic_folder, check_target
from transship.checkpoints.card import ModelCard, as_json
from transship.checkpoints.checkpoint import Checkpoint
from transship.checkpoints.claims import LISTING, WEIGHTS, inside, module_files, part_of
from transship.checkpoints.dtypes import BY_NAME, CHUNK, Array, find_dtype, narrow, stored, widen
from transship.checkpoints.renaming import declared_tie, ties_a_head
from transship.checkpoints.update import Update
from transship.checkpoints.weightfile import quote
from transship.errors import CheckpointError, NumericalError, OutputError
from transship.numerics import chunks, parse_bytes

Producer = Callable[[], Any]


class TensorPlan(NamedTuple):
    """One tensor to write.

    Attributes:
        dtype: the dtype it is written in, unless the writer is asked for another.
        producer: called once, when its turn comes. It returns the tensor's values (an array or a torch
            tensor), or its bytes in `dtype` (`bytes`, `memoryview`: copied as they are), or an iterator
            over consecutive parts of either.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    producer: Producer

    def nbytes(self, dtype: str) -> int:
        """Return the bytes it takes in `dtype`."""
        count = BY_NAME[dtype].itemsize
        for width in self.shape:
            count *= width
        return count


def copied(checkpoint: Checkpoint, names: Iterable[str] | None = None) -> Iterator[TensorPlan]:
    """Yield plans that copy tensors as they are."""
    for name in checkpoint.tensors if names is None else names:
        info = checkpoint.info(name)
        yield TensorPlan(name, info.shape, info.dtype, _raw(checkpoint, name))


def applied(base: Checkpoint, update: Update) -> Iterator[TensorPlan]:
    """Yield plans of base + update: summed in float32, rounded once; unchanged tensors are copied bit by bit.

    What the update adds beside the base's own tensors (`update.added`) is the caller's to place.
    """
    for name, info in base.tensors.items():
        changed = name in update and info.floating
        producer = _sum(base, update, name) if changed else _raw(base, name)
        yield TensorPlan(name, info.shape, info.dtype, producer)


def write_checkpoint(
    folder: str | os.PathLike[str],
    tensors: Iterable[TensorPlan | tuple[str, tuple[int, ...], str, Producer]],
    *,
    like: Checkpoint | None = None,
    config: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    max_shard_size: int | str = "5GB",
    card: ModelCard | None = None,
    files: Mapping[str, str | bytes] | None = None,
    force: bool = False,
    sync: bool = True,
) -> Path:
    """Write a Hugging Face folder, atomically, and return its path.

    Args:
        tensors: what to write; all names and shapes are listed before the first producer is called.
        like: the checkpoint whose config, tokenizer and other files go along, and whose tied names are
            written once.
        config: replaces `like`'s config.
        dtype: the dtype of all floating-point tensors; each keeps its own without it.
        max_shard_size: the most bytes in one file (`"5GB"`); a larger tensor has a file of its own.
        card: makes `README.md` and `transship.json`.
        files: further files by name; they win over those that go along.
        force: replace an existing folder.
    """
    plans = _settle(tensors, like, dtype)
    limit = parse_bytes(max_shard_size) if isinstance(max_shard_size, str) else max_shard_size
    shards = _shards(plans, limit)
    carried = {} if like is None else carried_files(like)
    settings = dict(config if config is not None else like.config if like is not None else {})
    texts: dict[str, str | bytes] = {}
    if settings and like is not None and ties_a_head(like.tied) and declared_tie(settings) is None:
        # some families tie by default and some do not: once a name is left out, the config must speak
        settings["tie_word_embeddings"] = True
    if settings:
        texts["config.json"] = as_json(with_dtype(settings, _main_dtype(plans)))
    if WEIGHTS not in shards:
        texts["model.safetensors.index.json"] = as_json(_index(shards))
    if card is not None and LISTING in {**carried, **(files or {})}:
        card = replace(card, library="sentence-transformers")
    texts |= {**(card.files() if card is not None else {}), **(files or {})}
    needs = sum(plan.nbytes(plan.dtype) for plan in plans) + sum(
        path.stat().st_size for path in carried.values()
    )
    with atomic_folder(folder, force=force, needs=needs, sync=sync) as place:
        _place_files(place, carried, texts)
        for name, part in shards.items():
            write_file(place / name, part)
    return Path(folder)


def _place_files(place: Path, carried: Mapping[str, Path], texts: Mapping[str, str | bytes]) -> None:
    try:
        for name, source in carried.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, place / name)
        for name, text in texts.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(text.encode() if isinstance(text, str) else text)
    except OSError as error:
        raise _stopped(error, str(error.filename or place)) from error


def _stopped(error: OSError, where: str) -> OutputError:
    reason = error.strerror or str(error)
    return OutputError(
        f"writing stopped ({reason})", where=where, fix="free some space, or choose another disk"
    )


def write_file(path: Path, plans: Sequence[TensorPlan]) -> None:
    """Write one safetensors file where it lies; `atomic_file` or `atomic_folder` around it makes it safe."""
    # wide elements first, so that every tensor starts at a multiple of its own element size
    ordered = sorted(plans, key=lambda plan: -BY_NAME[plan.dtype].itemsize)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers asks for it
    place = 0
    for plan in ordered:
        end = place + plan.nbytes(plan.dtype)
        code = BY_NAME[plan.dtype].code
        header[plan.name] = {"dtype": code, "shape": list(plan.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    try:
        path.parent.mkdir(exist_ok=True, parents=True)
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for plan in ordered:
                _write_tensor(file, plan)
    except OSError as error:
        raise _stopped(error, str(path)) from error


def _settle(tensors: Iterable[Any], like: Checkpoint | None, dtype: str | None) -> list[TensorPlan]:
    """List the plans in the dtype that they are written in, without names that are tied to another."""
    asked = find_dtype(dtype).name if dtype is not None else None
    plans = {}
    for given in tensors:
        plan = TensorPlan(*given)
        kind = find_dtype(plan.dtype, where=plan.name)
        if plan.name in plans or plan.name == "__metadata__":
            raise CheckpointError(
                f"a tensor named {quote(plan.name)} cannot be written twice",
                where="write",
                fix="rename one of them",
            )
        if asked is not None and kind.floating and asked != kind.name:
            plan = plan._replace(dtype=asked, producer=_converted(plan, kind.name))
        plans[plan.name] = plan._replace(shape=tuple(int(width) for width in plan.shape))
    tied = {} if like is None else like.tied
    return [plan for name, plan in plans.items() if tied.get(name) not in plans]


def _shards(plans: Sequence[TensorPlan], limit: int) -> dict[str, list[TensorPlan]]:
    """Return {file name: its tensors}, filled in the given order; a module has a file of its own."""
    groups: list[list[TensorPlan]] = [[]]
    room = limit
    modules: dict[str, list[TensorPlan]] = {}
    for plan in plans:
        if part := part_of(plan.name):
            inner = plan._replace(name=plan.name.removeprefix(part))
            modules.setdefault(part + WEIGHTS, []).append(inner)
            continue
        size = plan.nbytes(plan.dtype)
        if groups[-1] and size > room:
            groups.append([])
            room = limit
        groups[-1].append(plan)
        room -= size
    if len(groups) == 1:
        return {WEIGHTS: groups[0], **modules}
    count = len(groups)
    return {f"model-{n:05d}-of-{count:05d}.safetensors": group for n, group in enumerate(groups, 1)} | modules


def _index(shards: Mapping[str, Sequence[TensorPlan]]) -> dict[str, Any]:
    own = {file: plans for file, plans in shards.items() if not part_of(file)}
    total = sum(plan.nbytes(plan.dtype) for plans in own.values() for plan in plans)
    places = {plan.name: file for file, plans in own.items() for plan in plans}
    return {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}


def _main_dtype(plans: Sequence[TensorPlan]) -> str:
    """Return the floating dtype that takes most bytes."""
    sizes: dict[str, int] = {}
    for plan in plans:
        if BY_NAME[plan.dtype].floating:
            sizes[plan.dtype] = sizes.get(plan.dtype, 0) + plan.nbytes(plan.dtype)
    return max(sizes, key=lambda name: sizes[name], default="float32")


def _write_tensor(file: BinaryIO, plan: TensorPlan) -> None:
    left = plan.nbytes(plan.dtype)
    for block in encoded(plan):
        left -= block.nbytes
        file.write(block)
    if left:
        raise ValueError(f"{plan.name}: its producer gave {'too few' if left > 0 else 'too many'} elements")


def encoded(plan: TensorPlan) -> Iterator[memoryview]:
    """Yield a tensor's bytes as they are written; a block is valid until the next one is asked for."""
    for part in _parts(plan.producer()):
        yield from _encoded(part, plan)


def _parts(produced: Any) -> Iterable[Any]:
    whole = isinstance(produced, (bytes, bytearray, memoryview, np.ndarray)) or hasattr(produced, "detach")
    return (produced,) if whole else produced


def _encoded(part: Any, plan: TensorPlan) -> Iterator[memoryview]:
    """Yield a part's bytes in the plan's dtype, chunk by chunk; NaN and overflow are errors by name."""
    if isinstance(part, (bytes, bytearray, memoryview)):
        yield memoryview(part).cast("B") if len(part) else memoryview(b"")
        return
    values = _as_array(part).reshape(-1)
    if not BY_NAME[plan.dtype].floating:
        yield _bytes(np.ascontiguousarray(values, BY_NAME[plan.dtype].storage))
        return
    for place in chunks(values.size, CHUNK):
        chunk = values[place]
        block = narrow(chunk, plan.dtype)
        if not _finite(block, plan.dtype):
            _refuse_values(chunk, plan)
        yield _bytes(block)


def _bytes(array: Any) -> memoryview:
    return memoryview(array).cast("B") if array.size else memoryview(b"")  # an empty view cannot be cast


def _as_array(part: Any) -> Array:
    if isinstance(part, np.ndarray):
        return part
    tensor = part.detach().cpu()  # a torch tensor, whose bfloat16 numpy does not know
    wide = tensor.float() if tensor.is_floating_point() and str(tensor.dtype) != "torch.float64" else tensor
    array: Array = wide.numpy()
    return array


def _finite(block: Array, dtype: str) -> bool:
    if dtype == "bfloat16":
        return not bool(((block & np.uint16(0x7FFF)) >= np.uint16(0x7F80)).any())
    return bool(np.isfinite(block if BY_NAME[dtype].native else widen(block, dtype)).all())


def _refuse_values(values: Array, plan: TensorPlan) -> None:
    if np.isfinite(values).all():
        largest = np.abs(values).max()
        raise NumericalError(
            f"tensor {quote(plan.name)} reaches {largest:.3g}, too large for {plan.dtype}",
            where="write",
            fix="write bfloat16 or float32",
        )
    raise NumericalError(
        f"tensor {quote(plan.name)} would hold a NaN or an infinity",
        where="write",
        fix="check the inputs and weights",
    )


def _converted(plan: TensorPlan, original: str) -> Producer:
    """Return a producer of values where the plan's own gives bytes of its dtype."""

    def produce() -> Iterator[Any]:
        for part in _parts(plan.producer()):
            if not isinstance(part, (bytes, bytearray, memoryview)):
                yield part
                continue
            width = BY_NAME[original].itemsize
            for place in chunks(len(part) // width, CHUNK):
                block = memoryview(part)[place.start * width : place.stop * width]
                yield stored(block, original) if original == "float64" else widen(block, original)

    return produce


def _raw(checkpoint: Checkpoint, name: str) -> Producer:
    return lambda: checkpoint.raw(name)


def _sum(base: Checkpoint, update: Update, name: str) -> Producer:
    def produce() -> Iterator[Array]:
        read = update.reader(name)
        for place in chunks(base.info(name).size, CHUNK):
            yield base.chunk(name, place.start, place.stop) + read(place.start, place.stop)

    return produce


__all__ = ["TensorPlan", "applied", "check_target", "copied", "encoded", "write_checkpoint", "write_file"]


_CARRIED = (
    "generation_config.json",
    "tokenizer*",
    "vocab*.json",
    "vocab*.txt",
    "merges.txt",
    "*.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "bpe.codes",
    "chat_template*",
    "*preprocessor_config.json",
    "processor_config.json",
    "image_processor_config.json",
    "modules.json",
    "sentence_*_config.json",
    "config_sentence_transformers.json",
    "LICENSE*",
    "NOTICE*",
)
_DTYPE_KEYS = ("dtype", "torch_dtype")


def carried_files(checkpoint: Checkpoint) -> dict[str, Path]:
    """Return {name in the new folder: file to copy} of all that is not weights, config or card.

    Python files go along when the config points to them (`auto_map`): they are copied, never run. The parts
    of a sentence encoder (`1_Pooling`, `2_Dense` …) are those that `modules.json` lists.
    """
    folder = checkpoint.folder
    if folder is None or not checkpoint.config:
        return {}
    patterns = (*_CARRIED, "*.py") if "auto_map" in checkpoint.config else _CARRIED
    files = {
        path.name: inside(path, folder)
        for path in sorted(folder.iterdir())
        if path.is_file() and any(fnmatch(path.name, pattern) for pattern in patterns)
    }
    return files | module_files(folder)


def with_dtype(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    """Return the config with its dtype, and that of its parts, set to what is written."""
    keys = [key for key in _DTYPE_KEYS if key in config]
    changed: dict[str, Any] = {}
    for key, value in config.items():
        if key in keys and (value is None or str(value).removeprefix("torch.") in BY_NAME):
            changed[key] = dtype
        elif (
            isinstance(value, dict) and key.endswith("_config") and any(part in value for part in _DTYPE_KEYS)
        ):
            changed[key] = with_dtype(value, dtype)
        else:
            changed[key] = value
    if not keys and config.get("model_type"):
        changed["torch_dtype"] = dtype  # the name that every transformers reads
    return changed
