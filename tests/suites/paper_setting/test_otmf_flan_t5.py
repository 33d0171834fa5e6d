"""OTMF's own setting for language, end to end on tiny T5 models and a tiny GLUE."""

from __future__ import annotations

import copy

import pytest
import torch

from transship_suites.materials.glue import GLUE, HUB
from transship_suites.otmf.names import INDIVIDUAL, OTMF
from transship_suites.otmf_flan_t5 import suite

OPTIONS = suite.scales["paper"].options


def t5(words: int):
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=words,
            d_model=16,
            d_kv=8,
            d_ff=32,
            num_layers=1,
            num_heads=2,
            decoder_start_token_id=0,
            eos_token_id=words - 1,
            tie_word_embeddings=False,
        )
    )


def write(hub, tasks):
    base = t5(len([*hub.special, *hub.words]) + 1)
    hub.model(OPTIONS["base"], base, words=True)
    for place, task in enumerate(tasks):
        torch.manual_seed(place)
        tuned = copy.deepcopy(base)
        with torch.no_grad():
            for parameter in tuned.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter) * parameter.abs().mean())
        hub.model(OPTIONS["tuned"].format(task=task), tuned, words=True)
    texts = [f"a {colour} question" for colour in hub.colours] * 2
    columns = {
        "cola": {"sentence": texts},
        "mnli": {"premise": texts, "hypothesis": texts},
        "stsb": {"sentence1": texts, "sentence2": texts},
    }
    for task in tasks:
        labels = [0.4 * row for row in range(8)] if task == "stsb" else [row % 2 for row in range(8)]
        for split in ("train", GLUE[task].test):
            rows = {**columns[task], "label": labels, "idx": list(range(8))}
            hub.table(f"{HUB}/{task}/{split}-00000-of-00001.parquet", rows, {})


@pytest.mark.slow
def test_the_suite_merges_tiny_models_and_prints_the_papers_figures(hub):
    tasks = ["cola", "mnli", "stsb"]
    write(hub, tasks)
    result = hub.bench(
        "otmf-flan-t5",
        tasks=tasks,
        methods={"average": ("average", {}), OTMF: ("otmf", {"iterations": 2, "batch_size": 4})},
        joint={"joint TIES": ("ties", {"density": 0.2})},
        inputs=6,
        test=4,
    )
    (table,) = result.tables
    cells, paper = (dict(zip(table.rows, part, strict=True)) for part in (table.cells, table.paper))
    mnli, qqp = table.columns.index("MNLI"), table.columns.index("QQP")
    assert (cells[OTMF][mnli].seeds, paper[OTMF][mnli]) == (3, 77.3)
    assert cells[OTMF][qqp].seeds == 0
    assert paper[INDIVIDUAL][table.columns.index("mean")] == 84.6
    assert {claim.verdict for claim in result.claims} <= {"confirmed", "refuted", "undecided"}


def test_answers_count_when_they_are_exact_and_similarity_by_rank():
    assert GLUE["cola"].score(["acceptable", "acceptable ", ""], ["acceptable"] * 3) == pytest.approx(1 / 3)
    assert GLUE["stsb"].answer(3.25) in ("3.2", "3.3")
    assert GLUE["stsb"].score(["1.0", "2.0", "no", "5.0"], ["1.0", "2.0", "0.4", "5.0"]) == pytest.approx(1.0)
    assert GLUE["stsb"].score(["1.0", "1.0"], ["1.0", "5.0"]) == 0.0
