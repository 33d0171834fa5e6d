"""What a transport will do, said before the long work."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from transship.activations.batches import longest
from transship.activations.plan import collecting_bytes, running_bytes
from transship.activations.readout import Readout
from transship.checkpoints.footprint import Footprint
from transship.errors import DataError, OptionError
from transship.numerics import format_bytes
from transship.verbs.transport.calibrate import as_dataset
from transship.verbs.transport.heads import require_carriable
from transship.verbs.transport.methods.carry import Carry
from transship.verbs.transport.models import Opening, require_readable
from transship.verbs.transport.prepare import body_of, changed_pairs
from transship.verbs.transport.protocol import SidedMethod, TransportMethod
from transship.verbs.transport.token_judge import read_tokens

if TYPE_CHECKING:
    from transship.verbs.transport.work import Work


def check_request(work: "Work", method: "str | TransportMethod", keep: Any) -> None:
    """Refuse before any work what could only fail after it."""
    if work.settings.strength == "auto" and not comparable(work):
        raise OptionError(
            "two vocabularies cannot be compared word by word, so no strength can be found by agreement",
            where=work.target.name,
            fix="give --strength a number; 1 adds the moved update as it is",
        )
    if isinstance(method, Carry):
        require_carriable(work.task)
    _require_inputs(work, method)
    require_readable(work.said.loaded, work.draws.calibration[0], work.draws.name)
    if not isinstance(method, str):
        _require_shapes(work, method)
    if work.task == "tokens":
        _require_token_states(work, method)
    if keep is None:
        return
    if method != "auto" and not isinstance(method, Carry):
        raise OptionError("only a carried head keeps old answers", where="--keep", fix="add --method carry")
    if not work.own_head():
        raise OptionError(
            "the target has no head with the same outputs to keep", where="--keep", fix="leave --keep out"
        )
    kept = as_dataset(keep)
    require_readable(work.target.model, kept.inputs[0], kept.name)


def _require_inputs(work: "Work", method: "str | TransportMethod") -> None:
    """Refuse so few inputs that nothing can be told apart or fitted on them."""
    ranked = work.task in ("values", "features")
    inputs, least = len(work.draws.calibration), 3 if ranked else 2
    if isinstance(method, str) and ranked:  # methods are told apart by ranks too
        inputs = min(inputs, len(work.draws.held_out))
    chosen = isinstance(method, str | Carry) or work.settings.strength == "auto"
    if chosen and comparable(work) and inputs < least:
        raise DataError(
            f"{inputs} {'input is' if inputs == 1 else 'inputs are'} too few to choose or to fit anything on",
            where=work.draws.name,
            fix="give more rows, or both --method theseus and --strength a number",
        )


def _require_shapes(work: "Work", method: TransportMethod) -> None:
    """Refuse a method that moves between equal shapes only where no linear map has its partner's shape."""
    if not method.requirements.same_shape:
        return
    wanted = changed_pairs(work.matching_of(body_of(method)), work.update).pairs
    maps = [pair for pair in wanted if pair.target.kind == "linear" and pair.target.role != "head"]
    shapes = [
        {(site.out_width, site.in_width) for site in (pair.target, *(one for one, _ in pair.sources))}
        for pair in maps
    ]
    if shapes and all(len(one) > 1 for one in shapes):
        there, here = maps[0].source, maps[0].target
        raise OptionError(
            f"'{body_of(method).name}' moves between equal shapes only, and {here.name} is "
            f"{here.out_width} × {here.in_width} here and {there.out_width} × {there.in_width} in the source",
            where=work.target.name,
            fix="choose theseus, which moves between any widths",
        )


def _require_token_states(work: "Work", method: "str | TransportMethod") -> None:
    """Refuse a model that must be read token by token and cannot: one input tells."""
    needs = None if isinstance(method, str) else method.requirements
    taught = needs is None or needs.gradients or needs.descent
    fitted = taught or work.settings.strength == "auto" or isinstance(method, Carry)
    read = [work.target] if fitted else []
    if needs is not None and needs.gradients:  # `auto` goes on without
        read.append(work.source)
    with torch.no_grad():
        for one in read:
            read_tokens(Readout(one.model), one.model.preprocess([work.draws.calibration[0]]))


def comparable(work: "Work") -> bool:
    """Return whether the target's answers can be held against the fine-tuned source's without labels: a
    vocabulary is compared with itself only.
    """
    if work.task != "language":
        return True
    words: list[dict[str, int]] = [
        getattr(one.model.tokenizer, "get_vocab", dict)() for one in (work.source, work.target)
    ]
    return work.own_head() and words[0] == words[1]


def plan_lines(work: "Work", method: "str | TransportMethod") -> list[str]:
    """Return the plan in a few lines."""
    settings, draws = work.settings, work.draws
    wanted = changed_pairs(work.matching, work.update)
    maps = [pair for pair in wanted.pairs if pair.target.kind == "linear"]
    missing = Counter(one.reason for one in work.matching.unmatched if one.side == "source")
    lines = [
        f"update     {work.tuned.name} differs from {work.source.name} by {100 * work.relative:.2f} %"
        + (", as an adapter" if work.update.adapter else ""),
        f"target     {work.target.name}: {len(maps)} linear maps with partners"
        + "".join(
            f"; {stack or 'blocks'}: {there} blocks to {here}"
            for stack, (there, here) in work.matching.depths.items()
            if there or here
        ),
        f"inputs     {len(draws.calibration)} of {draws.name} for the maps" + _strength_by(work),
        f"memory     about {format_bytes(_moments_bytes(work))} of Moments",
        f"method     {method if isinstance(method, str) else method.name}, strength {settings.strength}"
        + (f", {settings.path_steps} path steps" if settings.path_steps > 1 else ""),
    ]
    lines += [
        f"no partner {count} {'site' if count == 1 else 'sites'}: {reason}"
        for reason, count in missing.most_common(5)
    ]
    return lines


def _strength_by(work: "Work") -> str:
    """Say which inputs choose the strength, where one is to be found."""
    labels = work.labels()
    if isinstance(labels, str):
        return f"; its labels choose nothing: {labels}"
    return "" if labels is None else f", {len(labels)} labelled ones for the strength"


def target_bytes(work: "Work", method: "str | TransportMethod") -> int:
    """Return about how much the result takes on disk at most.

    An adapter stays one, and small, unless it gets a head, is moved in parts or by a method without maps;
    `auto` may carry a head.
    """
    checkpoint = work.target.checkpoint
    if isinstance(method, str):
        small = work.task in ("features", "language")
    else:
        small = isinstance(method, SidedMethod)
    if checkpoint is None or (work.update.adapter and small and work.settings.path_steps == 1):
        return 0
    return checkpoint.nbytes


def memory_bytes(models: Sequence[str], opening: Opening, batch: int, inputs: Sequence[Any]) -> int:
    """Return what SOURCE, TUNED and TARGET take at most beside the interpreter; nothing of them is loaded.

    The models; what is moved, once as it is made and once on the target to be judged; Moments and the rows
    that wait for them; one batch.
    """
    allowed = {"trust_remote_code": opening.trust_remote_code, "allow_pickle": opening.allow_pickle}
    source, tuned, target = (Footprint.of(one, dtype=opening.dtype, **allowed) for one in models)
    tokens = [longest(models[place], inputs) for place in (0, 2)]
    running = running_bytes(source, target, batch, max(tokens, key=lambda count: count or 0))
    weights = source.weights + tuned.weights + 3 * target.weights
    return weights + collecting_bytes(source, target) + running


def _moments_bytes(work: "Work") -> int:
    total = 0
    for pair in changed_pairs(work.matching, work.update).pairs:
        if pair.target.kind == "linear":
            for site, _ in pair.sources:
                total += 8 * (site.in_width * pair.target.in_width + site.out_width * pair.target.out_width)
    return total
