"""The statistics that a method reads: from which pairs, with which of its options, kept under which name."""

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from transship.activations import LoadedModel
from transship.verbs.transport.methods.carry import Carry
from transship.verbs.transport.methods.gradfix import Gradfix
from transship.verbs.transport.methods.transfusion import Transfusion
from transship.verbs.transport.moved import Prepared
from transship.verbs.transport.prepare import Calibration, changed_pairs, prepare
from transship.verbs.transport.protocol import TransportMethod

if TYPE_CHECKING:
    from transship.verbs.transport.work import Work

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
