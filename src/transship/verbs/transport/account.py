"""What a transport says of itself: what moved, how well it aligned, which strength, what stayed and why."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transship.checkpoints.card import Input
from transship.report import (
    Column,
    Facts,
    KeyFigure,
    KeyFigures,
    Page,
    Provenance,
    Section,
    Table,
    Text,
    json,
    library_versions,
    short_name,
)
from transship.report.blocks import Block
from transship.report.figures import heat_map, lines
from transship.verbs.transport.heads import CarriedHead
from transship.verbs.transport.models import Participant
from transship.verbs.transport.move import Moved
from transship.verbs.transport.scores import Scores
from transship.verbs.transport.verdict import Check, Verdict, on_inputs, on_test

_CHOSEN_BY = {
    "validation": "the best on validation labels",
    "agreement": "the best agreement with the fine-tuned source, without labels",
    "given": "as given",
    "finish": "as it was finished",
}


_OLD_DOMAIN = "agreement with the untouched target on inputs of --keep that were not learnt from"
# the name of what a head that is written has on the validation rows
CHECKED = {True: "validation, as written", False: "agreement, as written"}


@dataclass(frozen=True)
class Choice:
    """A strength and the curve that it was chosen from.

    Attributes:
        strength: the best, the smallest of equals.
        curve: (strength, score) in rising order.
        by: `validation`, `agreement`, `given` or `finish`.
    """

    strength: float
    curve: tuple[tuple[float, float], ...]
    by: str

    @property
    def score(self) -> float:
        return dict(self.curve).get(self.strength, float("nan"))


@dataclass(frozen=True)
class Candidate:
    """One row of the comparison that `auto` and a finish make.

    Attributes:
        method: what is compared.
        strength: of its update.
        agreement: with the fine-tuned source.
        validation: on labelled rows, where these chose the strength.
        kept: agreement with the untouched target on inputs of its old domain.
        seconds: of CPU time that its finish took.
    """

    method: str
    strength: float
    agreement: float
    validation: float | None = None
    kept: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, eq=False)
class Account:
    """What a transport gave, and how it was made.

    Attributes:
        source: the base of the fine-tune.
        tuned: the fine-tune.
        target: the model that it moved to.
        method: the method's name.
        parameters: everything that was chosen.
        moved: the target's update at strength 1, with what was moved and what was not.
        choice: the strength and how it was found.
        head: a carried head, or None.
        candidates: what `auto` compared.
        compared_on: which inputs it compared them on.
        check: how it answers as it is written, on inputs that nothing was fitted on.
        metrics: measured quality by name.
        adapter: whether the update came, and is saved, as an adapter.
        notes: sentences for the user.
        inputs: hashes of everything that went in.
        measured: what was measured on test rows and on the original domain, where such were given.
    """

    source: Participant
    tuned: Participant
    target: Participant
    method: str
    parameters: Mapping[str, Any]
    moved: Moved
    choice: Choice
    head: CarriedHead | None = None
    candidates: Sequence[Candidate] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    adapter: bool = False
    notes: Sequence[str] = ()
    inputs: Sequence[Input] = ()
    measured: Scores | None = None
    compared_on: str = ""
    check: Check | None = None

    @property
    def verdict(self) -> Verdict | None:
        """What the result is worth: on test rows, else on rows that nothing was fitted on."""
        inputs = None if self.head is None else self.head.inputs
        if self.measured is not None:
            tested = on_test(self.measured, inputs=inputs, moved=not self.still)
            if tested is not None:
                return tested
        return None if self.check is None else on_inputs(self.check, inputs)

    @property
    def still(self) -> bool:
        """Whether no weight of the target moved."""
        return self.strength == 0.0 or not self.moved.dense

    @property
    def warnings(self) -> list[str]:
        """What a user must be warned of, a sentence each."""
        verdict = self.verdict
        return [
            *([] if verdict is None else verdict.warnings),
            *([self._nothing()] if self.still else []),
        ]

    def _nothing(self) -> str:
        head = "" if self.head is None else "; only the head is new"
        best = "" if self.choice.by == "given" else ", because no strength did better than 0"
        return f"nothing was moved{best}: the target's body is as it was{head}"

    @property
    def strength(self) -> float:
        """α of θ_B + α τ_B."""
        return self.choice.strength

    @property
    def norm_kept(self) -> float | None:
        """‖τ_B‖ / ‖τ_A‖ over all moved tensors; None where nothing moved."""
        return self.moved.norm_after / self.moved.norm_before if self.moved.norm_before else None

    def summary(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return json.document(self.page())

    def page(self, command: str = "transship transport") -> Page:
        """Return the whole, for a terminal, JSON, Markdown and HTML."""
        source, tuned, target = (short_name(model.name) for model in (self.source, self.tuned, self.target))
        sections = [Section("Result", [*self._result(), Facts(self._facts(), shown=False)])]
        if self.measured is not None:
            sections.append(Section("Test", self.measured.blocks()))
        sections.append(Section("Methods compared" if self.candidates else "", [self._candidates()]))
        sections.append(Section("At a glance", [self._key_figures(), *map(Text, self.notes)]))
        if len(self.choice.curve) > 1:
            sections.append(Section("Strength", [self._curve()]))
        if self.metrics:
            values = [[name, value] for name, value in self.metrics.items()]
            table = Table(["measure", Column("value", decimals=4)], values)
            sections.append(Section("Measured", [table], detail=True))
        sections.append(Section("Alignment", list(self._alignment()), detail=True))
        sections.append(Section("What moved", [self._layers()], detail=True))
        sections.append(Section("What did not move, and why", list(self._left())))
        return Page(
            f"{tuned} on {target}",
            f"What {tuned} learned on top of {source} was {'not ' if self.still else ''}moved to {target} "
            f"by {self.method} at strength {self.strength:g} ({self._how}).",
            sections,
            Provenance(
                command,
                {given.name: given.fingerprint for given in self.inputs},
                {name: str(value) for name, value in self.parameters.items()},
                library_versions(),
            ),
        )

    def _result(self) -> Iterator[Block]:
        verdict = self.verdict
        if verdict is not None:
            yield Text(verdict.sentence)
        for warning in self.warnings:
            yield Text(warning[0].upper() + warning[1:] + ".", "warning")

    @property
    def _how(self) -> str:
        return _CHOSEN_BY.get(self.choice.by, self.choice.by)

    def _facts(self) -> dict[str, Any]:
        """Return what programs read, apart from tables."""
        head = self.head
        return {
            "source": self.source.name,
            "tuned": self.tuned.name,
            "target": self.target.name,
            "method": self.method,
            "parameters": dict(self.parameters),
            "strength": self.strength,
            "strength_by": self.choice.by,
            "curve": [list(point) for point in self.choice.curve],
            "compared_on": self.compared_on,
            "metrics": dict(self.metrics),
            "measured": None if self.measured is None else self.measured.summary(),
            "norm_kept": self.norm_kept,
            "layers": [dataclasses.asdict(layer) | {"kept": layer.kept} for layer in self.moved.layers],
            "head": None if head is None else {"inputs": head.inputs, "kept": head.kept, **head.details},
            "notes": list(self.notes),
            "warnings": self.warnings,
        }

    def _key_figures(self) -> KeyFigures:
        moved, choice = self.moved, self.choice
        kept = float("nan") if self.norm_kept is None else self.norm_kept
        residuals = [layer.residual_out for layer in moved.layers if layer.residual_out is not None]
        figures = [
            KeyFigure("method", self.method),
            KeyFigure("strength", self.strength, self._how),
        ]
        if self.still:
            figures.append(KeyFigure("moved", "nothing", "the target's body is untouched"))
        else:
            left = f"{len(moved.left)} listed as not moved"
            figures.append(KeyFigure("tensors moved", len(moved.dense), left))
            figures.append(KeyFigure("norm kept", kept, "‖τ_B‖ / ‖τ_A‖ over all moved tensors"))
        if residuals and not self.still:
            mean = sum(residuals) / len(residuals)
            figures.append(KeyFigure("mean residual", mean, "of output maps; 0 is perfect"))
        if choice.curve:
            figures.append(KeyFigure(choice.by, choice.score, "at the chosen strength"))
        if self.head is not None:
            kept_inputs = f"inputs, {self.head.kept} kept"
            figures.append(KeyFigure("head fitted on", self.head.inputs, kept_inputs))
        return KeyFigures(figures)

    def _candidates(self) -> Block:
        rows = [[row.method, row.strength, row.agreement, row.validation] for row in self.candidates]
        if not rows:
            return Facts({"candidates": []}, shown=False)
        columns = [
            Column("method"),
            Column("strength", decimals=2),
            Column("agreement", decimals=4, best="max"),
            Column("validation", decimals=4, best="max"),
        ]
        for values, column in (
            ([row.kept for row in self.candidates], Column("old domain", decimals=4, help=_OLD_DOMAIN)),
            ([row.seconds for row in self.candidates], Column("finish", decimals=1, unit="CPU s")),
        ):
            if any(value is not None for value in values):
                columns.append(column)
                rows = [[*row, value] for row, value in zip(rows, values, strict=True)]
        caption = f"Agreement with the fine-tuned source on {self.compared_on}."
        return Table(columns, rows, caption, whole=True, key="candidates")

    def _curve(self) -> Block:
        by = self.choice.by
        return lines(
            [strength for strength, _ in self.choice.curve],
            {by: [score for _, score in self.choice.curve]},
            x_title="strength",
            y_title="accuracy" if by == "validation" else "agreement with the fine-tuned source",
            caption="Every point is the same moved update at another strength; 0 is the untouched target.",
        )

    def _layers(self) -> Table:
        rows = [
            [
                layer.site,
                layer.tensor.rpartition(".")[2],
                layer.kept,
                None if layer.rank_in is None else f"{layer.rank_in[0]} of {layer.rank_in[1]}",
                None if layer.rank_out is None else f"{layer.rank_out[0]} of {layer.rank_out[1]}",
                layer.residual_in,
                layer.residual_out,
                layer.energy_in,
                layer.norm_before,
                layer.norm_after,
                layer.tensor,
            ]
            for layer in self.moved.layers
        ]
        columns: list[str | Column] = [
            "site",
            "of it",
            Column(
                "kept",
                decimals=3,
                help="‖τ_B‖ / ‖τ_A‖; below 1 where the target is narrower or inputs say nothing",
            ),
            Column("rank in", help="directions of the layer's inputs that the calibration inputs showed"),
            Column("rank out", help="likewise for its outputs"),
            Column(
                "residual in", decimals=3, help="1 − alignment of the two models' inputs here; 0 is perfect"
            ),
            Column("residual out", decimals=3, help="likewise for outputs"),
            Column("energy", decimals=3, help="share of ‖τ_A‖² in directions that the input map carries"),
            Column("‖τ_A‖", decimals=4),
            Column("‖τ_B‖", decimals=4),
            Column("tensor", code=True),
        ]
        return Table(columns, rows, "One row per moved tensor.")

    def _alignment(self) -> Iterator[Block]:
        """Yield the output residuals of the weights by block and role, where sites stand in blocks."""
        residuals: dict[tuple[str, str], dict[str, float]] = {}
        for layer in self.moved.layers:
            stack, _, rest = layer.site.partition(".")
            block, _, role = rest.partition(".")
            if layer.residual_out is not None and block.isdecimal():
                residuals.setdefault((stack, role), {})[block] = layer.residual_out
        if not residuals:
            yield Text("This method aligns no activations.")
        for stack in dict.fromkeys(stack for stack, _ in residuals):
            roles = [role for other, role in residuals if other == stack]
            blocks = sorted({block for role in roles for block in residuals[stack, role]}, key=int)
            yield heat_map(
                [[residuals[stack, role].get(block) for block in blocks] for role in roles],
                rows=roles,
                columns=blocks,
                row_title="role",
                column_title=f"block of {stack}",
                value_title="output residual",
                caption="1 − alignment of both base models' outputs at each site: 0 is perfect, 1 is none.",
                limits=(0.0, 1.0),
            )

    def _left(self) -> Iterator[Block]:
        if not self.moved.left:
            yield Text("Nothing was moved." if self.still else "Every change of the fine-tune was moved.")
            yield Facts({"not_moved": []}, shown=False)
            return
        rows = [
            [left.tensor, left.role, None if left.norm != left.norm else left.norm, left.reason]
            for left in self.moved.left
        ]
        columns = [
            Column("tensor", code=True),
            Column("role"),
            Column("‖τ_A‖", decimals=4, key="norm"),
            Column("reason"),
        ]
        yield Table(columns, rows, key="not_moved")
