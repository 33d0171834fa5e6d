"""What was measured on test rows, and on the domain that the target knew before: a table, row by model."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from transship.verbs.transport.warm import WarmStart

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
class Measured:
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
                f"{self.metric} on {self.test_rows} {self.unit} of {self.test}, which nothing was chosen on"
            )
        if self.original is not None:
            parts.append(f"original: {self.metric} on {self.original_rows} {self.unit} of {self.original}")
        else:
            parts.append(f"the original domain was {NOT_MEASURED}")
        return "; ".join(parts)

    def lines(self) -> Iterator[str]:
        """Yield the table for a terminal."""
        columns = self.columns()
        yield self.caption()
        yield f"{'':20s}" + "".join(f"  {title:>17s}" for title in columns.values())
        for row in self.rows:
            values = [getattr(row, name) for name in columns]
            yield f"{row.model:20s}" + "".join(
                f"  {'–' if value is None else format(value, '.4f'):>17s}" for value in values
            )
        yield from self.notes
        if self.warm is not None:
            yield from self.warm.lines()

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
        found = asdict(self)
        if self.original is None:
            found["original"] = NOT_MEASURED
        return found
