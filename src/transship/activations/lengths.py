"""How long texts are for a model, before it is loaded."""

from collections.abc import Sequence
from typing import Any

from transship.activations.loading import quiet

# texts that are tried: characters say roughly which ones have the most tokens
TRIED = 32


def longest(folder: str, inputs: Sequence[Any]) -> int | None:
    """Return the tokens of the longest text (or pair) for the model in a folder; None for other inputs."""
    import transformers

    if not len(inputs) or not isinstance(inputs[0], str | tuple):
        return None
    texts = [one if isinstance(one, str) else " ".join(map(str, one)) for one in inputs]
    try:
        with quiet():
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError):
        return None
    tried = sorted(texts, key=len)[-TRIED:]
    return max(len(ids) for ids in tokenizer(tried)["input_ids"]) + 2
