"""Carried heads: dense ridge, what they keep, what they resize, and when there is none."""

import numpy as np
import pytest
import torch

from transship.activations import load_model
from transship.activations.readout import Readout
from transship.errors import OptionError
from transship.geometry import Moments, ridge
from transship.verbs.transport import Request, Settings, apply, make_plan, prepare, transport
from transship.verbs.transport.methods.carry import Carry


def test_carry_fits_the_dense_ridge_head_onto_the_sources_outputs(layers):
    features, outputs = layers.gaussian(200, 6), layers.gaussian(200, 3, seed=1)
    head = ridge(Moments.of(features, outputs), 0.1)
    x, y = features - features.mean(0), outputs - outputs.mean(0)
    weight = torch.linalg.solve(x.T @ x + 0.1 * (x.T @ x).diagonal().mean() * torch.eye(6).double(), x.T @ y)
    expected = x @ weight + outputs.mean(0)
    torch.testing.assert_close(head.apply(features), expected, atol=1e-10, rtol=0)


def test_carry_through_a_ridge_map_of_features_is_ridge_onto_the_outputs(layers):
    source, target, weight = (
        layers.gaussian(200, 4),
        layers.gaussian(200, 6, seed=1),
        layers.gaussian(4, 3, seed=2),
    )
    direct = ridge(Moments.of(target, source @ weight), 0.05)
    through = ridge(Moments.of(target, source), 0.05)
    torch.testing.assert_close(direct.matrix, through.matrix @ weight, atol=1e-12, rtol=0)


def test_carry_puts_the_dense_ridge_head_into_the_target(kit):
    source, target = kit.tiny_vit(), kit.tiny_vit(48, seed=4)
    tuned, images = kit.nudge(source, size=0.3), kit.pictures(200)
    settings, method = Settings(batches=2, strength=1.0), Carry(body="none", penalty=0.1)
    plan = make_plan(
        Request(source=source, tuned=tuned, target=target, data=images, method=method, settings=settings)
    )
    result = apply(plan, prepare(plan, method), method)
    rows = np.stack(list(plan.draws.head))
    # a third of what is not calibration is held out for comparing methods
    assert result.head.inputs == len(rows) == 200 - (200 - 64) // 3
    x = Readout(load_model(target)).all(list(rows)).features.double()
    y = kit.logits(tuned, rows).double()
    centred = x - x.mean(0)
    second = centred.T @ centred
    penalty = 0.1 * second.diagonal().mean() * torch.eye(48).double()
    weight = torch.linalg.solve(second + penalty, centred.T @ (y - y.mean(0)))
    expected = centred @ weight + y.mean(0)
    torch.testing.assert_close(kit.logits(result.model(), rows).double(), expected, atol=1e-4, rtol=1e-4)
    assert result.moved.dense == {}


def test_carry_with_keep_remembers_the_targets_own_answers(kit):
    source, target = kit.tiny_vit(), kit.tiny_vit(48, seed=4)
    tuned = kit.nudge(source, size=0.5)
    task, old = kit.pictures(256), kit.pictures(256, seed=7) + 2.0
    before = kit.logits(target, old).argmax(1)
    plain = transport(source, tuned, target, data=task, method="carry", options={"body": "none"}, batches=2)
    kept = transport(
        source, tuned, target, data=task, keep=old, method="carry", options={"body": "none"}, batches=2
    )
    same = [
        float((kit.logits(each.model(), old).argmax(1) == before).double().mean()) for each in (plain, kept)
    ]
    assert kept.head.kept > 200
    assert same[1] > same[0] + 0.1


def test_carry_resizes_the_head_and_its_labels(kit, tmp_path):
    from transformers import ViTForImageClassification

    source, target = kit.tiny_vit(classes=5), kit.tiny_vit(48, seed=4, classes=3)
    tuned = kit.nudge(source, size=0.3)
    tuned.config.id2label = dict(enumerate("abcde"))
    source.save_pretrained(tmp_path / "a")
    tuned.save_pretrained(tmp_path / "tuned")
    target.save_pretrained(tmp_path / "b")
    folders = [str(tmp_path / name) for name in ("a", "tuned", "b")]
    result = transport(
        *folders, data=kit.pictures(128), method="carry", options={"body": "theseus"}, batches=2
    )
    result.save(tmp_path / "out")
    loaded = ViTForImageClassification.from_pretrained(tmp_path / "out")
    assert loaded.config.id2label == dict(enumerate("abcde"))
    fresh = kit.pictures(8, seed=3)
    torch.testing.assert_close(
        kit.logits(loaded.eval(), fresh), kit.logits(result.model(), fresh), atol=1e-5, rtol=1e-4
    )


def test_only_a_carried_head_keeps_and_only_one_with_the_same_outputs(kit):
    source = kit.tiny_vit()
    tuned, images = kit.nudge(source), kit.pictures(64)

    def refuse(what, done, total):
        raise AssertionError("it was refused too late")

    arguments = {"data": images, "keep": images, "batches": 1, "progress": refuse}
    with pytest.raises(OptionError, match="only a carried head keeps"):
        transport(source, tuned, kit.tiny_vit(48, seed=4), method="theseus", **arguments)
    with pytest.raises(OptionError, match="no head with the same outputs"):
        transport(source, tuned, kit.tiny_vit(48, seed=4, classes=7), method="carry", **arguments)


def test_a_bare_fine_tune_has_no_head_to_carry(kit):
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    config = {
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 7,
        "num_channels": 1,
    }
    source = ViTModel(
        ViTConfig(hidden_size=16, intermediate_size=32, **config), add_pooling_layer=False
    ).eval()
    target = ViTModel(
        ViTConfig(hidden_size=24, intermediate_size=48, **config), add_pooling_layer=False
    ).eval()
    tuned = kit.nudge(source, size=0.3)
    with pytest.raises(OptionError, match="no head to carry"):
        transport(source, tuned, target, data=kit.pictures(64), method="carry", batches=1, strength=1.0)
    result = transport(source, tuned, target, data=kit.pictures(64), method="theseus", batches=1)
    assert result.choice.by == "agreement"
