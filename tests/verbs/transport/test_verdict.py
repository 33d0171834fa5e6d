"""What a result is held against: what is worse than it should be is said, and what moved nothing says so."""

import dataclasses

import numpy as np
import pytest
import torch

from transship.data import wrap
from transship.errors import OutputError
from transship.report import short_name
from transship.verbs.transport import transport
from transship.verbs.transport.rows import draw
from transship.verbs.transport.runner import best_of, doublings, search
from transship.verbs.transport.scores import Row, Scores
from transship.verbs.transport.verdict import Check, on_inputs, on_test


def scores(*, source, probe, result, majority=0.5, metric="accuracy"):
    rows = (
        Row("source, fine-tuned", own_head=source),
        Row("target, untouched", probe=probe, carried_head=probe),
        Row("target, transported", probe=probe, carried_head=result),
    )
    return Scores(rows, metric, "/data/sms/test.parquet", 600, probe_labels=320, majority=majority)


def verdict(**figures):
    return on_test(scores(**figures), inputs=374, moved=True)


def test_a_result_near_its_source_has_no_warning():
    result = verdict(source=0.98, probe=0.95, result=0.96)
    assert result.warnings == ()
    assert result.sentence.startswith("96.0 % of the 600 rows of test.parquet are answered as labelled")
    for part in ("fine-tuned source 98.0 %", "untouched target's probe 95.0 %", "most common class 50.0 %"):
        assert part in result.sentence


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        (
            {"source": 0.9, "probe": 0.6, "result": 0.68, "majority": 0.843},
            "always answering the most common",
        ),
        ({"source": 0.9, "probe": 0.967, "result": 0.9}, "a probe on the untouched target is better"),
        (
            {"source": 0.98, "probe": 0.9, "result": 0.92},
            "6.0 points below the fine-tuned source: the target's",
        ),
        ({"source": 0.98, "probe": 0.96, "result": 0.961, "majority": 0.97}, "most common class"),
        (
            {"source": 0.995, "probe": 0.96, "result": 0.961},
            "its head was fitted on 374 inputs, so give more",
        ),
    ],
)
def test_what_speaks_against_a_result_is_said_with_why(figures, said):
    if "374" in said:
        figures["probe"] = 0.97
        figures["result"] = 0.962
    assert any(said in warning for warning in verdict(**figures).warnings)


def test_values_are_told_as_rank_correlations():
    result = verdict(source=0.9, probe=0.7, result=0.88, majority=None, metric="rank correlation")
    assert "the rank correlation with the labels of 600 rows of test.parquet is 0.880" in result.sentence
    assert result.warnings == ()


def test_validation_speaks_where_nothing_was_tested():
    near = on_inputs(Check(0.8, 80, 0.82, 0.5), 374)
    assert near.warnings == ()
    assert (
        "80.0 % of the 80 validation rows are answered as labelled (fine-tuned source 82.0 %" in near.sentence
    )
    worst, far = on_inputs(Check(0.5, 80, 0.9, 0.843), 374).warnings
    assert "most common class (50.0 % against 84.3 %" in worst
    assert "40.0 points below the fine-tuned source: its head was fitted on 374 inputs" in far


def test_agreement_speaks_where_there_are_no_labels():
    assert on_inputs(Check(0.98, 60), 320).warnings == ()
    unlabelled = on_inputs(Check(0.9, 60, fitted=True), None)
    assert (
        "90.0 % of the 60 inputs that maps were fitted on are answered as the fine-tuned"
        in unlabelled.sentence
    )
    assert unlabelled.warnings == (
        "it may be up to 10.0 points below the fine-tuned source: the moved weights recover a part only; "
        "--method carry fits a head too",
    )


@pytest.mark.parametrize("labelled", [True, False])
def test_what_is_written_is_checked_after_its_finish(kit, labelled):
    source = kit.tiny_vit(16)
    tuned, target = kit.nudge(source, size=0.3), kit.tiny_vit(24, seed=4)
    images = kit.pictures(160)
    data = wrap(images, [str(row % 5) for row in range(160)] if labelled else None, kind="array")
    result = transport(source, tuned, target, data=data, method="carry", batches=1, finish="weights:4")
    drawn = draw(data, batches=1)
    inputs = drawn.validation if labelled else drawn.held_out
    wanted = drawn.labels if labelled else kit.logits(tuned, np.stack(list(inputs))).argmax(1)
    right = kit.logits(result.model(), np.stack(list(inputs))).argmax(1) == wanted
    assert result.check.labelled is labelled
    assert result.check.share == pytest.approx(float(right.double().mean()), abs=0.02)
    assert result.verdict.sentence.startswith(f"{100 * result.check.share:.1f} % of the {len(inputs)}")


def test_names_are_those_of_files_and_not_where_they_lie():
    assert short_name("/home/somebody/models/minilm-l6") == "minilm-l6"
    assert short_name("./tuned") == "tuned"
    assert short_name("~/a/b/") == "b"
    assert short_name("sentence-transformers/all-MiniLM-L6-v2") == "sentence-transformers/all-MiniLM-L6-v2"
    assert short_name("C:\\models\\tuned") == "tuned"
    assert short_name("minilm-l6") == "minilm-l6"


def test_the_page_opens_with_the_verdict_and_the_test_and_says_when_nothing_was_moved(kit):
    source = kit.tiny_vit(16)
    models = source, kit.nudge(source, size=0.3), kit.tiny_vit(24, seed=4)
    images = kit.pictures(96)
    labels = kit.logits(models[1], images).argmax(1).tolist()
    data = wrap(images, [f"LABEL_{label}" for label in labels], kind="array")
    given = {"data": data.subset(np.arange(64)), "test": data.subset(np.arange(64, 96)), "batches": 1}
    still = transport(*models, method="carry", strength=0.0, **given)
    titles = [section.title for section in still.page().visible]
    assert titles[:2] == ["Result", "Test"]
    assert any(warning.startswith("nothing was moved") for warning in still.warnings)
    assert " was not moved to " in still.page().summary
    figures = {figure.label: figure.value for figure in still._key_figures().figures}
    assert figures["moved"] == "nothing"
    assert not {"tensors moved", "norm kept"} & set(figures)
    moved = transport(*models, method="carry", strength=1.0, **given)
    assert not any("nothing was moved" in warning for warning in moved.warnings)
    assert still.summary()["warnings"] == still.warnings
    common = max(np.bincount(labels[64:])) / 32
    assert still.measured.majority == common
    bad = dataclasses.replace(still.measured, majority=1.0)
    assert "do not use it" in dataclasses.replace(still, measured=bad).warnings[0]


def test_validation_is_told_of_the_head_that_is_written(kit):
    source = kit.tiny_vit(16)
    tuned, target = kit.nudge(source, size=0.3), kit.tiny_vit(24, seed=4)
    images = kit.pictures(160)
    labels = kit.logits(tuned, images).argmax(1)
    data = wrap(images, [str(label) for label in labels.tolist()], kind="array")
    if len(data.label_names) < 5:
        data = wrap(images, [str(row % 5) for row in range(160)], kind="array")
    result = transport(source, tuned, target, data=data, method="carry", strength="auto", batches=1)
    assert result.choice.by == "validation"
    drawn = draw(data, batches=1)
    right = kit.logits(result.model(), np.stack(list(drawn.validation))).argmax(1) == drawn.labels
    share = float(right.double().mean())
    assert result.metrics["validation, as written"] == pytest.approx(share, abs=0.02)
    assert f"{100 * result.metrics['validation, as written']:.1f} % of the" in result.verdict.sentence


def test_copies_of_a_row_play_one_part():
    texts = [f"text {row % 60} of many" for row in range(160)]
    data = wrap(texts, [str(row % 2) for row in range(160)], kind="text", name="copies")
    drawn = draw(data, batches=1, batch_size=24, head_inputs=100)
    fitted, chosen, held = set(drawn.head), set(drawn.validation), set(drawn.held_out)
    assert len(drawn.calibration) == 24
    assert not fitted & chosen
    assert not set(drawn.calibration) & chosen
    assert len(chosen) == len(drawn.validation)
    assert drawn.held_out_fitted or not fitted & held


def test_rows_without_copies_are_drawn_as_they_lie():
    texts = [f"text {row}" for row in range(2000)]
    data = wrap(texts, [str(row % 2) for row in range(2000)], kind="text", name="rows")
    drawn = draw(data, batches=10)
    parts = [drawn.head, drawn.validation, drawn.held_out]
    assert [len(part) for part in parts] == [1000, 400, 320]
    assert len({text for part in parts for text in part}) == 1720


GRID = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)


@pytest.mark.parametrize("best", GRID)
def test_a_search_finds_the_top_of_a_curve_in_fewer_tries_than_the_grid_has(best):
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    tried = []

    def score() -> float:
        tried.append(float(model.weight))
        return -abs(np.log2(tried[-1] + 0.1) - np.log2(best + 0.1))

    result, curve = search(model, {"weight": torch.ones(1, 1)}, score, grid=GRID)
    assert result == best
    assert dict(curve)[result] == max(score for _, score in curve)
    assert [strength for strength, _ in curve] == sorted(tried)
    assert len(tried) <= 10
    assert best > 1 or len(tried) <= 7


def test_a_search_of_a_few_strengths_tries_all():
    assert doublings([0.0, 1.0]) == [0.0, 1.0]
    assert doublings(GRID) == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0]
    assert best_of({0.0: 0.5, 1.0: 0.5 + 1e-15, 2.0: 0.4}) == 0.0


def test_an_adapter_that_does_nothing_is_written_by_force_alone(kit, tmp_path):
    peft = pytest.importorskip("peft")
    from transformers import GPT2Config, GPT2Model

    base, wide = (
        kit.spread(
            GPT2Model(GPT2Config(vocab_size=40, n_embd=width, n_layer=2, n_head=2, n_positions=16)), width
        )
        for width in (16, 24)
    )
    base.save_pretrained(tmp_path / "a")
    wide.save_pretrained(tmp_path / "b")
    config = peft.LoraConfig(r=3, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)
    peft.get_peft_model(base, config).save_pretrained(tmp_path / "lora")
    ids = torch.randint(0, 40, (32, 8), generator=torch.Generator().manual_seed(0))
    places = [str(tmp_path / name) for name in ("a", "lora", "b")]

    def preprocess(rows):
        return {"input_ids": torch.stack([torch.as_tensor(row) for row in rows])}

    given = {"data": ids, "method": "theseus", "batches": 1, "preprocess": preprocess}
    result = transport(*places, strength=0.0, **given)
    assert result.does_nothing
    with pytest.raises(OutputError, match="nothing was moved, so this adapter would do nothing"):
        result.save(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    result.save(tmp_path / "out", force=True)
    assert (tmp_path / "out" / "adapter_model.safetensors").exists()
    assert not transport(*places, strength=1.0, **given).does_nothing
