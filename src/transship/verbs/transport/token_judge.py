"""Fine-tunes that answer for every token: what they say, token beside token, and how often a target agrees.

Both models read the same inputs, each with its own tokenizer; tokens meet as `align_tokens` pairs them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from transship import parallel
from transship.activations import Batch, LoadedModel
from transship.activations.heads import carried_over
from transship.activations.layout import Alignment
from transship.activations.readout import Readout
from transship.activations.tokens import align_tokens
from transship.errors import OptionError
from transship.geometry import LinearMap
from transship.numerics import chunks


@dataclass(frozen=True, eq=False)
class TokenTeacher:
    """What the fine-tuned source says about every token of some inputs.

    Attributes:
        loaded: the model whose tokenizer cuts the inputs.
        stack: the stack whose tokens the outputs belong to.
        inputs: raw.
        outputs: [tokens, outputs] per input, padding left out; of a language model its choices alone,
            [tokens, 1], since a row of its vocabulary per token would fill the memory.
    """

    loaded: LoadedModel
    stack: str
    inputs: Sequence[Any]
    outputs: list[Tensor]

    @classmethod
    def of(cls, readout: Readout, inputs: Sequence[Any], batch_size: int) -> "TokenTeacher":
        """Run the fine-tuned source once over the inputs."""
        found: list[Tensor] = []
        with torch.no_grad():
            for part in chunks(len(inputs), batch_size):
                batch = readout.loaded.preprocess([inputs[row] for row in range(part.start, part.stop)])
                reading = readout(batch)
                assert reading.outputs is not None
                outputs = reading.outputs.reshape(batch.size, reading.tokens, -1)
                if readout.task == "language":
                    outputs = outputs.argmax(2, keepdim=True)
                mask = _mask(batch, reading.tokens)
                found += [one[real].float().cpu() for one, real in zip(outputs, mask, strict=True)]
        assert readout.head is not None
        return cls(readout.loaded, readout.head.stack, inputs, found)

    def beside(self, numbers: Sequence[int], batch: Batch, tokens: int) -> tuple[Tensor, Alignment]:
        """Return its outputs on the rows that a batch of `tokens` tokens per input is aligned with, and the
        alignment.
        """
        there = self.loaded.preprocess([self.inputs[number] for number in numbers])
        taught = torch.cat([self.outputs[number] for number in numbers])
        mask = next(iter(_masks(there)), None)
        length = len(taught) // len(numbers) if mask is None else mask.shape[1]
        mask = _mask(there, length)
        padded = taught.new_zeros(*mask.shape, taught.shape[1])
        padded[mask] = taught
        aligned = align_tokens(there.layout(self.stack), batch.layout(self.stack), length, tokens)
        return aligned.source.apply(padded.flatten(0, 1)), aligned


def read_tokens(readout: Readout, batch: Batch) -> tuple[Tensor, Tensor | None, int]:
    """Return a model's states [inputs · tokens, width], its outputs there if it has any, and the tokens per
    input.
    """
    if readout.task in ("tokens", "language"):
        reading = readout(batch)
        return reading.features, reading.outputs, reading.tokens
    made = readout.loaded.run(batch) if readout.head is None else None
    if made is None or "last_hidden_state" not in made:
        raise OptionError(
            "its head reads one vector per input, and the fine-tune answers for every token",
            where=readout.loaded.name,
            fix="give the model without its head, or with one per token",
        )
    states: Tensor = made["last_hidden_state"]
    return states.flatten(0, 1), None, states.shape[1]


@dataclass(frozen=True, eq=False)
class TokenJudge:
    """The share of tokens on which the target, as it stands, chooses what the fine-tuned source chooses.

    Attributes:
        readout: of the target.
        teacher: of the inputs.
        own_head: whether the target's own head answers; otherwise a ridge head fitted on `fit`.
        fit: teacher of the inputs for that head; None fits it on every other batch of `teacher` and judges
            on the rest.
        batch_size: inputs per forward pass.
        penalty: of the ridge head.
    """

    readout: Readout
    teacher: TokenTeacher
    own_head: bool
    fit: TokenTeacher | None = None
    batch_size: int = 32
    penalty: float | None = None

    def score(self) -> float:
        """Return the share of tokens."""
        judged = self._batches(self.teacher)
        head: LinearMap | None = None
        if not self.own_head:
            known, taught = (
                (judged[::2], self.teacher) if self.fit is None else (self._batches(self.fit), self.fit)
            )
            judged = judged[1::2] if self.fit is None else judged
            head = fit_token_head(self.readout, taught, known, self.penalty)
        counts = torch.zeros(2, dtype=torch.float64)
        with torch.no_grad():
            for number, rows in enumerate(judged):
                if parallel.mine(number):
                    counts += self._right(rows, head)
        right, total = (sum(parallel.gather(float(count))) for count in counts)
        return right / max(1.0, total)

    def _right(self, rows: list[int], head: LinearMap | None) -> Tensor:
        batch = self.readout.loaded.preprocess([self.teacher.inputs[row] for row in rows])
        features, outputs, tokens = read_tokens(self.readout, batch)
        wanted, aligned = self.teacher.beside(rows, batch, tokens)
        if head is not None:
            outputs = head.apply(features.double())
        assert outputs is not None
        choices = _choices(wanted)
        found = aligned.target.apply(outputs).argmax(1).cpu()
        return torch.tensor([float((found == choices).sum()), float(len(choices))], dtype=torch.float64)

    def _batches(self, teacher: TokenTeacher) -> list[list[int]]:
        # two at least, so that one can fit a head and the other judge it
        size = min(self.batch_size, -(-len(teacher.inputs) // 2))
        return [list(range(part.start, part.stop)) for part in chunks(len(teacher.inputs), size)]


def fit_token_head(
    readout: Readout, teacher: TokenTeacher, batches: Sequence[list[int]], penalty: float | None = None
) -> LinearMap:
    """Return the ridge head from a model's token states onto the teacher's outputs, without labels."""

    def token_rows(rows: list[int]) -> tuple[Tensor, Tensor]:
        batch = readout.loaded.preprocess([teacher.inputs[row] for row in rows])
        features, _, tokens = read_tokens(readout, batch)
        outputs, aligned = teacher.beside(rows, batch, tokens)
        return aligned.target.apply(features), outputs

    mine = (rows for number, rows in enumerate(batches) if parallel.mine(number))
    return carried_over(map(token_rows, mine), f"{readout.loaded.name} features", penalty)


def token_loss(
    readout: Readout, teacher: TokenTeacher, head: LinearMap | None
) -> Callable[[Batch, Sequence[int]], Tensor]:
    """Return the summed cross entropy of a model's choice for every token against the teacher's.

    `head` turns states into outputs where the model has no head that speaks of the same things.
    """

    def loss(batch: Batch, numbers: Sequence[int]) -> Tensor:
        features, outputs, tokens = read_tokens(readout, batch)
        made: Tensor | None = outputs if head is None else head.apply(features)
        assert made is not None
        wanted, aligned = teacher.beside(numbers, batch, tokens)
        rows = aligned.target.apply(made)
        return functional.cross_entropy(rows, _choices(wanted).to(rows.device), reduction="sum")

    return loss


def _choices(wanted: Float[Tensor, "rows outputs"]) -> Tensor:
    return wanted[:, 0].long() if wanted.shape[1] == 1 else wanted.argmax(1)


def _masks(batch: Batch) -> list[Tensor]:
    names = ("decoder_attention_mask", "attention_mask")
    return [torch.as_tensor(batch.inputs[name]) for name in names if batch.inputs.get(name) is not None]


def _mask(batch: Batch, tokens: int) -> Tensor:
    """Return [inputs, tokens]: which are no padding."""
    for mask in _masks(batch):
        if mask.shape[1] == tokens:
            return mask.bool().cpu()
    return torch.ones(batch.size, tokens, dtype=torch.bool)
