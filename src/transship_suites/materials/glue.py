"""GLUE as questions with short answers (`glue.toml`): prompts, the rows of its files, how answers count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from transship.errors import MissingError
from transship_suites.materials.origins import hub_folder
from transship_suites.runner import read_toml

HUB = "nyu-mll/glue"


@dataclass(frozen=True)
class Question:
    """One task.

    Attributes:
        title: as tables call it.
        prompt: with the row's columns in braces.
        answers: by class; empty for similarity, whose answer is a number.
        test: the split that is measured on; labels of GLUE's test split are not public.
    """

    title: str
    prompt: str
    answers: Sequence[str] = ()
    test: str = "validation"

    def answer(self, label: float) -> str:
        return self.answers[int(label)] if self.answers else f"{float(label):.1f}"

    def score(self, answers: Sequence[str], wanted: Sequence[str]) -> float:
        """Return the share of exact answers; for similarity Spearman's ρ, no number counting as 0."""
        if self.answers:
            return sum(map(str.__eq__, answers, wanted)) / len(wanted)
        from scipy.stats import spearmanr  # declarations import this file

        given, truth = list(map(_number, answers)), list(map(_number, wanted))
        if len(set(given)) < 2 or len(set(truth)) < 2:
            return 0.0  # a constant has no rank
        return float(spearmanr(given, truth)[0])


GLUE = {task: Question(**about) for task, about in read_toml(Path(__file__).with_suffix(".toml")).items()}


def questions(task: str, split: str, most: int | None, seed: int) -> tuple[list[str], list[str]]:
    """Return prompts and wanted answers of a GLUE task, or `most` of them drawn by the seed."""
    question = GLUE[task]
    rows = _stored(task, question.test if split == "test" else "train")
    order = np.random.default_rng(seed).permutation(len(rows)) if most is not None else range(len(rows))
    chosen = [rows[int(row)] for row in list(order)[:most]]
    return [question.prompt.format(**row) for row in chosen], [
        question.answer(row["label"]) for row in chosen
    ]


@cache
def _stored(task: str, split: str) -> list[dict[str, Any]]:
    """Return the rows of one split as they lie in their parquet files."""
    import pyarrow.parquet  # declarations import this file

    folder = hub_folder(HUB) / task
    files = sorted(folder.glob(f"{split}-*.parquet"))
    if not files:
        raise MissingError(
            f"there is no {split}-*.parquet", where=str(folder), fix=f"fetch {HUB} from the hub again"
        )
    return [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
