"""Transports measured on rows that nothing was chosen on, and on the domain that the target knew before."""

import dataclasses

import numpy as np
import pytest
import torch

from transship.activations import Readout, load_model
from transship.data import wrap
from transship.errors import DataError, OptionError
from transship.verbs.transport import transport
from transship.verbs.transport.methods.carry import Carry
from transship.verbs.transport.rows import draw
from transship.verbs.transport.scores import probe, reuse_head


def refuse(what, done, total):
    raise AssertionError("work began")


def share(model, kit, images, labels) -> float:
    return float((kit.logits(model, images).argmax(1) == labels).double().mean())


@pytest.fixture(scope="module")
def twins(kit):
    """A source, its fine-tune, and the source with its hidden spaces in another order; labels are the
    fine-tune's answers, those of the original domain the target's.
    """
    from types import SimpleNamespace

    source = kit.tiny_vit()
    tuned, target = kit.nudge(source, size=0.3), kit.permuted_vit(source)
    train, test, old = kit.pictures(160), kit.pictures(90, seed=1), kit.pictures(70, seed=2)
    return SimpleNamespace(
        models=(source, tuned, target),
        data=wrap(train, kit.logits(tuned, train).argmax(1).numpy(), kind="array", name="train"),
        test=wrap(test, kit.logits(tuned, test).argmax(1).numpy(), kind="array", name="test"),
        original=wrap(old, kit.logits(target, old).argmax(1).numpy(), kind="array", name="old"),
    )


def test_a_twin_is_measured_with_every_head_and_on_what_it_forgets(twins, kit):
    _, tuned, target = twins.models
    result = transport(
        *twins.models,
        data=twins.data,
        test=twins.test,
        original=twins.original,
        method="theseus",
        strength=1.0,
        batches=4,
    )
    theirs, untouched, moved = result.measured.rows
    test, old = twins.test.inputs, twins.original.inputs
    labels, answers = torch.as_tensor(twins.test.labels), torch.as_tensor(twins.original.labels)
    assert theirs.own_head == moved.own_head == moved.reused_head == 1.0, "it is the permuted fine-tune"
    assert untouched.own_head == share(target, kit, test, labels) < 1.0
    assert untouched.original == 1.0
    assert moved.original == share(result.model(), kit, old, answers) < 1.0
    assert theirs.original == share(tuned, kit, old, answers)
    assert (theirs.reused_head, moved.carried_head, moved.original_carried) == (None, None, None)
    known = draw(twins.data, batches=4)
    features = Readout(load_model(tuned)).all(list(known.calibration)).features
    for row, model in ((untouched, target), (moved, result.model())):
        rows, train = (
            Readout(load_model(model)).all(list(part)).features for part in (test, known.calibration)
        )
        probed = probe(train, known.calibration_labels, rows).argmax(1)
        reused = reuse_head(load_model(tuned), train, features, rows).argmax(1)
        right = [float((answers == labels).double().mean()) for answers in (probed, reused)]
        assert [row.probe, row.reused_head] == right
    assert result.measured.probe_labels == 128
    assert result.measured.metric == "accuracy"
    assert {"test", "original"} <= {row.role for row in result.inputs}
    assert result.at(2.0).measured is None, "another strength was not measured"
    assert result.at(2.0).metrics == {}


def test_a_carried_head_is_measured_beside_the_targets_own_and_one_on_the_untouched_target(twins, kit):
    given = {
        "data": twins.data,
        "strength": 1.0,
        "batches": 2,
        "test": twins.test,
        "original": twins.original,
    }
    result = transport(*twins.models, method=Carry(body="theseus", penalty=0.1), **given)
    plain = transport(*twins.models, method=Carry(body="none", penalty=0.1), **given)
    _, untouched, moved = result.measured.rows
    test, old = twins.test.inputs, twins.original.inputs
    labels, answers = torch.as_tensor(twins.test.labels), torch.as_tensor(twins.original.labels)
    assert moved.carried_head == share(result.model(), kit, test, labels)
    assert moved.original_carried == share(result.model(), kit, old, answers)
    assert untouched.carried_head == share(plain.model(), kit, test, labels)
    headless = dataclasses.replace(result, head=None).model()
    assert moved.own_head == share(headless, kit, test, labels)
    assert moved.original == share(headless, kit, old, answers)
    assert "what is written answers with its carried head" in result.measured.notes


def test_test_labels_meet_classes_by_name_even_where_one_is_missing(twins, kit):
    source, tuned, target = twins.models
    names = ("wolf", "bear", "sea lion", "ant", "cow")
    headed = [kit.nudge(model, size=0.0) for model in (source, tuned, target)]
    for model in headed:
        model.config.id2label = dict(enumerate(names))
    kept = twins.test.labels != 1
    test = wrap(
        twins.test.inputs[kept], [names[label].upper() for label in twins.test.labels[kept]], kind="array"
    )
    data = wrap(twins.data.inputs, [names[label] for label in twins.data.labels], kind="array")
    given = {"method": "theseus", "strength": 1.0, "batches": 4}
    result = transport(*headed, data=data, test=test, **given)
    untouched = share(target, kit, test.inputs, torch.as_tensor(twins.test.labels[kept]))
    assert [row.own_head for row in result.measured.rows] == [1.0, untouched, 1.0]
    plain = transport(*twins.models, data=twins.data, test=twins.test.subset(kept), **given)
    assert [row.probe for row in result.measured.rows] == [row.probe for row in plain.measured.rows]


def test_rows_that_something_was_fitted_on_are_left_out_and_said(twins):
    given = {"data": twins.data, "method": "theseus", "strength": 1.0, "batches": 4}
    drawn = draw(twins.data, batches=4)
    fitted, labels = np.stack(list(drawn.calibration)), drawn.calibration_labels.numpy()
    mixed = wrap(
        np.concatenate([fitted, twins.test.inputs[:30]]),
        np.concatenate([labels, twins.test.labels[:30]]),
        kind="array",
        name="mixed",
    )
    result = transport(*twins.models, test=mixed, **given)
    assert result.measured.test_rows == 30
    assert "128 rows of mixed were left out: something was fitted on them" in result.measured.notes
    with pytest.raises(DataError, match="every row of it was used"):
        transport(*twins.models, test=wrap(fitted, labels, kind="array"), progress=refuse, **given)


def test_a_file_with_splits_is_measured_on_its_test_rows(twins):
    both = wrap(
        np.concatenate([twins.data.inputs, twins.test.inputs]),
        np.concatenate([twins.data.labels, twins.test.labels]),
        kind="array",
        splits=["train"] * 160 + ["test"] * 90,
    )
    result = transport(*twins.models, data=both, test=both, method="theseus", strength=1.0, batches=2)
    assert result.measured.test_rows == 90
    assert not result.measured.notes
    with pytest.raises(DataError, match="it has only train rows"):
        transport(*twins.models, data=both, test=both.split("train"), progress=refuse, method="theseus")


def test_what_cannot_be_measured_is_refused_before_any_work(twins, kit):
    bare = wrap(twins.test.inputs, kind="array", name="bare")
    floats = wrap(twins.test.inputs, np.linspace(0.0, 1.0, 90), kind="array")
    for given, sentence in (
        ({"test": bare}, "no labels to measure against"),
        ({"test": floats}, "nothing can be measured on it: the fine-tune tells classes apart"),
        ({"original": floats}, "say nothing about TARGET: the target tells classes apart"),
    ):
        with pytest.raises(DataError, match=sentence):
            transport(*twins.models, data=twins.data, method="theseus", progress=refuse, **given)
    with pytest.raises(OptionError, match="two names or more"):
        transport(*twins.models, data=twins.data, templates=("a {}",), progress=refuse)
    with pytest.raises(OptionError, match="no text tower"):
        transport(*twins.models, data=twins.data, classes=("cat", "dog"), progress=refuse)


def test_unlabelled_data_leaves_the_probe_out_and_says_so(twins):
    given = {"method": "theseus", "strength": 1.0, "batches": 2}
    result = transport(*twins.models, data=twins.data.inputs, test=twins.test, **given)
    assert [row.probe for row in result.measured.rows] == [None] * 3
    assert "the probe was not measured: arrays in memory has no labels" in result.measured.notes
    assert "the original domain was not measured: give --original" in result.measured.caption()


def test_values_are_measured_by_rank_correlation(kit):
    from scipy.stats import spearmanr

    source = kit.tiny_vit(classes=1)
    tuned, target = kit.nudge(source, size=0.3), kit.tiny_vit(48, seed=4, classes=1)
    train, test = kit.pictures(120), kit.pictures(50, seed=1)
    values = [kit.logits(tuned, images)[:, 0].double().numpy() for images in (train, test)]
    result = transport(
        source,
        tuned,
        target,
        data=wrap(train, values[0], kind="array"),
        test=wrap(test, values[1], kind="array"),
        method="theseus",
        strength=1.0,
        batches=2,
    )
    theirs, untouched, moved = result.measured.rows
    assert result.measured.metric == "rank correlation"
    assert theirs.own_head == pytest.approx(1.0)
    for row, model in ((untouched, target), (moved, result.model())):
        wanted = spearmanr(kit.logits(model, test)[:, 0].numpy(), values[1]).statistic
        assert row.own_head == pytest.approx(wanted, abs=1e-6)
    assert theirs.probe > 0.5


def test_an_adapter_is_measured_on_its_base(kit, tmp_path):
    from peft import LoraConfig, get_peft_model
    from transformers import ViTForImageClassification

    source, target = kit.tiny_vit(), kit.tiny_vit(48, seed=4)
    for model, name in ((source, "a"), (target, "b")):
        model.save_pretrained(tmp_path / name)
    torch.manual_seed(0)
    base = ViTForImageClassification.from_pretrained(tmp_path / "a")
    tuned = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    tuned.save_pretrained(tmp_path / "lora")
    images, fresh = kit.pictures(80), kit.pictures(40, seed=1)
    labels = kit.logits(tuned.merge_and_unload(), fresh).argmax(1)
    result = transport(
        *(str(tmp_path / name) for name in ("a", "lora", "b")),
        data=images,
        test=wrap(fresh, labels.numpy(), kind="array"),
        method="theseus",
        strength=1.0,
        batches=2,
    )
    theirs, untouched, moved = result.measured.rows
    assert theirs.own_head == 1.0, "the labels are its own answers"
    assert share(source, kit, fresh, labels) < 1.0
    assert untouched.own_head == share(target, kit, fresh, labels)
    assert moved.own_head == share(result.model(), kit, fresh, labels)
    assert result.adapter
