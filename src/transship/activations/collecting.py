"""Moments of matched sites, streamed over any number of inputs in memory of fixed size."""

from collections.abc import Callable, Collection, Iterable, Sized
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from transship.activations.batches import Batches, run_shared, unit_size
from transship.activations.collected import CollectedMoments
from transship.activations.match import Matching, match_sites
from transship.activations.models import load_model
from transship.activations.plan import KINDS, SIDES, MomentKeeper, Plan
from transship.activations.record import Side
from transship.activations.state import SavedState, signature
from transship.activations.step import StepOptions
from transship.errors import DataError, OptionError
from transship.types import Align

# Tokens per input: with every token, Moments of two base-sized encoders cost more than their forward passes.
DEFAULT_TOKENS = 4


def collect(
    source: Any,
    target: Any,
    matching: Matching | None,
    inputs: Iterable[Any],
    *,
    align: Align = "auto",
    tokens_per_input: int | None = DEFAULT_TOKENS,
    seed: int = 0,
    skip_first: bool | None = None,
    parts: Collection[str] = ("ab",),
    sides: Collection[Side] = SIDES,
    kinds: Collection[str] = KINDS,
    blend: bool = True,
    widest: int | None = None,
    batch_size: int = 32,
    first_number: int = 0,
    max_rows: int | None = None,
    folder: str | Path | None = None,
    save_every: int = 64,
    progress: Callable[[int], None] | None = None,
) -> CollectedMoments:
    """Run two models over the same inputs and return the Moments of every matched site's input and output.

    Args:
        source: a LoadedModel, or what `load_model` takes.
        target: likewise.
        matching: the pairs of sites; None to match the two models here.
        inputs: raw inputs (texts, images, arrays), each model's own preprocessing makes its batches of them.
        align: how tokens correspond; see `tokens.align_tokens`.
        tokens_per_input: at most so many tokens of each input, drawn with `seed` and the input's number, the
            same for every site; None for all. Moments cost more than the forward passes when every token
            counts.
        seed: of the draw.
        skip_first: leave out first tokens, whose states are outliers in causal models; None for "if one is
            causal".
        parts: `ab` (the cross moment), `aa`, `bb`.
        sides: `input`, `output`.
        kinds: kinds of sites.
        blend: where a target block stands between two source blocks, mix their rows and keep one Moments
            (ab and sums equal the mixed ones exactly); otherwise keep both, and mix when they are read.
        widest: leave out spaces that are wider than this in both models; None for all.
        batch_size: inputs per forward pass.
        first_number: the number of the first input, when the inputs are a shard of more.
        max_rows: stop after the batch that reaches so many rows.
        folder: keep the state there, to go on after a kill; the same call continues it to the same result.
        save_every: batches between two saved states.
        progress: called with the number of inputs done.

    Processes of one launch share the batches and all return the Moments over all inputs; see `parallel`.

    Sites that share a tensor (q, k and v; a norm's output and what reads it) share its Moments. NaN and Inf
    are errors with the site's name. Memory does not depend on the number of inputs.
    """
    if tokens_per_input is not None and tokens_per_input < 1:
        raise OptionError(
            f"{tokens_per_input} tokens of an input are none",
            where="tokens_per_input",
            fix="give 1 or more, or None for all",
        )
    models = load_model(source), load_model(target)
    matching = match_sites(*models) if matching is None else matching
    first, stream = read_first(inputs)
    options = StepOptions(align=align, tokens_per_input=tokens_per_input, seed=seed, skip_first=skip_first)
    plan = Plan(*models, matching, options, first, sides=sides, kinds=kinds, blend=blend, widest=widest)
    kept = MomentKeeper(plan, _checked_parts(parts))
    about = {
        "source": models[0].name,
        "target": models[1].name,
        "parts": sorted(parts),
        "blend": blend,
        "batch_size": batch_size,
        "first_number": first_number,
        **asdict(options),
    }
    unit = unit_size(inputs, batch_size, tokens_per_input)
    state = None
    if folder is not None:
        unit = min(unit, save_every)
        # rows of a unit are multiplied together, so its size is part of what makes two runs the same
        weights = [signature(model.model) for model in models]
        saved = {**about, "weights": weights, "unit": unit, "names": sorted(kept.moments)}
        state = SavedState(Path(folder), kept, saved, save_every)
        state.resume()
    count = run_shared(
        Batches(stream, batch_size, models[1].length, first_number),
        lambda items: plan.stepper.step(items, kept.buffers),
        kept,
        unit=unit,
        state=state,
        full=None if max_rows is None else lambda: kept.rows >= max_rows,
        progress=progress,
    )
    return CollectedMoments(matching, kept.moments, plan.entries(kept), plan.skipped, count, about).check()


def read_first(inputs: Iterable[Any]) -> tuple[Any, Iterable[Any]]:
    """Return the first input and all of them; an error when there is none."""
    if hasattr(inputs, "__getitem__") and isinstance(inputs, Sized) and len(inputs):
        return inputs[0], inputs
    stream = iter(inputs)
    for first in stream:
        return first, chain([first], stream)
    raise DataError("there are no inputs", where="data", fix="give at least one input")


def _checked_parts(parts: Collection[str]) -> Collection[str]:
    unknown = sorted(set(parts) - {"aa", "bb", "ab"})
    if unknown:
        raise OptionError(f"there is no part '{unknown[0]}'", where="parts", fix="choose from ab, aa and bb")
    return parts
