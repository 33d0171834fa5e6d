"""What a model says about an input: the features that its head reads, and the head's outputs.

A headed model's features are what enters its last Linear; a bare encoder's are its pooled token states.
Outputs per input make the task `classes` or `values`, outputs per token `tokens` or `language`; a bare
model has `features` only.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from transship import parallel
from transship.activations.batches import WINDOW
from transship.activations.layout import TokenLayout
from transship.activations.models import Batch, LoadedModel, load_model
from transship.activations.sentences import POOLINGS, Pooling, sentence_encoder_settings, sentence_layers
from transship.activations.sites import Site, Tap, watching
from transship.errors import DataError, OptionError
from transship.numerics import chunks
from transship.outside import read_json

Task = Literal["classes", "values", "tokens", "language", "features"]
_LANGUAGE = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForMaskedLM")


@dataclass(frozen=True, eq=False)
class Reading:
    """One batch as a model reads it.

    Attributes:
        features: [inputs, width], or [inputs · tokens, width] for tasks per token.
        outputs: the head's, rows as above; None for a bare model.
        tokens: tokens per input; 0 where rows are inputs.
    """

    features: Float[Tensor, "rows width"]
    outputs: Float[Tensor, "rows classes"] | None
    tokens: int = 0


class Readout:
    """Reads features and outputs of one model; differentiable where gradients are enabled."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded

    @cached_property
    def head(self) -> Site | None:
        """The Linear that makes the outputs, or None for a bare model."""
        heads = [site for site in self.loaded.sites if site.role == "head" and site.kind == "linear"]
        return heads[-1] if heads else None

    @property
    def task(self) -> Task:
        """What the outputs are; a blank head has none."""
        return "features" if self.loaded.blank else self.answers

    @cached_property
    def answers(self) -> Task:
        """What the outputs of its class are, blank or not."""
        if self.head is None:
            return "features"
        config = self.loaded.config
        name = type(self.loaded.model).__name__
        if name.endswith(_LANGUAGE):
            return "language"
        if "TokenClassification" in name or "QuestionAnswering" in name:
            return "tokens"
        regression = getattr(config, "problem_type", None) == "regression"
        return "values" if regression or self.head.out_width == 1 else "classes"

    @property
    def width(self) -> int:
        """The number of outputs; 0 for a bare model."""
        return 0 if self.head is None or self.loaded.blank else self.head.out_width

    @cached_property
    def label_names(self) -> tuple[str, ...]:
        """The classes' names, where the config says them."""
        names = getattr(self.loaded.config, "id2label", None) or {}
        return (
            tuple(str(names[key]) for key in sorted(names, key=int))
            if self.task in ("classes", "tokens")
            else ()
        )

    def shares_outputs(self, other: "Readout") -> bool:
        """Return whether both heads speak of the same classes or values, in the same order."""
        if self.task != other.task or self.width != other.width or self.head is None:
            return False
        names = self.label_names, other.label_names
        return not all(names) or names[0] == names[1]

    def __call__(self, batch: Batch) -> Reading:
        caught: list[Tensor] = []
        taps = [] if self.head is None else [Tap(self.head.path, "input")]
        with watching(self.loaded.model, taps, lambda tap, tensor: caught.append(tensor)):
            answer = self.loaded.run(batch)
        if self.head is None:
            return Reading(self._pooled(answer, batch), None)
        outputs = (
            answer if isinstance(answer, Tensor) else answer["logits"] if "logits" in answer else answer[0]
        )
        features, blank = caught[-1], self.loaded.blank
        if self.answers in ("tokens", "language"):
            length = outputs.shape[1]
            return Reading(features.flatten(0, 1), None if blank else outputs.flatten(0, 1), length)
        if features.dim() == 3:  # the head ran on every token, and one of them was taken
            features = _last(features, batch)
        return Reading(features, None if blank else outputs.reshape(batch.size, -1))

    def batches(self, inputs: Sequence[Any], size: int) -> Iterator[tuple[slice, Reading]]:
        """Yield the readings of this process's batches of `inputs` in order, without gradients."""
        with torch.no_grad():
            for number, part in enumerate(chunks(len(inputs), size)):
                if not parallel.mine(number):
                    continue
                chosen = [inputs[row] for row in range(part.start, part.stop)]
                yield part, self(self.loaded.preprocess(chosen))

    def all(self, inputs: Sequence[Any], size: int = 64) -> Reading:
        """Return the readings of all inputs, in their order; for tasks whose rows are inputs.

        Texts run beside texts of their length, so that little padding is computed. Processes share the
        batches.
        """
        if self.answers in ("tokens", "language"):
            raise DataError(
                "its outputs are per token, and cannot be listed per input",
                where=self.loaded.name,
                fix="give a strength as a number",
            )
        order = list(range(len(inputs)))
        if self.loaded.tokenizer is not None:
            order.sort(key=lambda row: -self.loaded.length(inputs[row]))
        features, outputs = [], []
        for part, reading in self.batches(_Reordered(inputs, order), size):
            features.append((order[part], reading.features))
            if reading.outputs is not None:
                outputs.append((order[part], reading.outputs))
        return Reading(
            parallel.rows_of_all(len(order), features),
            None if self.width == 0 else parallel.rows_of_all(len(order), outputs),
        )

    @cached_property
    def pooling(self) -> str:
        """How a bare model's token states become one row: `cls`, `mean` or `last`, as its own files say."""
        folder = self.loaded.folder
        file = folder / "1_Pooling" / "config.json" if folder is not None else None
        if file is not None and file.is_file():
            settings = read_json(file)
            for key, name in (("pooling_mode_cls_token", "cls"), ("pooling_mode_lasttoken", "last")):
                if settings.get(key):
                    return name
            return "mean"
        if self.loaded.causal:
            return "last"
        return "mean" if self.loaded.tokenizer is not None else "cls"

    def _pooled(self, made: Any, batch: Batch) -> Tensor:
        if isinstance(made, Tensor):
            states = made
        else:
            states = next(
                (
                    made[name]
                    for name in ("image_embeds", "last_hidden_state")
                    if name in made and made[name] is not None
                ),
                made[0],
            )
        if states.dim() == 4:
            return states.mean((2, 3))
        if states.dim() == 2:
            return states
        if self.pooling == "last":
            return _last(states, batch)
        if self.pooling == "cls":
            return states[:, 0]
        mask = _mask(states, batch)
        return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


class _Reordered(Sequence[Any]):
    """Inputs in another order; a row is read when it is asked for, so that no process decodes all images."""

    def __init__(self, inputs: Sequence[Any], order: Sequence[int]) -> None:
        self.inputs, self.order = inputs, order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: Any) -> Any:
        return self.inputs[self.order[place]]


def _mask(states: Tensor, batch: Batch) -> Tensor:
    mask = batch.inputs.get("attention_mask")
    if mask is None or mask.shape[1] != states.shape[1]:
        return torch.ones(states.shape[:2], dtype=states.dtype, device=states.device)
    return torch.as_tensor(mask, dtype=states.dtype, device=states.device)


def _last(states: Tensor, batch: Batch) -> Tensor:
    """The last token that is no padding."""
    last = _mask(states, batch).sum(1).long() - 1
    return states[torch.arange(len(states), device=states.device), last]


def features(
    model: Any,
    inputs: Iterable[Any],
    *,
    pooling: Pooling | None = None,
    normalise: bool | None = None,
    batch_size: int = 32,
) -> Float[np.ndarray, "inputs width"]:
    """Return the final features of all inputs, in their order, as float32.

    Args:
        model: a LoadedModel, or what `load_model` takes.
        inputs: texts, images or arrays.
        pooling: `mean` over tokens that are no padding, `cls` the first token, `last` the last one, `max`, or
            `none` where the model gives one vector itself. By default what the sentence encoder's own files
            say; else a two-tower model's projection, the last token of a causal model, the class token of a
            vision model that has one, and the mean otherwise.
        normalise: scale to unit length; by default what the sentence encoder's own files say, else no.
        batch_size: inputs per forward pass.
    """
    parts = list(iter_features(model, inputs, pooling=pooling, normalise=normalise, batch_size=batch_size))
    if not parts:
        raise DataError("there are no inputs", where="features", fix="give at least one input")
    return np.concatenate(parts)


def iter_features(
    model: Any,
    inputs: Iterable[Any],
    *,
    pooling: Pooling | None = None,
    normalise: bool | None = None,
    batch_size: int = 32,
) -> Iterator[Float[np.ndarray, "inputs width"]]:
    """Yield the features window by window, in the inputs' order; a window is sorted by length inside."""
    loaded = load_model(model)
    own_pooling, own_normalise = sentence_encoder_settings(loaded.folder)
    layers = sentence_layers(loaded.folder) if pooling is None else nn.Sequential()
    pooling = pooling if pooling is not None else own_pooling
    normalise = own_normalise if normalise is None else normalise
    if pooling is not None and pooling not in POOLINGS:
        raise OptionError(
            f"there is no pooling '{pooling}'", where="pooling", fix=f"choose {', '.join(POOLINGS)}"
        )
    stream = iter(inputs)
    while items := list(islice(stream, WINDOW)):
        order = sorted(range(len(items)), key=lambda index: -loaded.length(items[index]))
        window: Any = None
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            rows = _pooled(loaded, loaded.preprocess([items[place] for place in places]), pooling)
            with torch.inference_mode():
                rows = layers.to(rows.device)(rows.float()) if len(layers) else rows
            rows = functional.normalize(rows, dim=1) if normalise else rows
            if window is None:
                window = np.empty((len(items), rows.shape[1]), dtype=np.float32)
            window[places] = rows.float().cpu().numpy()
        yield window


def _pooled(loaded: LoadedModel, batch: Batch, pooling: Pooling | None) -> Float[Tensor, "inputs width"]:
    with torch.inference_mode():
        return pooled_states(loaded, batch, pooling)


def pooled_states(
    loaded: LoadedModel, batch: Batch, pooling: Pooling | None = None
) -> Float[Tensor, "inputs width"]:
    """Return the pooled last states of one batch, differentiable where gradients are enabled."""
    states, stack = _final_states(loaded, batch)
    if states.dim() == 2:
        return states
    if states.dim() == 4:
        states = states.flatten(2).transpose(1, 2)
    layout = batch.layout(stack)
    pooling = _default_pooling(loaded, layout, states) if pooling is None else pooling
    if pooling == "none":
        raise OptionError(
            "the model gives one vector per token",
            where=loaded.name,
            fix="choose the pooling mean, cls, last or max",
        )
    mask = torch.from_numpy(layout.valid(states.shape[1])).to(states.device)
    if pooling == "cls":
        return states[torch.arange(len(states)), mask.int().argmax(1)]
    if pooling == "last":
        last = mask.shape[1] - 1 - mask.flip(1).int().argmax(1)
        return states[torch.arange(len(states)), last]
    if pooling == "max":
        return states.masked_fill(~mask[..., None], float("-inf")).amax(1)
    weights = mask.to(states.dtype)
    return torch.einsum("itw,it->iw", states, weights) / weights.sum(1, keepdim=True)


def _default_pooling(loaded: LoadedModel, layout: TokenLayout, states: Tensor) -> Pooling:
    if loaded.causal:
        return "last"
    grid = layout.grid(states.shape[1])
    return "cls" if grid is not None and grid[1] > 0 else "mean"


def _final_states(loaded: LoadedModel, batch: Batch) -> tuple[Tensor, str]:
    """Return the last hidden states (or one vector per input) and the stack that they are of."""
    if loaded.encoder_decoder and "input_ids" in batch.inputs:
        encoder = loaded.model.get_encoder()  # type: ignore[operator]
        outputs = encoder(input_ids=batch.inputs["input_ids"], attention_mask=batch.inputs["attention_mask"])
        return outputs.last_hidden_state, "encoder"
    base = getattr(loaded.model, getattr(loaded.model, "base_model_prefix", "") or "-", None)
    runner = loaded
    if isinstance(base, nn.Module):
        runner = LoadedModel(loaded.name, base, loaded.config, device=loaded.device)
    outputs = runner.run(batch)
    stack = next(iter(batch.layouts), "")
    towers = hasattr(loaded.model, "get_text_features") and hasattr(loaded.model, "get_image_features")
    if towers and not isinstance(outputs, Tensor):
        if len(batch.layouts) > 1:
            raise DataError(
                "an input of two towers has two features",
                where=loaded.name,
                fix="give texts or images, one at a time",
            )
        return outputs.pooler_output, stack
    if isinstance(outputs, Tensor):
        return outputs, stack
    states = getattr(outputs, "last_hidden_state", None)
    if states is None:
        states = outputs[0] if isinstance(outputs, tuple) else getattr(outputs, "logits", None)
    if not isinstance(states, Tensor):
        raise DataError(
            f"the model returned a {type(outputs).__name__} without hidden states",
            where=loaded.name,
            fix="load it without its head",
        )
    return states, stack
