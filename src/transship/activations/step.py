"""Two models in step: the same inputs through both, and the rows of chosen tensors, token by token."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transship.activations.batches import Numbered
from transship.activations.families import WINDOWED
from transship.activations.layout import Alignment, RowOperator, TokenLayout
from transship.activations.models import Batch, LoadedModel
from transship.activations.sites import Tap, watching
from transship.activations.tokens import align_tokens, window_places
from transship.errors import DataError, MatchError, TransshipError
from transship.types import Align

Key = tuple[Tap, "Lane"]


@dataclass(frozen=True)
class Stream:
    """A tap and the stack whose tokens its tensor has."""

    tap: Tap
    stack: str


@dataclass(frozen=True)
class Lane:
    """Rows of one pair of token sequences: both stacks and both numbers of tokens (0 for the text's own)."""

    source_stack: str
    target_stack: str
    source_tokens: int
    target_tokens: int


@dataclass(frozen=True)
class Seen:
    """What one input showed of a tap's tensor.

    Attributes:
        tokens: tokens per input; 0 where they are the text's, and vary.
        width: of a row.
        identity: the same for taps that saw one tensor.
        calls: how often the module ran.
        device: where the tensor was.
    """

    tokens: int
    width: int
    identity: tuple[Any, ...]
    calls: int
    device: torch.device


@dataclass(frozen=True, eq=False)
class StepRows:
    """Rows of one batch: per tap and lane [rows, width], row i of a lane from the same token."""

    source: dict[tuple[Tap, Lane], Float[Tensor, "_ _"]]
    target: dict[tuple[Tap, Lane], Float[Tensor, "_ _"]]
    rows: dict[Lane, int]
    inputs: int


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """How tokens are paired and kept; see `align_tokens`.

    Attributes:
        align: the alignment, `auto` by default.
        tokens_per_input: at most so many rows per input and lane, or None for all.
        seed: of the draw.
        skip_first: leave out first tokens; None for "where a model is causal".
    """

    align: Align = "auto"
    tokens_per_input: int | None = None
    seed: int = 0
    skip_first: bool | None = None


class Side:
    """One of the two models, its wanted streams, and what is known of their tensors."""

    def __init__(self, loaded: LoadedModel, streams: Iterable[Stream]) -> None:
        self.loaded = loaded
        self.stacks = {stream.tap: stream.stack for stream in streams}
        self.seen: dict[Tap, Seen] = {}
        self.skipped: dict[Tap, str] = {}
        attentions = [
            module for module in loaded.model.modules() if isinstance(module, nn.MultiheadAttention)
        ]
        self.tokens_first = bool(attentions) and not any(module.batch_first for module in attentions)
        self.windows = _windowed_blocks(loaded)

    def explore(self, item: Any) -> None:
        """Run one input and keep what every tensor is: tokens, width, and which taps see the same one."""
        batch = self.loaded.preprocess([item])
        caught: dict[Tap, list[tuple[Tensor, int]]] = {}
        # tensors are kept alive until all are compared, so that no address is used twice
        self.run(
            batch,
            list(self.stacks),
            lambda tap, tensor: caught.setdefault(tap, []).append((tensor, tensor._version)),
        )
        for tap, stack in self.stacks.items():
            if tap not in caught:
                self.skipped[tap] = "does not run on these inputs"
                continue
            tensor, version = caught[tap][0]
            flattened = self.flatten(tap, tensor, batch)
            if flattened is None or not tensor.dtype.is_floating_point:
                self.skipped[tap] = f"a tensor of shape {tuple(tensor.shape)} has no rows per token"
                continue
            flat, tokens, _ = flattened
            identity = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), version)
            varies = (tensor.dim() == 3 or tokens > 1) and batch.layout(stack).knows(tokens)
            calls = len(caught[tap])
            self.seen[tap] = Seen(0 if varies else tokens, flat.shape[1], identity, calls, tensor.device)

    def run(self, batch: Batch, taps: Sequence[Tap], watcher: Callable[[Tap, Tensor], None]) -> None:
        """Run a batch with hooks at `taps`."""
        with torch.no_grad(), watching(self.loaded.model, taps, watcher):
            try:
                self.loaded.run(batch)
            except TransshipError:
                raise
            except (RuntimeError, TypeError, ValueError, IndexError) as error:
                raise DataError(
                    f"the model cannot run these inputs ({' '.join(str(error).split())[:200]})",
                    where=self.loaded.name,
                    fix="check that the inputs are what the model reads, or give a preprocess function",
                ) from error

    def flatten(self, tap: Tap, tensor: Tensor, batch: Batch) -> tuple[Tensor, int, Tensor | None] | None:
        """Return ([inputs · tokens, width], tokens, where each token lies), or None without rows."""
        size = batch.size
        if tensor.dim() == 4:  # channels over an image
            if tensor.shape[0] != size:
                return None
            tensor = tensor.flatten(2).transpose(1, 2)
        if tensor.dim() == 3 and self.tokens_first:
            tensor = tensor.transpose(0, 1)
        if tensor.dim() == 3 and tensor.shape[0] == size:
            return tensor.reshape(-1, tensor.shape[2]), tensor.shape[1], None
        if tensor.dim() == 2 and tensor.shape[0] == size:
            return tensor, 1, None
        block = self.windows.get(tap.path)
        if tensor.dim() == 3 and block is not None:
            window, shift = int(block[0].window_size), int(block[0].shift_size)  # type: ignore[arg-type]
            for grid in batch.layout(block[1]).grids:
                area = -(-grid[0] // window) * -(-grid[1] // window) * window * window
                if area * size == tensor.shape[0] * tensor.shape[1]:
                    places = window_places(size, grid, window, shift)
                    return tensor.reshape(-1, tensor.shape[2]), grid[0] * grid[1], places
        if tensor.dim() == 2 and self.stacks:  # tokens of all inputs in one list
            tokens = tensor.shape[0] // size
            return (tensor, tokens, None) if tokens * size == tensor.shape[0] and tokens > 1 else None
        return None


class Stepper:
    """Runs two models over the same batches and returns aligned rows.

    A lane is made for every pair of streams that is wanted together; its alignment is computed once per
    batch.
    """

    def __init__(
        self,
        source: LoadedModel,
        target: LoadedModel,
        pairs: Iterable[tuple[Stream, Stream]],
        options: StepOptions,
        example: Any,
    ) -> None:
        self.wanted = list(pairs)
        self.source = Side(source, [pair[0] for pair in self.wanted])
        self.target = Side(target, [pair[1] for pair in self.wanted])
        self.options = options
        self.source.explore(example)
        self.target.explore(example)
        self.skip_first = source.causal or target.causal if options.skip_first is None else options.skip_first
        self.lanes = {pair: lane for pair in self.wanted if (lane := self.lane(*pair)) is not None}
        self._plan = (self._by_tap(0), self._by_tap(1))

    def lane(self, source: Stream, target: Stream) -> Lane | None:
        """Return the lane of two streams, or None when one of them cannot be seen."""
        if source.tap not in self.source.seen or target.tap not in self.target.seen:
            return None
        tokens = self.source.seen[source.tap].tokens, self.target.seen[target.tap].tokens
        return Lane(source.stack, target.stack, *tokens)

    def restrict(self, pairs: Iterable[tuple[Stream, Stream]]) -> None:
        """Watch only these pairs from now on (those whose tensors others share need not be watched).

        Where depths differ, streams that carry one tensor may be mixed into a pair that nobody asked for;
        it gets its lane here.
        """
        self.lanes = {pair: lane for pair in pairs if (lane := self.lane(*pair)) is not None}
        self._plan = (self._by_tap(0), self._by_tap(1))

    def _by_tap(self, side: int) -> dict[Tap, list[Lane]]:
        taps: dict[Tap, list[Lane]] = {}
        for pair, lane in self.lanes.items():
            lanes = taps.setdefault(pair[side].tap, [])
            if lane not in lanes:
                lanes.append(lane)
        return taps

    def step(self, items: Numbered, buffers: "RowBuffers | None" = None) -> StepRows:
        """Run one batch through both models and return its rows, written into `buffers` if given."""
        inputs, numbers = [item for _, item in items], [number for number, _ in items]
        batches = self.source.loaded.preprocess(inputs), self.target.loaded.preprocess(inputs)
        aligned = {lane: self.align(lane, batches, numbers) for lane in dict.fromkeys(self.lanes.values())}
        rows = {lane: alignment.source.rows for lane, alignment in aligned.items()}
        if buffers is not None:
            buffers.make_room(rows)
        sides = []
        for number, (side, batch) in enumerate(zip((self.source, self.target), batches, strict=True)):
            operators = {
                lane: alignment.source if number == 0 else alignment.target
                for lane, alignment in aligned.items()
            }
            sides.append(self._collect(side, batch, self._plan[number], operators, buffers, number))
        return StepRows(sides[0], sides[1], rows, len(items))

    def align(self, lane: Lane, batches: tuple[Batch, Batch], numbers: Sequence[int]) -> Alignment:
        """Return which rows of a lane's tensors belong together in a batch of inputs with these numbers."""
        layouts = batches[0].layout(lane.source_stack), batches[1].layout(lane.target_stack)
        lengths = [
            tokens or _text_tokens(layout)
            for tokens, layout in zip((lane.source_tokens, lane.target_tokens), layouts, strict=True)
        ]
        single = 1 in lengths and max(lengths) > 1
        return align_tokens(
            *layouts,
            lengths[0],
            lengths[1],
            how="cls" if single and self.options.align == "auto" else self.options.align,
            tokens_per_input=self.options.tokens_per_input,
            seed=self.options.seed,
            numbers=numbers,
            skip_first=self.skip_first and min(lengths) > 1,
        )

    def _collect(
        self,
        side: Side,
        batch: Batch,
        plan: dict[Tap, list[Lane]],
        operators: dict[Lane, RowOperator],
        buffers: "RowBuffers | None",
        number: int,
    ) -> dict[Key, Tensor]:
        rows: dict[Key, list[Tensor]] = {}
        moved: dict[tuple[Lane, torch.device], RowOperator] = {}  # layers may be on several devices

        def watch(tap: Tap, tensor: Tensor) -> None:
            flattened = side.flatten(tap, tensor, batch)
            if flattened is None:
                raise MatchError(
                    f"a tensor of shape {tuple(tensor.shape)} has no rows per token",
                    where=tap.path,
                    fix="leave this site out",
                )
            flat, _, places = flattened
            for lane in plan[tap]:
                if (lane, flat.device) not in moved:
                    moved[lane, flat.device] = operators[lane].to(flat.device)
                operator = moved[lane, flat.device]
                operator = operator if places is None else operator.through(places.to(flat.device))
                # rows are copied here and now: a later operation may write into the tensor
                if buffers is None:
                    copied = operator.apply(flat)
                else:
                    copied = buffers.put(number, (tap, lane), operator, flat)
                rows.setdefault((tap, lane), []).append(copied)

        side.run(batch, list(plan), watch)
        return {key: parts[0] if len(parts) == 1 else torch.cat(parts) for key, parts in rows.items()}


class RowBuffers:
    """Rows of both models that wait for their product, in memory that is taken once.

    Attributes:
        limit: rows per tap and lane; a batch with more enlarges it.
        on_full: called when the next batch has no room; it must use the rows and then `clear` is called.
    """

    def __init__(self, limit: int, on_full: Callable[[], None]) -> None:
        self.limit, self.on_full = limit, on_full
        self.memory: tuple[dict[Key, Tensor], dict[Key, Tensor]] = ({}, {})
        self.filled: tuple[dict[Key, int], dict[Key, int]] = ({}, {})
        self.pending = 0

    def make_room(self, rows: dict[Lane, int]) -> None:
        """Make sure that a batch with so many rows per lane fits."""
        most = max(rows.values(), default=0)
        if self.pending and self.pending + most > self.limit:
            self.on_full()
            self.clear()
        self.pending += most

    def put(self, side: int, key: Key, operator: RowOperator, flat: Tensor) -> Float[Tensor, "rows width"]:
        """Write the operator's rows behind those that are there, and return them."""
        start = self.filled[side].get(key, 0)
        stop = start + operator.rows
        memory = self.memory[side].get(key)
        if memory is None or stop > len(memory):
            dtype = torch.float64 if flat.dtype == torch.float64 else torch.float32
            larger = torch.empty(max(self.limit, stop), flat.shape[1], dtype=dtype, device=flat.device)
            if memory is not None:
                larger[:start] = memory[:start]
            memory = self.memory[side][key] = larger
        self.filled[side][key] = stop
        return operator.apply(flat, out=memory[start:stop])

    def rows(self, side: int, key: Key) -> Float[Tensor, "rows width"] | None:
        """Return the waiting rows of a tap and lane, or None."""
        filled = self.filled[side].get(key, 0)
        return self.memory[side][key][:filled] if filled else None

    def clear(self) -> None:
        """Forget the rows and keep the memory."""
        for filled in self.filled:
            filled.clear()
        self.pending = 0


def _text_tokens(layout: TokenLayout) -> int:
    assert layout.mask is not None
    return int(layout.mask.shape[1])


def _windowed_blocks(loaded: LoadedModel) -> dict[str, tuple[nn.Module, str]]:
    """Return path → (block, stack) for the modules inside blocks whose attention is cut into windows."""
    attributes = WINDOWED.get(getattr(loaded.config, "model_type", ""), None)
    if attributes is None:
        return {}
    blocks = {site.path: site.stack for site in loaded.sites if site.kind == "block"}
    inside = {}
    for path in dict(loaded.model.named_modules()):
        for block, stack in blocks.items():
            if path.startswith(f"{block}."):
                inside[path] = (loaded.model.get_submodule(block), stack)
    return inside
