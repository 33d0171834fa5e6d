"""What letting a model join takes in memory, from above, before it is read."""

from typing import Any

from transship.activations.batches import longest
from transship.checkpoints.footprint import Footprint
from transship.verbs.merge.fusion.engine import Fusion


def adding_bytes(fusion: Fusion, tuned: str, data: Any) -> int:
    """Return the bytes that `add` takes beside the interpreter.

    The base, the arriving model, their difference and the merged weights; the state before and after; what
    the method says that it holds; one batch, through all blocks for methods and heads that follow gradients.
    """
    sizes = {name: tensor.shape for name, tensor in fusion.origin.weights.items()}
    weights = 4 * sum(shape.numel() for shape in sizes.values())
    state = sum(
        tensor.numel() * tensor.element_size() for group in fusion.state.values() for tensor in group.values()
    )
    model = Footprint.of(tuned)
    inputs = [] if data is None else list(data.inputs)
    tokens = longest(tuned, inputs) if inputs else 1
    batch = model.layers * model.forward(fusion.choices.fitting.batch_size, tokens)
    return 4 * weights + model.weights + 2 * max(state, weights) + fusion.method.memory(sizes) + batch
