"""What the fine-tuned source says about inputs: heads are fitted onto it, losses ask for it, and how often a
target agrees with it chooses a strength. No labels are needed.

A fine-tune that answers per input has a `Teacher`. One that answers for every token has a `TokenTeacher`:
both models read the same inputs, each with its own tokenizer, and tokens meet as `align_tokens` pairs them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from transship import parallel
from transship.activations import Batch, LoadedModel
from transship.activations.heads import carried_over, carry
from transship.activations.layout import Alignment
from transship.activations.readout import Readout, Task
from transship.activations.tokens import align_tokens
from transship.errors import DataError, OptionError
from transship.finish import most_likely
from transship.geometry import LinearMap, spearman
from transship.numerics import chunks

# a summed loss, given a batch and the numbers of its inputs
Loss = Callable[[Batch, Sequence[int]], Tensor]
_PAIRS_OF = 400


@dataclass(frozen=True, eq=False)
class Teacher:
    """What the fine-tuned source says about some inputs; or their labels, where these are its answers.

    Attributes:
        task: what its outputs are.
        inputs: raw.
        outputs: [inputs, outputs], its features where it has no head; or labels [inputs].
        batch_size: inputs per forward pass.
    """

    task: Task
    inputs: Sequence[Any]
    outputs: Tensor
    batch_size: int = 32

    def pairs(self, readout: Readout) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield a model's features and the outputs wanted of them, batch by batch of this process."""
        for rows, reading in readout.batches(self.inputs, self.batch_size):
            yield reading.features, self.outputs[rows]

    def loss(self, readout: Readout) -> Loss:
        """Return the loss of a model, through a ridge head where it has none that speaks of the same things.

        Classes take the cross entropy against the choices, anything else squared differences.
        """
        own = readout.task == self.task and readout.width == self.outputs.shape[1]
        head = None if own else carried_over(self.pairs(readout), f"{readout.loaded.name} features")
        choices = self.outputs.argmax(1)

        def loss(batch: Batch, numbers: Sequence[int]) -> Tensor:
            reading = readout(batch)
            outputs: Tensor | None = reading.outputs if head is None else head.apply(reading.features)
            if outputs is None:
                raise DataError("it has no head", where=readout.loaded.name, fix="fit one first")
            rows = torch.as_tensor(list(numbers))
            if self.task == "classes":
                return functional.cross_entropy(outputs, choices[rows].to(outputs.device), reduction="sum")
            return (outputs - self.outputs[rows].to(outputs)).square().sum()

        return loss

    def score(self, readout: Readout, *, own_head: bool, fit: "AnyTeacher | None" = None) -> float:
        """Return the share of inputs that a model answers as wanted; for values and features a rank
        correlation.

        Without its own head a ridge head answers: fitted on `fit`, or on the other half of the inputs.
        """
        reading = readout.all(self.inputs)
        if self.task == "features":
            return similarity_agreement(reading.features, self.outputs)
        if own_head:
            outputs = reading.outputs
        elif isinstance(fit, Teacher):
            known = readout.all(fit.inputs).features.cpu()
            outputs = _predicted(known, fit.outputs, reading.features.cpu())
        else:
            outputs = self._cross_fitted(reading.features.cpu())
        assert outputs is not None
        return agreement(outputs.cpu(), self.outputs, self.task)

    def _cross_fitted(self, features: Tensor) -> Tensor:
        outputs = torch.empty(len(features), self.outputs.shape[1])
        halves = torch.arange(len(features)) % 2 == 0
        for half in (halves, ~halves):
            outputs[half] = _predicted(features[~half], self.outputs[~half], features[half])
        return outputs


@dataclass(frozen=True, eq=False)
class TokenTeacher:
    """What the fine-tuned source says about every token of some inputs.

    Attributes:
        task: tokens or language.
        loaded: the model whose tokenizer cuts the inputs.
        stack: the stack whose tokens the outputs belong to.
        inputs: raw.
        outputs: [tokens, outputs] per input, padding left out; of a language model its choices alone,
            [tokens, 1], since a row of its vocabulary per token would fill the memory.
        batch_size: inputs per forward pass.
    """

    task: Task
    loaded: LoadedModel
    stack: str
    inputs: Sequence[Any]
    outputs: list[Tensor]
    batch_size: int = 32

    @classmethod
    def of(
        cls, readout: Readout, inputs: Sequence[Any], batch_size: int, *, likely: int = 0
    ) -> "TokenTeacher":
        """Run the fine-tuned source over the inputs; of a vocabulary, keep choices or the `likely` words."""
        answers: list[Tensor] = []
        with torch.no_grad():
            for part in chunks(len(inputs), batch_size):
                batch = readout.loaded.preprocess([inputs[row] for row in range(part.start, part.stop)])
                reading = readout(batch)
                assert reading.outputs is not None
                outputs = reading.outputs.reshape(batch.size, reading.tokens, -1)
                if readout.task == "language":
                    outputs = most_likely(outputs, likely) if likely else outputs.argmax(2, keepdim=True)
                mask = _mask(batch, reading.tokens)
                answers += [rows[real].float().cpu() for rows, real in zip(outputs, mask, strict=True)]
        assert readout.head is not None
        return cls(readout.task, readout.loaded, readout.head.stack, inputs, answers, batch_size)

    def beside(self, numbers: Sequence[int], batch: Batch, tokens: int) -> tuple[Tensor, Alignment]:
        """Return its outputs on the rows that a batch of `tokens` tokens per input is aligned with, and the
        alignment.
        """
        there = self.loaded.preprocess([self.inputs[number] for number in numbers])
        answers = torch.cat([self.outputs[number] for number in numbers])
        mask = next(iter(_masks(there)), None)
        length = len(answers) // len(numbers) if mask is None else mask.shape[1]
        mask = _mask(there, length)
        padded = answers.new_zeros(*mask.shape, answers.shape[1])
        padded[mask] = answers
        aligned = align_tokens(there.layout(self.stack), batch.layout(self.stack), length, tokens)
        return aligned.source.apply(padded.flatten(0, 1)), aligned

    def pairs(
        self, readout: Readout, batches: Sequence[list[int]] | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield a model's token states and the outputs wanted of them, batch by batch of this process."""
        for number, rows in enumerate(self._batches(self.batch_size) if batches is None else batches):
            if not parallel.mine(number):
                continue
            batch = readout.loaded.preprocess([self.inputs[row] for row in rows])
            features, _, tokens = read_tokens(readout, batch)
            wanted, aligned = self.beside(rows, batch, tokens)
            yield aligned.target.apply(features), wanted

    def loss(self, readout: Readout) -> Loss:
        """Return the cross entropy of a model's choice for every token, through a ridge head where it has
        none that speaks of the same things.
        """
        own = readout.task == "tokens" and readout.width == self.outputs[0].shape[1]
        head = None if own else carried_over(self.pairs(readout), f"{readout.loaded.name} features")

        def loss(batch: Batch, numbers: Sequence[int]) -> Tensor:
            features, outputs, tokens = read_tokens(readout, batch)
            answers: Tensor | None = outputs if head is None else head.apply(features)
            assert answers is not None
            wanted, aligned = self.beside(numbers, batch, tokens)
            rows = aligned.target.apply(answers)
            return functional.cross_entropy(rows, _choices(wanted).to(rows.device), reduction="sum")

        return loss

    def score(self, readout: Readout, *, own_head: bool, fit: "AnyTeacher | None" = None) -> float:
        """Return the share of tokens on which a model chooses what the fine-tuned source chooses.

        Without its own head a ridge head answers: fitted on `fit`, or on every other batch, which is then not
        judged.
        """
        judged = self._batches(self._judged_at_once)
        head: LinearMap | None = None
        if not own_head:
            if isinstance(fit, TokenTeacher):
                pairs = fit.pairs(readout, fit._batches(fit._judged_at_once))
            else:
                pairs, judged = self.pairs(readout, judged[::2]), judged[1::2]
            head = carried_over(pairs, f"{readout.loaded.name} features")
        counts = torch.zeros(2, dtype=torch.float64)
        with torch.no_grad():
            for number, rows in enumerate(judged):
                if parallel.mine(number):
                    counts += self._right(readout, rows, head)
        right, total = (sum(parallel.gather(float(count))) for count in counts)
        return right / max(1.0, total)

    def _right(self, readout: Readout, rows: list[int], head: LinearMap | None) -> Tensor:
        batch = readout.loaded.preprocess([self.inputs[row] for row in rows])
        features, outputs, tokens = read_tokens(readout, batch)
        wanted, aligned = self.beside(rows, batch, tokens)
        if head is not None:
            outputs = head.apply(features.double())
        assert outputs is not None
        choices = _choices(wanted)
        right = aligned.target.apply(outputs).argmax(1).cpu() == choices
        return torch.tensor([float(right.sum()), float(len(choices))], dtype=torch.float64)

    @property
    def _judged_at_once(self) -> int:
        """Inputs per batch that is judged: two batches at least, so that one can fit a head for the other."""
        return min(self.batch_size, -(-len(self.inputs) // 2))

    def _batches(self, size: int) -> list[list[int]]:
        return [list(range(part.start, part.stop)) for part in chunks(len(self.inputs), size)]


AnyTeacher = Teacher | TokenTeacher


def teach(readout: Readout, inputs: Sequence[Any], batch_size: int) -> AnyTeacher:
    """Return what the fine-tuned source says about `inputs`."""
    if readout.task in ("tokens", "language"):
        return TokenTeacher.of(readout, inputs, batch_size)
    reading = readout.all(inputs, batch_size)
    outputs = reading.features if reading.outputs is None else reading.outputs
    return Teacher(readout.task, inputs, outputs.float().cpu(), batch_size)


def language_loss(loaded: LoadedModel) -> Loss:
    """Return the next-token loss on the inputs themselves: a language model's own prediction task."""

    def loss(batch: Batch, numbers: Sequence[int]) -> Tensor:
        logits = loaded.run(batch)["logits"]
        words = batch.inputs.get("decoder_input_ids", batch.inputs["input_ids"])
        mask = batch.inputs.get("decoder_attention_mask", batch.inputs.get("attention_mask"))
        counts = torch.ones_like(words) if mask is None else mask
        each = functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), words[:, 1:].flatten(), reduction="none"
        )
        total: Tensor = (each * counts[:, 1:].flatten()).sum()
        return total

    return loss


def read_tokens(readout: Readout, batch: Batch) -> tuple[Tensor, Tensor | None, int]:
    """Return a model's states [inputs · tokens, width], its outputs there if it has any, and the tokens per
    input.
    """
    if readout.answers in ("tokens", "language"):
        reading = readout(batch)
        return reading.features, reading.outputs, reading.tokens
    outputs = readout.loaded.run(batch) if readout.head is None else None
    if outputs is None or "last_hidden_state" not in outputs:
        raise OptionError(
            "its head reads one vector per input, and the fine-tune answers for every token",
            where=readout.loaded.name,
            fix="give the model without its head, or with one per token",
        )
    states: Tensor = outputs["last_hidden_state"]
    return states.flatten(0, 1), None, states.shape[1]


def agreement(outputs: Tensor, wanted: Tensor, task: Task) -> float:
    """Return how often outputs choose what is wanted (labels or outputs); for values their rank
    correlation.
    """
    if task == "values":
        there = wanted.reshape(len(wanted), -1)[:, 0]
        return float(spearman(outputs[:, 0].float().numpy(), there.float().numpy()))
    choices = wanted if wanted.ndim == 1 else wanted.argmax(1)
    return float((outputs.argmax(1) == choices).double().mean())


def similarity_agreement(features: Tensor, wanted: Tensor) -> float:
    """Rank correlation of all pairwise cosines: whether two encoders rank neighbours alike."""
    sides = []
    for rows in (features, wanted):
        unit = functional.normalize(rows[:_PAIRS_OF].double().cpu(), dim=1)
        upper = torch.triu_indices(len(unit), len(unit), offset=1)
        sides.append((unit @ unit.T)[upper[0], upper[1]].numpy())
    return float(spearman(sides[0], sides[1]))


def _predicted(known: Tensor, outputs: Tensor, features: Tensor) -> Tensor:
    return carry(known, outputs, name="features").apply(features.double()).float()


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
