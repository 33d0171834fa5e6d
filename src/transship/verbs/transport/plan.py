"""What a transport will do, said before the long work."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transship.activations.footprint import collecting_bytes, running_bytes
from transship.activations.lengths import longest
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
