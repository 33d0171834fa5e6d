"""The costly statistics of a pair of models: saved, resumable, and shared by every method and strength."""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from transship.activations import LoadedModel, Matching, SitePair
from transship.activations.batches import Batches, run_shared
from transship.activations.collected import CollectedMoments
from transship.activations.collecting import collect
from transship.activations.heads import carried_over
from transship.activations.loading import values_of
from transship.activations.readout import Readout, Task
from transship.activations.state import SavedState
from transship.activations.step import StepOptions
from transship.activations.tokens import Align
from transship.geometry import LinearMap, Moments
from transship.geometry.moments import Part
from transship.numerics import chunks
from transship.progress import Progress
from transship.verbs.transport.gradients import (
    GradientStep,
    Loss,
    language_loss,
    prediction_loss,
    weight_descent,
)
from transship.verbs.transport.methods.carry import Carry
from transship.verbs.transport.methods.gradfix import Gradfix
from transship.verbs.transport.methods.transfusion import Transfusion
from transship.verbs.transport.moved import Prepared
from transship.verbs.transport.permutations import attention_heads, match_units
from transship.verbs.transport.protocol import Requirements, TransportMethod
from transship.verbs.transport.token_judge import TokenTeacher, fit_token_head, token_loss
from transship.verbs.transport.weights import SourceUpdate

if TYPE_CHECKING:
    from transship.verbs.transport.work import Work


# Rows per site: enough for the widest map to be determined several times over, fewer than all tokens of many
# inputs.
ROWS_PER_WIDTH = 4
LEAST_TOKENS = 8


@dataclass(frozen=True)
class Calibration:
    """The inputs that maps are fitted on, and how they are read.

    Attributes:
        inputs: raw, unlabelled.
        batch_size: inputs per forward pass.
        align: how tokens correspond.
        tokens_per_input: at most so many tokens per input; None chooses by the widths, 0 takes all.
        seed: of the draw of tokens.
        folder: where the state is kept, to go on after a kill.
    """

    inputs: Sequence[Any]
    batch_size: int = 32
    align: Align = "auto"
    tokens_per_input: int | None = None
    seed: int = 0
    folder: Path | None = None

    def tokens(self, matching: Matching) -> int | None:
        """Return the cap on tokens per input, None for all."""
        if self.tokens_per_input == 0:
            return None
        if self.tokens_per_input is not None:
            return self.tokens_per_input
        widths = [
            max(pair.target.in_width, pair.target.out_width, pair.source.in_width, pair.source.out_width)
            for pair in matching.pairs
            if pair.target.kind == "linear" and pair.target.role != "head"
        ]
        return max(LEAST_TOKENS, math.ceil(ROWS_PER_WIDTH * max(widths, default=1) / len(self.inputs)))

    @property
    def save_every(self) -> int:
        """Batches between two saved states."""
        return max(1, len(self.inputs) // self.batch_size // 4)

    def batches(self, length: Callable[[Any], int]) -> Batches:
        """Return numbered batches of similar length."""
        return Batches(self.inputs, self.batch_size, length)


@dataclass(frozen=True, eq=False)
class Teacher:
    """What the fine-tuned source says about the calibration inputs.

    Attributes:
        task: what its outputs are.
        outputs: [inputs, outputs]; its features where it has no head. None for tasks per token.
        tokens: what it says about every token, for labels per token.
    """

    task: Task
    outputs: Tensor | None
    tokens: TokenTeacher | None = None


def changed_pairs(matching: Matching, update: SourceUpdate) -> Matching:
    """Return the pairs whose source changed, and the blocks that embeddings need: the others cost nothing."""
    changed = set(update.changed({name for pair in matching.pairs for name in _names(pair)}))
    tables = any(
        pair.target.kind in ("embedding", "conv", "parameter") and set(_names(pair)) & changed
        for pair in matching.pairs
    )
    queries = {
        (pair.target.stack, pair.target.block)
        for pair in matching.pairs
        if pair.target.role == "embedding.relative" and set(_names(pair)) & changed
    }

    def wanted(pair: SitePair) -> bool:
        site = pair.target
        if site.kind == "block":
            return tables and site.block == 0
        relative = site.role == "attention.query" and (site.stack, site.block) in queries
        return relative or bool(set(_names(pair)) & changed)

    return Matching(
        tuple(pair for pair in matching.pairs if wanted(pair)), matching.unmatched, matching.depths
    )


def prepare(
    source: LoadedModel,
    target: LoadedModel,
    matching: Matching,
    calibration: Calibration,
    requirements: Requirements,
    *,
    teacher: Teacher | None = None,
    vote: str = "mean",
    rebasin: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """Collect what `requirements` name, over the calibration inputs."""
    collected = None
    total = len(calibration.inputs)

    def report(what: str) -> Callable[[int], None] | None:
        return None if progress is None else lambda done: progress(what, done, total)

    if requirements.parts:
        collected = _activations(
            source, target, matching, calibration, requirements.parts, report("activations")
        )
    gradients: dict[tuple[str, str], Moments] = {}
    descent: dict[str, Tensor] = {}
    if requirements.gradients and teacher is not None:
        gradients = _gradients(source, target, matching, calibration, teacher, report("gradients"))
    if requirements.descent and teacher is not None:
        loss = _loss(Readout(target), calibration, teacher)
        descent = weight_descent(target, calibration.batches(target.length), loss, vote=vote)
    orders = None
    if requirements.permutations:
        tensors = [{name: one.cpu() for name, one in values_of(model.model)} for model in (source, target)]
        orders = match_units(
            [pair.target for pair in matching.pairs if len(pair.sources) == 1],
            lambda name: tensors[0][_source_name(matching, name)],
            lambda name: tensors[1][name],
            heads=partial(attention_heads, target),
            seed=calibration.seed,
            **(rebasin or {}),
        )
    return Prepared(matching, collected, gradients, descent, orders)


def _activations(
    source: LoadedModel,
    target: LoadedModel,
    matching: Matching,
    calibration: Calibration,
    parts: tuple[Part, ...],
    report: Callable[[int], None] | None,
) -> CollectedMoments:
    """Collect the activation Moments; each neighbour's apart where a target block stands between two."""
    folder = None
    if calibration.folder is not None:
        folder = calibration.folder / f"moments-{'-'.join(parts)}"
    return collect(
        source,
        target,
        matching,
        calibration.inputs,
        align=calibration.align,
        tokens_per_input=calibration.tokens(matching),
        seed=calibration.seed,
        parts=parts,
        kinds=("linear", "norm", "scale", "block"),
        blend=False,
        batch_size=calibration.batch_size,
        folder=folder,
        save_every=calibration.save_every,
        progress=report,
    )


def fit_features_head(
    readout: Readout, calibration: Calibration, outputs: Tensor, penalty: float | None = None
) -> LinearMap:
    """Return the ridge head from a model's features onto `outputs` by input number: closed form, no
    labels.
    """
    batches = readout.batches(calibration.inputs, calibration.batch_size)
    rows = ((reading.features, outputs[numbers]) for numbers, reading in batches)
    return carried_over(rows, f"{readout.loaded.name} features", penalty)


def _gradients(
    source: LoadedModel,
    target: LoadedModel,
    matching: Matching,
    calibration: Calibration,
    teacher: Teacher,
    report: Callable[[int], None] | None,
) -> dict[tuple[str, str], Moments]:
    options = StepOptions(align=calibration.align, seed=calibration.seed)
    linear = [pair for pair in matching.pairs if pair.target.kind in ("linear", "norm", "scale")]
    step = GradientStep(source, target, linear, options, calibration.inputs[0])
    state = None
    if calibration.folder is not None:
        # the folder's name tells models, inputs and options apart
        about = {"of": "gradients", "pairs": sorted("\t".join(key) for key in step.lanes)}
        state = SavedState(calibration.folder / "gradients", step, about, calibration.save_every)
        state.resume()
    batches = calibration.batches(target.length)
    if state is None or len(state.covered) < len(batches):  # or nothing is left to run
        step.losses = tuple(_loss(Readout(one), calibration, teacher) for one in (source, target))
    run_shared(batches, step.step, step, state=state, progress=report)
    return {(name.split("\t")[0], name.split("\t")[1]): one for name, one in step.moments.items()}


def _loss(readout: Readout, calibration: Calibration, teacher: Teacher) -> Loss:
    """Return the loss of one base model against the teacher, through a ridge head where it has none of its
    own.
    """
    if teacher.task == "language":
        return language_loss(readout.loaded)
    if teacher.tokens is not None:
        return _token_loss(readout, calibration, teacher.tokens)
    assert teacher.outputs is not None
    outputs = teacher.outputs
    own = readout.task == teacher.task and readout.width == outputs.shape[1]
    head = None if own else fit_features_head(readout, calibration, teacher.outputs)
    return prediction_loss(readout, outputs, teacher.task, head)


def _token_loss(readout: Readout, calibration: Calibration, teacher: TokenTeacher) -> Loss:
    if readout.task == "tokens" and readout.width == teacher.outputs[0].shape[1]:
        return token_loss(readout, teacher, None)
    batches = [
        list(range(part.start, part.stop)) for part in chunks(len(teacher.inputs), calibration.batch_size)
    ]
    return token_loss(readout, teacher, fit_token_head(readout, teacher, batches))


def _names(pair: SitePair) -> list[str]:
    return [name for site, _ in pair.sources for name in (site.weight, site.bias) if name is not None]


def _source_name(matching: Matching, name: str) -> str:
    """Return the source's parameter that stands for a target's."""
    for pair in matching.pairs:
        if pair.target.weight == name and pair.source.weight is not None:
            return pair.source.weight
        if pair.target.bias == name and pair.source.bias is not None:
            return pair.source.bias
    return name


# settings that the statistics depend on
_SHAPING = ("batches", "batch_size", "shots", "depth", "align", "seed", "tokens_per_input")
# inputs whose preprocessing tells one way of reading them from another
_SAMPLE = 4


def body_of(method: TransportMethod) -> TransportMethod:
    """Return the method that moves the weights; `carry` alone has another than itself."""
    if isinstance(method, Carry) and method.body != "none":
        inner: TransportMethod = method.inner()
        return inner
    return method


def own_options(method: TransportMethod) -> dict[str, Any]:
    """Return the method's own fields that shape its statistics, as `prepare` takes them."""
    vote = method.vote if isinstance(method, Gradfix) else "mean"
    rebasin = None
    if isinstance(method, Transfusion):
        rebasin = {"residual": method.residual, "sweeps": method.sweeps}
    return {"vote": vote, "rebasin": rebasin}


def collect_for(work: "Work", method: TransportMethod, calibration: Calibration) -> Prepared:
    """Collect what a method reads, where both models stand now."""
    needs, found = method.requirements, work.matching_of(method)
    return prepare(
        work.source.model,
        work.target.model,
        found if needs.permutations else changed_pairs(found, work.update),
        calibration,
        needs,
        teacher=work.teacher if needs.gradients or needs.descent else None,
        progress=work.progress,
        **own_options(method),
    )


def key_of(work: "Work") -> str:
    """Return a hash of all that the statistics depend on."""
    settings = work.settings
    models = [one.loaded for one in (work.source, work.tuned, work.target) if one.loaded is not None]
    parts = [
        work.source.fingerprint(),
        work.tuned.fingerprint(),
        work.target.fingerprint(),
        work.draws.fingerprint,
        *(getattr(settings, name) for name in _SHAPING),
        *((settings.classes, settings.templates) if settings.classes else ()),
        next(work.target.model.model.parameters()).dtype,
        *(_as_read(model, work.draws.calibration) for model in models),
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
