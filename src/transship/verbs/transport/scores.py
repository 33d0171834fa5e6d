"""How good a transported fine-tune is: heads and probes on test rows, the domain that the target knew before,
and fine-tunes that begin with it. Nothing here chooses anything.
"""

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from transship.activations import LoadedModel
from transship.activations.readout import Readout
from transship.errors import DataError, OptionError
from transship.geometry import Moments, procrustes, ridge_of
from transship.report import Column, Table, Text, short_name
from transship.report.blocks import Block
from transship.report.figures import lines
from transship.verbs.transport.models import Participant


def reuse_head(tuned: LoadedModel, known: Tensor, theirs: Tensor, features: Tensor) -> Tensor:
    """Return the source's fine-tuned head on the target's features (Table 9).

    The features are turned into the source's space by the Procrustes map of `known` onto `theirs`: with equal
    widths and a target that already works in that space this is the paper's direct reuse, up to a rotation.
    """
    readout = Readout(tuned)
    if readout.head is None:
        raise OptionError("it has no head to reuse", where=tuned.name, fix="give a fine-tune with a head")
    turn = procrustes(Moments.of(known.double(), theirs.double()), centre=True, scale=True)
    head = tuned.model.get_submodule(readout.head.path)
    with torch.no_grad():
        outputs: Tensor = head(turn.apply(features.double()).to(next(head.parameters()).dtype))
    return outputs


def probe(known: Tensor, labels: Tensor, features: Tensor, classes: int | None = None) -> Tensor:
    """Return the outputs of a ridge probe on frozen features.

    Args:
        known: features [rows, width] of labelled rows.
        labels: of these rows: classes [rows], or values [rows] or [rows, outputs].
        features: [inputs, width] that it answers for.
        classes: how many there are; otherwise those up to the largest label.
    """
    if labels.dtype.is_floating_point:
        wanted = labels.reshape(len(labels), -1).double()
    else:
        wanted = nn.functional.one_hot(labels.long(), classes or int(labels.max()) + 1).double()
    return ridge_of(known.double(), wanted.to(known.device), name="probe").apply(features.double())


Rows = tuple[Sequence[Any], Tensor]


@dataclass(frozen=True)
class Point:
    """A measurement on test rows after some steps."""

    step: int
    loss: float
    accuracy: float


@dataclass(frozen=True)
class WarmStart:
    """Two fine-tunes that see the same batches at the same rate.

    Attributes:
        target: from the untouched target.
        transported: from the transported one.
        labels: how many labelled rows they were trained on.
        head: what both began with.
    """

    target: tuple[Point, ...]
    transported: tuple[Point, ...]
    labels: int
    head: str = "the target's own head"

    def curves(self) -> dict[str, tuple[Point, ...]]:
        """Return the curves by the names that people read."""
        return {"from the target": self.target, "from the transported": self.transported}

    def blocks(self) -> list[Block]:
        curves = self.curves()
        caption = (
            f"Accuracy of fine-tunes on {self.labels} labels, the same batches for both, by steps; "
            f"they begin with {self.head}."
        )
        columns = [Column("fine-tune"), *(Column(str(point.step), decimals=4) for point in self.target)]
        rows = [[name, *(point.accuracy for point in curve)] for name, curve in curves.items()]
        figure = lines(
            [point.step for point in self.target],
            {name: [point.accuracy for point in curve] for name, curve in curves.items()},
            x_title="steps of fine-tuning",
            y_title="accuracy on test rows",
            caption=caption,
        )
        return [Table(columns, rows, caption), figure]


class Transported(Protocol):
    """A target, and the module that it has become."""

    @property
    def target(self) -> Participant:
        """The target as it was."""

    def model(self) -> nn.Module:
        """Return it transported."""


def warm_start(
    result: Transported,
    train: Rows,
    test: Rows,
    *,
    heads: tuple[nn.Linear, nn.Linear] | None = None,
    head: str = "the target's own head",
    steps: Sequence[int] = (0, 10, 25, 50, 100),
    rate: float = 1e-4,
    batch_size: int = 32,
    seed: int = 0,
) -> WarmStart:
    """Fine-tune copies of the target and of the transported target alike, and measure at `steps`.

    Args:
        result: the transport.
        train: labelled rows to train on: inputs, classes [rows].
        test: labelled rows to measure on.
        heads: new heads on the features of the untouched and of the transported target, trained too; without
            them the models' own are.
        head: what is said of them.
        steps: when to measure.
        rate: of AdamW.
        batch_size: rows per step, drawn alike for both.
        seed: of these draws.
    """
    curves = []
    for number, module in enumerate((copy.deepcopy(result.target.model.model), result.model())):
        own = None if heads is None else copy.deepcopy(heads[number])
        loaded = dataclasses.replace(result.target.model, model=module.eval())
        module.requires_grad_(True)
        learning = _Learning(Readout(loaded), own, train, test)
        curves.append(learning.curve(sorted(steps), rate, batch_size, seed))
    return WarmStart(curves[0], curves[1], len(train[0]), head)


def milestones(steps: int) -> tuple[int, ...]:
    """Return when fine-tunes of so many steps are measured."""
    return tuple(sorted({0, *(round(steps * part) for part in (0.1, 0.25, 0.5, 1.0))}))


@dataclass(frozen=True)
class _Learning:
    readout: Readout
    head: nn.Linear | None
    train: Rows
    test: Rows

    def curve(self, steps: Sequence[int], rate: float, batch_size: int, seed: int) -> tuple[Point, ...]:
        parts = [self.readout.loaded.model, *([] if self.head is None else [self.head])]
        trained = [weight for part in parts for weight in part.parameters() if weight.requires_grad]
        optimiser = torch.optim.AdamW(trained, lr=rate)
        generator = torch.Generator().manual_seed(seed)
        points = []
        for step in range(max(steps) + 1):
            if step in steps:
                points.append(self._point(step))
            rows = torch.randint(len(self.train[0]), (batch_size,), generator=generator).tolist()
            with torch.enable_grad():
                batch = self.readout.loaded.preprocess([self.train[0][row] for row in rows])
                read = self.readout(batch)
                outputs = self._outputs(read.features, read.outputs)
                optimiser.zero_grad(set_to_none=True)
                wanted = self.train[1][rows].to(outputs.device)
                nn.functional.cross_entropy(outputs, wanted).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return tuple(points)

    def _point(self, step: int) -> Point:
        read = self.readout.all(self.test[0])
        with torch.no_grad():
            outputs = self._outputs(read.features, read.outputs).cpu()
        right = (outputs.argmax(1) == self.test[1]).double().mean()
        return Point(step, float(nn.functional.cross_entropy(outputs, self.test[1])), float(right))

    def _outputs(self, features: Tensor, outputs: Tensor | None) -> Tensor:
        if self.head is not None:
            answers: Tensor = self.head(features.to(self.head.weight))
            return answers
        if outputs is None:
            raise DataError(
                "it has no head to fine-tune", where=self.readout.loaded.name, fix="give a headed target"
            )
        return outputs


NOT_MEASURED = "not measured: give --original"


@dataclass(frozen=True)
class Row:
    """One model; None where a measure does not apply.

    Attributes:
        model: fine-tuned source, untouched or transported target.
        own_head: with the model's own head.
        probe: a ridge probe on frozen features, with the labels of the calibration inputs.
        reused_head: the fine-tuned source's head on features turned into the source's space (Table 9).
        carried_head: a head fitted onto the fine-tuned source's outputs, without labels.
        original: with its own head on the original domain.
        original_carried: with the carried head there.
    """

    model: str
    own_head: float | None = None
    probe: float | None = None
    reused_head: float | None = None
    carried_head: float | None = None
    original: float | None = None
    original_carried: float | None = None


@dataclass(frozen=True)
class Scores:
    """Measurements that chose nothing.

    Attributes:
        rows: fine-tuned source, untouched target, transported target.
        metric: accuracy, or rank correlation for values.
        test: the name of the test data, or None.
        test_rows: how many of its rows (or words) were measured on.
        original: the name of the original domain's data, or None.
        original_rows: how many of its rows (or words) were measured on.
        probe_labels: how many labels the probe was fitted on.
        notes: what could not be measured, and what was left out.
        warm: fine-tuning curves from both targets, where they were asked for.
        unit: what has a label: a row, or a word of it.
        majority: the share of the most common class among the test rows; None for values.
    """

    rows: tuple[Row, ...]
    metric: str
    test: str | None = None
    test_rows: int = 0
    original: str | None = None
    original_rows: int = 0
    probe_labels: int = 0
    notes: tuple[str, ...] = ()
    warm: WarmStart | None = None
    unit: str = "rows"
    majority: float | None = None

    def columns(self) -> dict[str, str]:
        """Return field of `Row` → title, for what was measured at all."""
        titles = {
            "own_head": "own head",
            "probe": f"probe ({self.probe_labels} labels)",
            "reused_head": "reused head",
            "carried_head": "carried head",
            "original": "original",
            "original_carried": "original, carried",
        }
        return {
            name: title
            for name, title in titles.items()
            if any(getattr(row, name) is not None for row in self.rows)
        }

    def caption(self) -> str:
        """Return what the figures are, in a sentence."""
        parts = []
        if self.test is not None:
            parts.append(
                f"{self.metric} on {self.test_rows} {self.unit} of {short_name(self.test)}, "
                "which nothing was chosen on"
            )
        if self.original is not None:
            parts.append(
                f"original: {self.metric} on {self.original_rows} {self.unit} of {short_name(self.original)}"
            )
        else:
            parts.append(f"the original domain was {NOT_MEASURED}")
        return "; ".join(parts)

    def blocks(self) -> list[Block]:
        """Return the table, what could not be measured, and the curves."""
        titles = self.columns()
        columns = [Column("model"), *(Column(title, decimals=4) for title in titles.values())]
        rows = [[row.model, *(getattr(row, name) for name in titles)] for row in self.rows]
        table = Table(columns, rows, self.caption())
        notes = [Text(note, "note") for note in self.notes]
        return [table, *notes, *([] if self.warm is None else self.warm.blocks())]

    def metrics(self) -> dict[str, float]:
        """Return the figures by name, for a model card."""
        what = {"original": "original domain", "original_carried": "original domain, carried head"}
        return {
            f"{what.get(name, f'test, {title}')}, {row.model}": value
            for name, title in self.columns().items()
            for row in self.rows
            if (value := getattr(row, name)) is not None
        }

    def summary(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        entries = asdict(self)
        if self.original is None:
            entries["original"] = NOT_MEASURED
        return entries
