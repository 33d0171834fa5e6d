"""What comparing and collecting take in memory beside the models, from above, before anything is loaded."""

from transship.activations.compare import WIDEST
from transship.activations.plan import BUFFER_BYTES, MOST_BUFFERED_ROWS
from transship.checkpoints.footprint import Footprint

# spaces that a block's sites share between them: what enters attention, leaves it, enters and leaves the MLP,
# the residual stream, and the inside of the MLP
_NARROW, _INNER = 7, 2


def comparing_bytes(source: Footprint, target: Footprint, batch: int, tokens: int | None) -> int:
    """Return what `compare` takes: both models, one batch, waiting rows, and Moments of every space."""
    collected = collecting_bytes(source, target, widest=WIDEST)
    return source.weights + target.weights + collected + running_bytes(source, target, batch, tokens)


def collecting_bytes(source: Footprint, target: Footprint, *, widest: int | None = None) -> int:
    """Return what Moments of every matched space take, with Grams of both sides, and the rows that wait."""
    moments = rows = 0
    for width_a, width_b, count in (
        (source.hidden, target.hidden, _NARROW),
        (source.inner, target.inner, _INNER),
    ):
        if widest is None or max(width_a, width_b) <= widest:
            spaces = count * target.layers
            # a target block that stands between two source blocks has Moments with both
            moments += 8 * spaces * (2 * width_a * width_b + width_a**2 + width_b**2)
            rows += 4 * spaces * (2 * width_a + width_b)
    return moments + min(BUFFER_BYTES, MOST_BUFFERED_ROWS * rows)


def running_bytes(source: Footprint, target: Footprint, batch: int, tokens: int | None) -> int:
    """Return what one batch takes in two models that run one after the other."""
    return max(source.forward(batch, tokens), target.forward(batch, tokens))
