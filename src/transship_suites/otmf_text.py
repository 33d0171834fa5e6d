"""OTMF on a real sentence encoder: six text fine-tunes with heads of their own, merged one after another.

The sister of `otmf_continual`: the same rows and controls on MiniLM, whose upper blocks are fine-tuned.
"""

from __future__ import annotations

from transship_suites.materials.origins import packaged_models, text_data
from transship_suites.otmf.declared import small_suite
from transship_suites.otmf.names import TEXT_MODEL
from transship_suites.runner import MeasuredBy

TASKS = ("supersenses", "trec", "sst2", "news", "banking", "spam")


_SETTING = (
    "the paper merges CLIP ViT-B/32 fine-tuned on eight image sets; here the upper two blocks of six of "
    "MiniLM-L6, fine-tuned on six sets of short texts. Its own text table (Flan-T5 on GLUE) has no heads"
)

suite = small_suite(
    _SETTING,
    "Tables 1, 2, 4 and 5, Figure 5",
    title="OTMF and its rivals on MiniLM, one model after another",
    summary=(
        "The upper two blocks of MiniLM-L6 are fine-tuned on six text tasks with heads of their own "
        f"({', '.join(TASKS)}), texts cut to 16 tokens: a linear probe, then blocks and head. The fine-tunes "
        "are merged one after another in three orders. Heads see a quarter of each task's training inputs: "
        "with labels where they are tuned, without where they are carried from the fine-tune's logits. ACC "
        "is the mean test accuracy after the last model, BWT leaves the last task out."
    ),
    quick={
        "tasks": ["trec", "spam", "news"],
        "rows": 400,
        "test": 150,
        "blocks": 1,
        "tokens": 12,
        "tune": 40,
        "rate": 5e-4,
    },
    full={
        "tasks": list(TASKS),
        "rows": 2000,
        "test": 400,
        "blocks": 2,
        "tokens": 16,
        "tune": 250,
        "rate": 5e-4,
    },
    minutes=105,
    run=MeasuredBy("transship_suites.otmf.small:TextMerging"),
    needs=(*text_data(*TASKS), *packaged_models(TEXT_MODEL)),
)
