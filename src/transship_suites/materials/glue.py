"""GLUE as questions with short answers: the prompts that FusionBench's Flan-T5 fine-tunes were trained with.

The wording is theirs, spelling included (github.com/tanganke/fusion_bench, MIT): a fine-tune knows no other.
Cheap to import.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    answers: tuple[str, ...] = ()
    test: str = "validation"

    def answer(self, label: float) -> str:
        """Return the wanted answer of a row."""
        return self.answers[int(label)] if self.answers else f"{float(label):.1f}"

    def score(self, answers: Sequence[str], wanted: Sequence[str]) -> float:
        """Return the share of exact answers; for similarity Spearman's ρ, no number counting as 0."""
        if self.answers:
            return sum(one == other for one, other in zip(answers, wanted, strict=True)) / len(wanted)
        from scipy.stats import spearmanr

        made, truth = [_number(one) for one in answers], [_number(one) for one in wanted]
        if len(set(made)) < 2 or len(set(truth)) < 2:
            return 0.0  # a constant has no rank
        return float(spearmanr(made, truth)[0])


GLUE = {
    "cola": Question(
        "CoLA",
        'Indicate if the following sentence is grammatically correct or not: "{sentence}". '
        "Answere 'acceptable' or 'unacceptable'.",
        ("unacceptable", "acceptable"),
    ),
    "mnli": Question(
        "MNLI",
        "Does the premise: '{premise}' logically imply, contradict, or is neutral to the hypothesis: "
        "'{hypothesis}'? Answere with 'entailment', 'contradiction', or 'neutral'.",
        ("entailment", "neutral", "contradiction"),
        "validation_matched",
    ),
    "mrpc": Question(
        "MRPC",
        "Are the following sentences '{sentence1}' and '{sentence2}' conveying the same meaning? "
        "Answere with 'yes' or 'no'.",
        ("no", "yes"),
    ),
    "qnli": Question(
        "QNLI",
        "Given the context: '{sentence}', does the question '{question}' have an answer based on the "
        "information provided? Answer with 'yes' or 'no'.",
        ("yes", "no"),
    ),
    "qqp": Question(
        "QQP",
        "Do the questions '{question1}' and '{question2}' have the same intent? Answere with 'yes' or 'no'.",
        ("no", "yes"),
    ),
    "rte": Question(
        "RTE",
        "Does the text: '{sentence1}' entail that '{sentence2}' is true? Provide 'yes' or 'no'.",
        ("yes", "no"),
    ),
    "sst2": Question(
        "SST2",
        "Given the sentence '{sentence}', determine the sentiment. Is it positive or negative?",
        ("negative", "positive"),
    ),
    "stsb": Question(
        "STSB",
        "Consider the sentences '{sentence1}' and '{sentence2}'. On a scale from 1 (completely different) "
        "to 5 (completely similar), rate the similarity.",
    ),
}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
