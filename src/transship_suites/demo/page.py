"""The demo's story as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transship import report
from transship_suites.demo.models import Digits, turned
from transship_suites.demo.steps import VerbResult, signals


def story(
    bases: Mapping[str, float], steps: Sequence[VerbResult], train: Digits, digits: Digits
) -> report.Page:
    """Return the page: what was trained, then a section per verb with its figures."""
    figures = [
        report.KeyFigure(
            step.verb, f"{step.figures[step.ours]:.1%}", f"{step.baseline}: {step.figures[step.baseline]:.1%}"
        )
        for step in steps
    ]
    held = report.Text(
        "What each verb made; below it the best of its baselines, what one has without the verb."
    )
    trained = ", ".join(f"{name} {share:.1%}" for name, share in bases.items())
    sections = [
        report.Section(
            "What was trained",
            [
                report.Text(
                    "Two vision transformers of four blocks, one narrow and one wide, were trained on "
                    f"{len(train):,} of scikit-learn's digits. Of the {len(digits)} others they read "
                    f"rightly: {trained}. Below is what the models see: digits, the same digits turned by a "
                    "quarter, and waves folded to pictures."
                ),
                _pictures(digits),
            ],
        )
    ]
    sections += [report.Section(step.verb.capitalize(), _blocks(step)) for step in steps]
    return report.Page(
        "transship: four verbs on two small models",
        "What a pretrained model has learned, used again elsewhere. Every figure on this page was measured "
        "a moment ago, on test data that nothing was chosen by.",
        [report.Section("At a glance", [held, report.KeyFigures(figures)]), *sections],
        report.Provenance(command="transship demo", versions=report.library_versions()),
    )


def _blocks(step: VerbResult) -> list[Any]:
    rows = list(step.figures)
    shares = [round(100 * value, 1) for value in step.figures.values()]
    drawn = report.figures.bars(
        rows,
        {step.unit: shares},
        label_title="model",
        value_title=f"{step.unit} [%]",
        caption=f"{step.verb.capitalize()}: {step.unit}; what the verb made is in colour.",
        highlight=step.ours,
    )
    return [report.Text(step.story), drawn, *step.extra]


def _pictures(digits: Digits, count: int = 6) -> Any:
    """Return what the models see: a row of digits, one of turned digits and one of folded waves."""
    waves, _ = signals(count, seed=2)
    scaled = (waves - waves.min()) / (waves.max() - waves.min())
    shown = [digits.images[:count], turned(digits.images[:count]), scaled]
    rows = [np.concatenate([np.pad(image[0], 1) for image in row], axis=1) for row in shown]
    picture = np.concatenate(rows)
    return report.figures.heat_map(
        picture.tolist(),
        rows=[str(place) for place in range(picture.shape[0])],
        columns=[str(place) for place in range(picture.shape[1])],
        row_title="pixel row",
        column_title="pixel column",
        value_title="brightness",
        caption="Digits, the same digits turned by a quarter, and waves of 64 samples folded to 8 × 8.",
        limits=(0.0, 1.0),
        pixels=True,
    )


def write(page: report.Page, folder: Path) -> Path:
    """Write the page into the demo's folder, in place of an earlier one."""
    return report.html.write(page, folder / "report.html", force=True)
