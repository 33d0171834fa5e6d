"""What a transport will do, said before the long work."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from transship.activations.footprint import running_bytes
from transship.activations.lengths import longest
from transship.activations.plan import BUFFER_BYTES
from transship.checkpoints.footprint import Footprint
from transship.numerics import format_bytes
from transship.verbs.transport.participants import Opening
from transship.verbs.transport.prepare import changed_pairs
from transship.verbs.transport.protocol import TransportMethod

if TYPE_CHECKING:
    from transship.verbs.transport.work import Work


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
        f"inputs     {len(draws.calibration)} of {draws.name} for the maps"
        + ("" if draws.validation is None else f", {len(draws.validation)} labelled ones for the strength"),
        f"memory     about {format_bytes(_moments_bytes(work))} of Moments",
        f"method     {method if isinstance(method, str) else method.name}, strength {settings.strength}"
        + (f", {settings.path_steps} path steps" if settings.path_steps > 1 else ""),
    ]
    lines += [f"no partner {count} sites: {reason}" for reason, count in missing.most_common(5)]
    return lines


def target_bytes(work: "Work") -> int:
    """Return about how much the result takes on disk."""
    checkpoint = work.target.checkpoint
    if work.update.adapter:
        return 0
    return checkpoint.nbytes if checkpoint is not None else 0


def weights_bytes(models: Sequence[str], opening: Opening) -> int:
    """Return the bytes of the models' weights as they run, from their headers."""
    allowed = {"trust_remote_code": opening.trust_remote_code, "allow_pickle": opening.allow_pickle}
    return sum(Footprint.of(model, dtype=opening.dtype, **allowed).weights for model in models)


def memory_bytes(work: "Work") -> int:
    """Return what the work takes at most beside the interpreter; nothing of it is done yet.

    The models; what is moved, once as it is made and once on the target to be judged; Moments of both sides
    and of their products, with the factors that a map keeps of them; rows that wait; one batch.
    """
    sizes = [
        Footprint.of(one.checkpoint) if one.checkpoint is not None else None
        for one in (work.source, work.tuned, work.target)
    ]
    source, tuned, target = sizes
    if source is None or tuned is None or target is None:
        return 0  # modules in memory: theirs is the caller's memory
    inputs = list(work.draws.calibration)
    folder = None if work.target.checkpoint is None else work.target.checkpoint.folder
    tokens = None if folder is None else longest(str(folder), inputs)
    batch = running_bytes(source, target, work.settings.batch_size, tokens)
    models = source.weights + tuned.weights + 3 * target.weights
    return models + 4 * _moments_bytes(work) + BUFFER_BYTES + batch


def _moments_bytes(work: "Work") -> int:
    total = 0
    for pair in changed_pairs(work.matching, work.update).pairs:
        if pair.target.kind == "linear":
            for site, _ in pair.sources:
                total += 8 * (site.in_width * pair.target.in_width + site.out_width * pair.target.out_width)
    return total
