"""Several processes of one launch (`accelerate launch` or `torchrun`) that share the work of one command.

Every process runs the same code on the same arguments. Work over batches is dealt out by `mine`, sums over
processes are the same in all of them, and only the first one writes and prints. Without a launch there is one
process, nothing of torch is imported here, and every function below is the identity.

A process that leaves early takes the others with it: they find their connection closed, or are told by the
launcher (SIGTERM), and end with one sentence that the first of them prints.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from transship.errors import LaunchError, OptionError

if TYPE_CHECKING:
    from torch import Tensor

Value = TypeVar("Value")
# One process may write a large model while the others wait; a dead one is noticed by its closed connection.
PATIENCE = timedelta(days=1)
# Tensors below this many elements travel together: a message costs more than their numbers.
SMALL = 65536
_LAUNCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass
class _World:
    rank: int = 0
    size: int = 1


_WORLD = _World()


def launched() -> bool:
    """Return whether a launcher started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE") or 1) > 1 and "RANK" in os.environ


def alone() -> bool:
    """Leave the launch to its first process; return whether this is the one that goes on."""
    first = int(os.environ.get("RANK", 0)) == 0
    for name in _LAUNCH:
        os.environ.pop(name, None)
    return first


def join() -> None:
    """Become one of the launch's processes, over gloo, and over NCCL between GPUs; through accelerate."""
    if not launched() or _WORLD.size > 1:
        return
    import torch
    from accelerate import PartialState  # type: ignore[import-untyped]

    options: dict[str, Any] = {"timeout": PATIENCE}
    if torch.cuda.is_available():
        options["backend"] = "cpu:gloo,cuda:nccl"  # statistics may lie on either
    try:
        state = PartialState(cpu=not torch.accelerator.is_available(), **options)
    except (OSError, RuntimeError, ValueError) as error:
        where = f"RANK={os.environ['RANK']} WORLD_SIZE={os.environ['WORLD_SIZE']}"
        raise LaunchError(
            f"the processes of this launch do not find one another ({str(error).splitlines()[0]})",
            where=where,
            fix="start them with torchrun or accelerate launch, or unset both for a single process",
        ) from error
    _WORLD.rank, _WORLD.size = state.process_index, state.num_processes


def leave() -> None:
    """Wait until all processes are done, and part."""
    if _WORLD.size == 1:
        return
    import torch.distributed

    try:
        torch.distributed.barrier()
    except RuntimeError as error:
        if not is_main():
            raise _left() from error
        raise LaunchError(
            "another process ended too early, when this one, which writes, was done",
            where=f"process 0 of {_WORLD.size}",
            fix="see its own message; what this one wrote is whole",
        ) from error
    torch.distributed.destroy_process_group()
    _WORLD.rank, _WORLD.size = 0, 1


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Let this process work for itself for a while, as if there were no other.

    For what the first one does after the others have left off (a page, a plot): whatever it calls would
    otherwise wait for their share.
    """
    before = _WORLD.rank, _WORLD.size
    _WORLD.rank, _WORLD.size = 0, 1
    try:
        yield
    finally:
        _WORLD.rank, _WORLD.size = before


def rank() -> int:
    """Return this process's number; 0 without a launch."""
    return _WORLD.rank


def size() -> int:
    """Return how many processes share the work; 1 without a launch."""
    return _WORLD.size


def is_main() -> bool:
    """Return whether this process writes and prints."""
    return _WORLD.rank == 0


def mine(number: int) -> bool:
    """Return whether a piece of work is this process's: they are dealt out in turn."""
    return number % _WORLD.size == _WORLD.rank


def share(rows: Any) -> Any:
    """Return this process's slice of the rows of a batch (a list, a range, an array); it may be empty."""
    return rows[_WORLD.rank :: _WORLD.size]


def device(name: str) -> str:
    """Return this process's own device where a kind is named: `cuda` is a GPU each; `auto` is that or cpu.

    Apple's GPU is not chosen: it lacks float64, in which sums of statistics are.
    """
    if name == "auto":
        import torch  # start-up

        name = "cuda" if torch.cuda.is_available() else "cpu"
    if _WORLD.size == 1 or ":" in name or name == "cpu":
        return name
    return f"{name}:{os.environ.get('LOCAL_RANK', 0)}"


def require_device(name: str) -> None:
    """Refuse a device that is none or is not here: what is named does not fall back to the CPU in silence."""
    if name == "auto":
        return
    import torch  # start-up

    try:
        wanted = torch.device(name)
    except RuntimeError as error:
        raise OptionError(
            f"there is no device '{name}'", where="device", fix="choose cpu, or one such as cuda:1"
        ) from error
    if wanted.type == "cpu":
        return
    backend: Any = getattr(torch, wanted.type, None)
    count = backend.device_count() if hasattr(backend, "device_count") else 0
    if (wanted.index or 0) >= count:
        raise OptionError(f"this machine has no {name}", where="device", fix="choose cpu")
    if wanted.index is not None and launched():
        raise OptionError(
            f"every process of a launch has a device of its own, and this is {name}",
            where="device",
            fix=f"choose {wanted.type}",
        )


def gather(value: Value) -> list[Value]:
    """Return every process's value, in their order; values are small and can be pickled."""
    if _WORLD.size == 1:
        return [value]
    import torch.distributed

    values: list[Any] = [None] * _WORLD.size
    with _together():
        torch.distributed.all_gather_object(values, value)
    return values


def agreed(value: Value) -> Value:
    """Return the first process's value: what a branch hangs on must not differ by a rounding."""
    if _WORLD.size == 1:
        return value
    import torch.distributed

    values: list[Any] = [value]
    with _together():
        torch.distributed.broadcast_object_list(values, src=0)
    first: Value = values[0]
    return first


def wait() -> None:
    """Return when every process has come here."""
    if _WORLD.size > 1:
        import torch.distributed

        with _together():
            torch.distributed.barrier()


def add_up(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its sum over processes, in place; all processes give the same shapes."""
    if _WORLD.size == 1:
        return
    import torch

    small: dict[Any, list[Tensor]] = {}
    with _together():
        for tensor in tensors:
            if tensor.numel() < SMALL or not tensor.is_contiguous():
                small.setdefault((tensor.device, tensor.dtype), []).append(tensor)
            else:
                torch.distributed.all_reduce(tensor)
        for group in small.values():
            joined = torch.cat([tensor.reshape(-1) for tensor in group])
            torch.distributed.all_reduce(joined)
            start = 0
            for tensor in group:
                tensor.copy_(joined[start : start + tensor.numel()].reshape(tensor.shape))
                start += tensor.numel()


def total(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the sums over processes by name; a process that lacks a name counts as zero."""
    if _WORLD.size == 1:
        return dict(tensors)
    import torch

    views = gather(
        {name: (tuple(tensor.shape), tensor.dtype, str(tensor.device)) for name, tensor in tensors.items()}
    )
    known = {name: about for view in views for name, about in view.items()}
    sums = {
        name: tensors[name].detach().clone(memory_format=torch.contiguous_format)
        if name in tensors
        else torch.zeros(shape, dtype=dtype, device=device(where.partition(":")[0]))
        for name, (shape, dtype, where) in known.items()
    }
    add_up(list(sums.values()))
    return sums


def add_gradients(parameters: Iterable[Tensor]) -> None:
    """Replace every `.grad` by its sum over processes; a parameter that none of them reached keeps None."""
    if _WORLD.size == 1:
        return
    import torch

    ordered = list(parameters)
    reached = torch.tensor([float(parameter.grad is not None) for parameter in ordered], dtype=torch.float64)
    add_up([reached])
    used = [parameter for parameter, count in zip(ordered, reached.tolist(), strict=True) if count]
    for parameter in used:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    add_up([parameter.grad for parameter in used if parameter.grad is not None])


def rows_of_all(count: int, parts: Sequence[tuple[Sequence[int], Tensor]]) -> Tensor:
    """Return [count, ...] from the rows that the processes made: (their places, the rows), each row once."""
    import torch

    own = parts[0][1] if parts else None
    about = gather(None if own is None else (tuple(own.shape[1:]), own.dtype, str(own.device)))
    shape, dtype, where = next(each for each in about if each is not None)
    whole = torch.zeros((count, *shape), dtype=dtype, device=where if own is None else own.device)
    for places, rows in parts:
        whole[torch.as_tensor(list(places), device=whole.device)] = rows
    add_up([whole])  # all but one of the summands of a row are zero
    return whole


def rows_with_own(count: int, places: Sequence[int], own: Tensor | None) -> Tensor:
    """Return [count, ...] of all processes' rows, in which this one's, at `places`, keep their derivative."""
    if _WORLD.size == 1 and own is not None:
        return own
    import torch

    whole = rows_of_all(count, [] if own is None else [(places, own.detach())])
    if own is None:
        return whole
    return whole.index_put((torch.as_tensor(list(places), device=whole.device),), own)


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """Turn what a process that left does to the others into one sentence."""
    try:
        yield
    except RuntimeError as error:
        raise _left() from error


def _left() -> LaunchError:
    return LaunchError(
        "another process ended before the work was done, and nothing half-written was left",
        where=f"process {_WORLD.rank} of {_WORLD.size}",
        fix="see its own message or the machine's memory, and start the same command again: what was saved "
        "is reused",
    )


# -- the command line's side ---------------------------------------------------------------------------------


def _stopped(number: int, frame: Any) -> None:
    raise _left()


@contextlib.contextmanager
def quiet_unless_main() -> Iterator[None]:
    """Join the launch while the block runs; all but the first process print nothing meanwhile.

    An error leaves the block in every process; `speaks` says which of them prints it.
    """
    signal.signal(signal.SIGTERM, _stopped)
    join()
    with contextlib.ExitStack() as stack:
        if not is_main():
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
            stack.enter_context(contextlib.redirect_stderr(nowhere))
        yield
        leave()


def speaks() -> bool:
    """Return whether this process is the first of the launch that ends with an error: one sentence is enough.

    The store lives in the launcher, so that it outlasts every process of the work. Where it does not, it was
    the first process's and has gone with it; then the second one speaks too, so that somebody does.
    """
    if _WORLD.size == 1:
        return True
    from torch.distributed import distributed_c10d

    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends by itself in a moment
    try:
        return int(distributed_c10d._get_default_store().add("transship/error", 1)) == 1
    except (RuntimeError, ValueError):
        return _WORLD.rank <= 1


def end(code: int) -> NoReturn:
    """Exit at once: a process group that lost a member cannot be taken down in order."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if _WORLD.size > 1:
        os._exit(code)
    sys.exit(code)
