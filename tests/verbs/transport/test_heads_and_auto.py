"""Carried heads, the automatic choice, path steps and evaluation, on small models whose answers are known."""

import numpy as np
import pytest
import torch

from transship.activations import load_model
from transship.activations.readout import Readout
from transship.errors import OptionError
from transship.verbs.transport import Request, Settings, apply, kinship, make_plan, prepare, transport
from transship.verbs.transport.methods.carry import Carry
from transship.verbs.transport.methods.identity import Identity
from transship.verbs.transport.models import zero_shot


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
        float((kit.logits(one.model(), old).argmax(1) == before).double().mean()) for one in (plain, kept)
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


def test_relatives_are_told_by_their_weights(kit):
    source = kit.tiny_vit()
    assert kinship(load_model(source), load_model(kit.nudge(source, size=0.2))).related
    strangers = kinship(load_model(source), load_model(kit.tiny_vit(seed=4)))
    assert not strangers.related
    assert "strangers" in strangers.sentence()
    assert not kinship(load_model(source), load_model(kit.tiny_vit(48))).cosines


@pytest.mark.slow
def test_a_published_relative_is_told_block_by_block(models_dir):
    source = load_model(models_dir / "minilm-l6")
    relative = kinship(source, load_model(models_dir / "bge-small"))
    assert relative.partners == {2 * block: block for block in range(6)}
    assert "relatives" in relative.sentence()
    stranger = kinship(source, load_model(models_dir / "granite-small"))
    assert stranger.cosines
    assert not stranger.partners
    assert "strangers" in stranger.sentence()


def grown(source, kit, *, seed: int = 4):
    """A deeper relative: its even blocks are near copies of the source's, the odd ones strangers."""
    import copy

    deep = kit.tiny_vit(32, 4, seed=seed)
    near = kit.nudge(source, size=0.1, seed=8)
    for place, block in enumerate(near.vit.layers):
        deep.vit.layers[2 * place] = copy.deepcopy(block)
    return deep.eval()


def test_identity_moves_an_update_to_the_near_copies_of_its_blocks(kit):
    source = kit.tiny_vit()
    tuned, deep = kit.nudge(source, size=0.3), grown(source, kit)
    found = kinship(load_model(source), load_model(deep))
    assert found.related
    assert found.partners == {0: 0, 2: 1}
    options = {"data": kit.pictures(64), "method": "identity", "strength": 1.0, "batches": 2}
    result = transport(source, tuned, deep, **options)
    before, after = dict(source.named_parameters()), dict(tuned.named_parameters())
    for name in after:
        stem, _, rest = name.partition("vit.layers.")
        if stem:  # outside the blocks
            continue
        block, _, leaf = rest.partition(".")
        moved = result.moved.dense[f"vit.layers.{2 * int(block)}.{leaf}"]
        torch.testing.assert_close(moved, after[name].detach() - before[name].detach())
        assert f"vit.layers.{2 * int(block) + 1}.{leaf}" not in result.moved.dense
    assert not [one for one in result.moved.left if "layers" in one.tensor]
    spread = transport(source, tuned, deep, depth="nearest", **options)
    assert any("layers.1." in name for name in spread.moved.dense), "a depth that is asked for is obeyed"


@pytest.mark.parametrize("method", ["identity", "carry"])
def test_path_steps_move_between_the_same_blocks_as_one_step(kit, method):
    source = kit.tiny_vit()
    tuned, deep = kit.nudge(source, size=0.3), grown(source, kit)
    options = {"body": "identity"} if method == "carry" else {}
    given = {"data": kit.pictures(64), "method": method, "options": options, "strength": 1.0, "batches": 1}
    one, two = (transport(source, tuned, deep, path_steps=steps, **given).moved.dense for steps in (1, 2))
    assert set(one) == set(two)
    for name, change in one.items():
        torch.testing.assert_close(two[name], change, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("method", "options", "read"),
    [
        ("gradfix", {"vote": "max"}, {"vote": "max"}),
        ("transfusion", {"residual": "segments", "sweeps": 3}, {"residual": "segments", "sweeps": 3}),
    ],
)
def test_every_part_of_a_path_is_prepared_with_the_methods_own_options(
    kit, monkeypatch, method, options, read
):
    from transship.verbs.transport import statistics

    seen: list[dict] = []

    def spying(name, found):
        def spy(*given, **named):
            seen.append({key: named.get(key) for key in read})
            return found(*given, **named)

        monkeypatch.setattr(statistics, name, spy)

    spying("weight_descent", statistics.weight_descent)
    spying("match_units", statistics.match_units)
    source = kit.tiny_vit()
    models = source, kit.nudge(source), kit.tiny_vit(seed=4)
    given = {"data": kit.pictures(32), "strength": 1.0, "batches": 1, "path_steps": 3}
    transport(*models, method=method, options=options, **given)
    assert seen == [read] * 3


def test_blocks_without_a_near_copy_are_listed(kit):
    source = kit.tiny_vit(32, 4)
    target = kit.tiny_vit(32, 2, seed=4)
    near = kit.nudge(source, size=0.1, seed=8)
    for place in (0, 1):
        target.vit.layers[place] = near.vit.layers[place + 1]
    result = transport(
        source, kit.nudge(source), target, data=kit.pictures(64), method="identity", strength=1.0, batches=2
    )
    left = {one.tensor.split(".")[2]: one.reason for one in result.moved.left if "layers" in one.tensor}
    assert left == dict.fromkeys(("0", "3"), "no block of the target is like its block")


def test_strangers_of_other_depth_keep_the_interpolation(kit):
    source, target = kit.tiny_vit(), kit.tiny_vit(32, 3, seed=4)
    method = Identity()
    models = {"source": source, "tuned": kit.nudge(source), "target": target, "method": method}
    plan = make_plan(Request(data=kit.pictures(64), settings=Settings(batches=2), **models))
    assert plan.kinship is not None
    assert not plan.kinship.related
    assert plan.matching_for(method.needs) is plan.matching


def test_validation_labels_meet_the_fine_tunes_classes_by_name(kit):
    from transship.data import wrap

    tuned = kit.tiny_vit()
    tuned.config.id2label = dict(enumerate(("wolf", "Bear", "sea lion", "ant", "cow")))
    images = kit.pictures(60)
    names = ["ant", "bear", "cow", "sea_lion", "wolf"]

    def planned(labels):
        source = kit.tiny_vit()
        fine_tune = kit.nudge(source)
        fine_tune.config.id2label = tuned.config.id2label
        models = {"source": source, "tuned": fine_tune, "target": kit.tiny_vit(48, seed=4)}
        data = wrap(images, labels, kind="array")
        return make_plan(Request(data=data, settings=Settings(batches=1), **models))

    plan = planned([names[row % 5] for row in range(60)])
    order = [3, 1, 4, 2, 0]  # of ant, bear, cow, sea_lion, wolf among the fine-tune's
    assert plan.labels.tolist() == [order[label] for label in plan.draws.labels.tolist()]
    assert planned([(*names[:4], "whale")[row % 5] for row in range(60)]).labels == (
        "the fine-tune has no class 'whale'"
    )
    assert planned([row % 4 for row in range(60)]).labels == "the data has 4 classes and the fine-tune 5"


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


@pytest.mark.slow
def test_auto_takes_the_plain_update_between_relatives_and_says_why(kit):
    source = kit.tiny_vit()
    tuned = kit.nudge(source, size=0.3)
    relative = kit.nudge(source, size=0.02, seed=8)
    result = transport(source, tuned, relative, data=kit.pictures(600), batches=3)
    assert {one.method for one in result.candidates} >= {
        "identity",
        "theseus",
        "gradient",
        "carry, body theseus",
    }
    assert "relatives" in result.notes[0]
    assert result.notes[1].startswith(f"'{result.method}' was taken")
    best = max(one.agreement for one in result.candidates if not one.method.startswith("carry"))
    assert best > 0.9
    assert result.method in ("identity", "theseus", "gradient")


@pytest.mark.slow
def test_path_steps_of_a_twin_are_exact_too(kit):
    source = kit.tiny_vit().double()
    twin = kit.permuted_vit(source)
    tuned = kit.nudge(source)
    images = kit.pictures(128).astype(np.float64)
    result = transport(
        source, tuned, twin, data=images, method="theseus", strength=1.0, batches=4, path_steps=2
    )
    fresh = kit.pictures(16, seed=5).astype(np.float64)
    assert float((kit.logits(result.model(), fresh) - kit.logits(tuned, fresh)).abs().max()) < 1e-4


def test_a_clip_model_classifies_by_its_text_tower(kit):
    from transformers import CLIPConfig, CLIPModel

    from transship.activations import LoadedModel

    torch.manual_seed(0)
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = CLIPModel(
        CLIPConfig(
            text_config={
                **tower,
                "vocab_size": 50,
                "max_position_embeddings": 16,
                "eos_token_id": 2,
                "bos_token_id": 1,
            },
            vision_config={**tower, "image_size": 28, "patch_size": 7},
            projection_dim=16,
        )
    ).eval()

    def texts(words):
        ids = torch.tensor(
            [
                [1, *(3 + ord(sign) % 40 for sign in word[:10]), 2] + [2] * (10 - len(word[:10]))
                for word in words
            ]
        )
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def preprocess(rows):
        return texts(rows) if isinstance(rows[0], str) else {"pixel_values": torch.from_numpy(np.stack(rows))}

    clip = LoadedModel("clip", model, model.config, custom=preprocess)
    classes = ("cat", "dog", "bird")
    made = zero_shot(clip, classes, ("{}", "a {}"))
    images = kit.pictures(6, channels=3)
    reading = Readout(made).all(list(images))
    with torch.no_grad():
        words = torch.stack(
            [
                torch.nn.functional.normalize(
                    model.get_text_features(**texts([name, f"a {name}"])).pooler_output, dim=1
                ).mean(0)
                for name in classes
            ]
        )
        pictures = model.get_image_features(pixel_values=torch.from_numpy(images)).pooler_output
        cosines = torch.nn.functional.cosine_similarity(pictures[:, None], words[None], dim=2)
    torch.testing.assert_close(reading.outputs, 100 * cosines, atol=1e-3, rtol=1e-4)
    assert Readout(made).task == "classes"


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
