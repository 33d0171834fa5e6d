"""What a user asks for, and the plan that is made of it: wrong input is refused here, by name."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from transship.activations import LoadedModel
from transship.activations.batches import longest
from transship.activations.plan import collecting_bytes, running_bytes
from transship.activations.readout import Readout
from transship.checkpoints.footprint import Footprint
from transship.errors import DataError, OptionError
from transship.numerics import MemoryBudget
from transship.verbs.transport.heads import require_carriable
from transship.verbs.transport.labelled import measure_rows
from transship.verbs.transport.models import (
    match_participants,
    open_participants,
    require_readable,
    source_update,
    with_head_place,
)
from transship.verbs.transport.pace import Pace
from transship.verbs.transport.plan import Plan, other_depth
from transship.verbs.transport.protocol import Needs, TransportMethod
from transship.verbs.transport.rows import as_dataset, draw, draw_kept, validation_labels
from transship.verbs.transport.settings import Opening, Settings
from transship.verbs.transport.teacher import read_tokens
from transship.verbs.transport.weights import kinship

# settings that the statistics depend on
_SHAPING = ("batches", "batch_size", "shots", "depth", "align", "seed", "tokens_per_input")
# inputs whose preprocessing tells one way of reading them from another
_SAMPLE = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """What a user asks for.

    Attributes:
        source: the base of the fine-tune.
        tuned: the fine-tune, or a LoRA adapter folder.
        target: the model that the fine-tune moves to.
        data: inputs of the task; labels, if any, only choose the strength.
        method: how to move it; None compares several (`--method auto`).
        settings: everything else.
        opening: how models are opened.
        keep: inputs of the target's own domain on which a carried head keeps its answers.
        test: labelled rows of the task to measure on.
        original: labelled rows of the target's own domain.
        warm_start: steps of fine-tuning that the untouched and the transported target are compared after.
        prepared: the folder where statistics are kept.
        memory: what the process may take.
    """

    source: Any
    tuned: Any
    target: Any
    data: Any
    method: TransportMethod | None = None
    settings: Settings = field(default_factory=Settings)
    opening: Opening = field(default_factory=Opening)
    keep: Any = None
    test: Any = None
    original: Any = None
    warm_start: int = 0
    prepared: str | Path | None = None
    memory: MemoryBudget = field(default_factory=MemoryBudget)


def make_plan(request: Request) -> Plan:
    """Open the models, check that they belong together, match their sites and draw the inputs.

    What could only fail after the long work is refused here.
    """
    settings, method = request.settings, request.method
    if request.memory.limit is not None:
        needed = _memory_bytes(request)
        request.memory.require(needed, "this transport", "pass a smaller --batch-size and more --batches")
    source, tuned, target = open_participants(
        request.source,
        request.tuned,
        request.target,
        request.opening,
        classes=settings.classes,
        templates=settings.phrases,
    )
    update, relative = source_update(source, tuned, target)
    matching = match_participants(source, target, settings.depth)
    draws = draw(
        request.data,
        batches=settings.batches,
        batch_size=settings.batch_size,
        shots=settings.shots,
        head_inputs=settings.head_inputs,
        seed=settings.seed,
    )
    reads_kinship = method is None or (method.needs.near_copies and other_depth(matching))
    plan = Plan(
        source=source,
        tuned=tuned,
        target=target,
        method=method,
        settings=settings,
        update=update,
        relative=relative,
        matching=matching,
        kinship=kinship(source.model, target.model) if reads_kinship else None,
        draws=draws,
    )
    return _complete(plan, request)


def _complete(plan: Plan, request: Request) -> Plan:
    """Return the plan with what is read of the user's other data, checked."""
    settings, draws, tuned = plan.settings, plan.draws, plan.tuned_readout
    _check(plan, request.keep)
    first = [draws.calibration[row] for row in range(min(_SAMPLE, len(draws.calibration)))]
    plan = dataclasses.replace(plan, target=with_head_place(plan.target, tuned, first))
    kept = measured_on = None
    if request.keep is not None:
        kept = draw_kept(request.keep, settings.head_inputs, settings.batch_size, settings.seed)
    test, original, warm_steps = request.test, request.original, request.warm_start
    if test is not None or original is not None or warm_steps:
        measured_on = measure_rows(
            draws, tuned, plan.target.model, test, original, kept=kept, warm_steps=warm_steps
        )
    asked = settings.validation and settings.strength == "auto"
    return dataclasses.replace(
        plan,
        labels=validation_labels(draws, tuned) if asked else None,
        kept=kept,
        measured_on=measured_on,
        folder=None if request.prepared is None else Path(request.prepared) / _key(plan)[:16],
        pace=Pace.of(tuned.loaded, plan.target.model, draws.calibration),
    )


def _check(plan: Plan, keep: Any) -> None:
    """Refuse before any work what could only fail after it."""
    needs = None if plan.method is None else plan.method.needs
    if plan.settings.budget is not None and plan.method is not None:
        raise OptionError(
            f"it is for comparing, and '{plan.method.name}' is compared with nothing",
            where="--budget",
            fix="leave it out, or choose --method auto",
        )
    if plan.settings.strength == "auto" and not plan.comparable:
        raise OptionError(
            "two vocabularies cannot be compared word by word, so no strength can be found by agreement",
            where=plan.target.name,
            fix="give --strength a number; 1 adds the moved update as it is",
        )
    if needs is not None and needs.head:
        require_carriable(plan.task)
    _require_inputs(plan)
    require_readable(plan.tuned_readout.loaded, plan.draws.calibration[0], plan.draws.name)
    if needs is not None and needs.same_shape:
        _require_shapes(plan, needs)
    if plan.task == "tokens":
        _require_token_states(plan)
    if keep is None:
        return
    if needs is not None and not needs.head and plan.settings.finish in ("auto", "none"):
        raise OptionError(
            "only a carried head keeps old answers",
            where="--keep",
            fix="add --method carry or --finish weights",
        )
    if not plan.own_head:
        raise OptionError(
            "the target has no head with the same outputs to keep", where="--keep", fix="leave --keep out"
        )
    kept = as_dataset(keep)
    require_readable(plan.target.model, kept.inputs[0], kept.name)


def _require_inputs(plan: Plan) -> None:
    """Refuse so few inputs that nothing can be told apart or fitted on them."""
    method, ranked = plan.method, plan.task in ("values", "features")
    inputs, least = len(plan.draws.calibration), 3 if ranked else 2
    if method is None and ranked:  # methods are told apart by ranks too
        inputs = min(inputs, len(plan.draws.held_out))
    chosen = method is None or method.needs.head or plan.settings.strength == "auto"
    if chosen and plan.comparable and inputs < least:
        raise DataError(
            f"{inputs} {'input is' if inputs == 1 else 'inputs are'} too few to choose or to fit anything on",
            where=plan.draws.name,
            fix="give more rows, or both --method theseus and --strength a number",
        )


def _require_shapes(plan: Plan, needs: Needs) -> None:
    """Refuse a method that moves between equal shapes only where no linear map has its partner's shape."""
    maps = [
        pair
        for pair in plan.changed_pairs(needs).pairs
        if pair.target.kind == "linear" and pair.target.role != "head"
    ]
    shapes = [
        {(site.out_width, site.in_width) for site in (pair.target, *(site for site, _ in pair.sources))}
        for pair in maps
    ]
    body = None if plan.method is None else plan.method.body_method
    if body is not None and shapes and all(len(both) > 1 for both in shapes):
        there, here = maps[0].source, maps[0].target
        raise OptionError(
            f"'{body.name}' moves between equal shapes only, and {here.name} is "
            f"{here.out_width} × {here.in_width} here and {there.out_width} × {there.in_width} in the source",
            where=plan.target.name,
            fix="choose theseus, which moves between any widths",
        )


def _require_token_states(plan: Plan) -> None:
    """Refuse a model that must be read token by token and cannot: one input tells."""
    needs = None if plan.method is None else plan.method.needs
    asks_loss = needs is None or needs.gradients or needs.descent
    fitted = asks_loss or plan.settings.strength == "auto" or (needs is not None and needs.head)
    models = [plan.target] if fitted else []
    if needs is not None and needs.gradients:  # `auto` goes on without
        models.append(plan.source)
    with torch.no_grad():
        for model in models:
            read_tokens(Readout(model.model), model.model.preprocess([plan.draws.calibration[0]]))


def _memory_bytes(request: Request) -> int:
    """Return what SOURCE, TUNED and TARGET take at most beside the interpreter; nothing of them is loaded.

    The models; what is moved, once as it is made and once on the target to be judged; Moments and the rows
    that wait for them; one batch.
    """
    opening, inputs = request.opening, list(as_dataset(request.data).inputs)
    allowed = {"trust_remote_code": opening.trust_remote_code, "allow_pickle": opening.allow_pickle}
    models = request.source, request.tuned, request.target
    source, tuned, target = (Footprint.of(model, dtype=opening.dtype, **allowed) for model in models)
    tokens = [longest(model, inputs) for model in (request.source, request.target)]
    most = max(tokens, key=lambda count: count or 0)
    weights = source.weights + tuned.weights + 3 * target.weights
    return (
        weights
        + collecting_bytes(source, target)
        + running_bytes(source, target, request.settings.batch_size, most)
    )


def _key(plan: Plan) -> str:
    """Return a hash of all that the statistics depend on."""
    settings, models = plan.settings, (plan.source, plan.tuned, plan.target)
    parts = [
        *(model.fingerprint() for model in models),
        plan.draws.fingerprint,
        *(getattr(settings, name) for name in _SHAPING),
        *((settings.classes, settings.phrases) if settings.classes else ()),
        next(plan.target.model.model.parameters()).dtype,
        *(_as_read(model.loaded, plan.draws.calibration) for model in models if model.loaded is not None),
    ]
    return hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).hexdigest()


def _as_read(model: LoadedModel, inputs: Sequence[Any]) -> str:
    """Return a hash of what a model's preprocessing, its tokenizer too, makes of the first inputs.

    A function has no reliable hash of its own; what it yields has.
    """
    rows = [inputs[row] for row in range(min(_SAMPLE, len(inputs)))]
    digest = hashlib.sha256(f"{model.max_length}".encode())
    for name, value in sorted(model.preprocess(rows).inputs.items()):
        if isinstance(value, torch.Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(raw.numpy().tobytes())
        else:
            digest.update(f"{name} {value!r}".encode())
    return digest.hexdigest()
