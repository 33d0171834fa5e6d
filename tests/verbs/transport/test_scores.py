"""Fine-tuning curves from the untouched and from the transported target, with every kind of head."""

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from transship.data import wrap
from transship.errors import OptionError
from transship.verbs.transport import transport
from transship.verbs.transport.scores import milestones, warm_start


@pytest.fixture(scope="module")
def moved(kit):
    """A source, its fine-tune, the source in another order of units; labels are the fine-tune's answers."""
    source = kit.tiny_vit()
    tuned, twin = kit.nudge(source, size=0.5), kit.permuted_vit(source)
    images, test = kit.pictures(200), kit.pictures(100, seed=1)
    data = wrap(images, kit.logits(tuned, images).argmax(1).numpy(), kind="array", name="train")
    held = wrap(test, kit.logits(tuned, test).argmax(1).numpy(), kind="array", name="test")
    return (source, tuned, twin), data, held


GIVEN = {"method": "theseus", "strength": 1.0, "batches": 3, "warm_start": 6}


def test_a_warm_start_begins_where_the_transport_ends(moved):
    models, data, held = moved
    result = transport(*models, data=data, test=held, **GIVEN)
    warm, (_, untouched, transported) = result.measured.warm, result.measured.rows
    assert [point.step for point in warm.target] == list(milestones(6)) == [0, 1, 2, 3, 6]
    assert (warm.labels, warm.head) == (96, "its own head")
    assert warm.target[0].accuracy == untouched.own_head
    assert warm.transported[0].accuracy == transported.own_head > 0.95
    assert warm.transported[0].loss < warm.target[0].loss
    assert warm.target[-1].loss != warm.target[0].loss
    again = warm_start(
        result,
        (list(data.inputs[:50]), torch.as_tensor(data.labels[:50])),
        (list(held.inputs), torch.as_tensor(held.labels)),
        steps=(0, 2),
    )
    assert again.target[0] == warm.target[0]
    assert result.summary()["measured"]["warm"]["labels"] == 96
    assert result.at(0.5).measured is None


def test_fine_tunes_learn_what_they_are_taught(moved):
    models, data, held = moved
    result = transport(*models, data=data, test=held, **GIVEN)
    rows = list(data.inputs[:40]), torch.as_tensor(data.labels[:40])
    curves = warm_start(result, rows, rows, steps=(0, 60), rate=1e-3)
    assert curves.target[-1].loss < 0.5 * curves.target[0].loss
    before = {name: value.clone() for name, value in result.target.model.model.named_parameters()}
    warm_start(result, rows, rows, steps=(0, 3), rate=1e-3)
    for name, value in result.target.model.model.named_parameters():
        assert torch.equal(value, before[name])


def test_a_carried_head_is_where_its_fine_tune_begins(moved):
    models, data, held = moved
    result = transport(*models, data=data, test=held, **{**GIVEN, "method": "carry"})
    warm, (_, untouched, transported) = result.measured.warm, result.measured.rows
    assert warm.head == "a carried head"
    assert warm.target[0].accuracy == pytest.approx(untouched.carried_head, abs=1e-9)
    assert warm.transported[0].accuracy == pytest.approx(transported.carried_head, abs=1e-9)


def test_a_target_without_the_classes_begins_with_a_new_head(moved, kit):
    (source, tuned, _), data, held = moved
    target = kit.permuted_vit(source)
    two = [wrap(each.inputs, np.arange(len(each)) % 7, kind="array", name=each.name) for each in (data, held)]
    result = transport(source, tuned, target, data=two[0], test=two[1], **GIVEN, validation=False)
    warm = result.measured.warm
    assert warm.head == "a new head"
    # of zeros: the first class
    assert warm.target[0] == warm.transported[0]
    assert warm.target[0].accuracy == pytest.approx(float((two[1].labels == 0).mean()))


def test_the_curves_are_on_the_page(moved, tmp_path):
    models, data, held = moved
    result = transport(*models, data=data, test=held, **GIVEN)
    page = result.report(tmp_path / "page.html").read_text()
    assert "steps of fine-tuning" in page
    assert "from the transported" in page


def test_what_cannot_be_fine_tuned_is_refused_before_the_work(moved):
    def refuse(what, done, total):
        raise AssertionError("work began")

    models, data, held = moved
    for given, right in (
        ({"data": data}, "--warm-start: fine-tuning curves are measured on test rows; add --test DATA"),
        ({"data": data.inputs, "test": held}, "has no labels to fine-tune on"),
    ):
        with pytest.raises(OptionError, match=right):
            transport(*models, **given, **GIVEN, progress=refuse)


def test_the_command_line_prints_the_curves(moved, tmp_path):
    from transship.cli import group

    models, data, held = moved
    for name, model in zip(("a", "tuned", "b"), models, strict=True):
        model.save_pretrained(tmp_path / name)
    for name, rows in (("data", data), ("test", held)):
        np.savez(tmp_path / name, array=rows.inputs, label=rows.labels)
    words = ["transport", *(str(tmp_path / name) for name in ("a", "tuned", "b", "out"))]
    words += ["--data", str(tmp_path / "data.npz"), "--test", str(tmp_path / "test.npz"), "--batches", "3"]
    words += ["--method", "theseus", "--strength", "1", "--prepared", str(tmp_path / "kept")]
    done = CliRunner().invoke(group, [*words, "--warm-start", "2"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    table = [line.split() for line in done.output.splitlines()]
    steps = next(row for row in table if row == ["fine-tune", "0", "1", "2"])
    curves = [row for row in table if row[:1] == ["from"]]
    assert len(curves) == 2
    assert all(0 <= float(each) <= 1 for row in curves for each in row[-len(steps[1:]) :])
