"""Carried heads, the automatic choice, path steps and evaluation, on small models whose answers are known."""

import numpy as np
import pytest
import torch

from transship.activations import load_model
from transship.activations.readout import Readout
from transship.data import wrap
from transship.errors import OptionError
from transship.verbs.transport import Request, Settings, kinship, make_plan, transport
from transship.verbs.transport.models import zero_shot
from transship.verbs.transport.pace import Budget


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


@pytest.mark.slow
def test_auto_takes_the_plain_update_between_relatives_and_says_why(kit):
    source = kit.tiny_vit()
    tuned = kit.nudge(source, size=0.3)
    relative = kit.nudge(source, size=0.02, seed=8)
    result = transport(source, tuned, relative, data=kit.pictures(600), batches=3)
    assert {candidate.method for candidate in result.candidates} >= {
        "identity",
        "theseus",
        "gradient",
        "carry, body theseus",
    }
    assert "relatives" in result.notes[0]
    assert result.notes[1].startswith(f"'{result.method}' was taken")
    best = max(
        candidate.agreement for candidate in result.candidates if not candidate.method.startswith("carry")
    )
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
    text = {**tower, "vocab_size": 50, "max_position_embeddings": 16, "eos_token_id": 2, "bos_token_id": 1}
    vision = {**tower, "image_size": 28, "patch_size": 7}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)).eval()

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
    classifier = zero_shot(clip, classes, ("{}", "a {}"))
    images = kit.pictures(6, channels=3)
    reading = Readout(classifier).all(list(images))
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
    assert Readout(classifier).task == "classes"


def strangers(kit):
    source = kit.tiny_vit()
    return source, kit.nudge(source, size=0.2), kit.tiny_vit(seed=4)


def test_a_killed_comparison_keeps_the_candidates_that_it_had_found(kit, tmp_path, monkeypatch):
    from transship.verbs.transport import auto

    models, given = strangers(kit), {"data": kit.pictures(64), "batches": 1}
    whole = transport(*models, prepared=tmp_path / "whole", **given)
    real, searches = auto.choose_strength, []

    def search(*arguments, **options):
        searches.append(options["carried"])
        if len(searches) == 3:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(auto, "choose_strength", search)
    with pytest.raises(KeyboardInterrupt):
        transport(*models, prepared=tmp_path / "killed", **given)
    after = transport(*models, prepared=tmp_path / "killed", **given)
    assert len(searches) == 3 + 4 - 2, "four candidates, two of which were found before"
    assert after.candidates == whole.candidates
    assert after.choice == whole.choice
    for name, result in (("a", whole), ("b", after)):
        result.save(tmp_path / name)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b")]
    assert weights[0] == weights[1]


def test_a_killed_comparison_of_paths_keeps_what_was_moved_along_them(kit, tmp_path, monkeypatch):
    from transship.verbs.transport import auto

    models, given = strangers(kit), {"data": kit.pictures(32), "batches": 1, "path_steps": 2}
    given["grid"] = (0.0, 1.0)
    whole = transport(*models, prepared=tmp_path, **given)
    monkeypatch.setattr(auto, "move_and_choose", None)
    after = transport(*models, prepared=tmp_path, **given)
    assert after.candidates == whole.candidates
    assert after.moved.dense.keys() == whole.moved.dense.keys()
    assert all(torch.equal(after.moved.dense[name], change) for name, change in whole.moved.dense.items())


def test_damaged_findings_are_found_anew(kit, tmp_path):
    models, given = strangers(kit), {"data": kit.pictures(32), "batches": 1, "prepared": tmp_path}
    whole = transport(*models, **given)
    for file in tmp_path.glob("*/trials/*.json"):
        file.write_text("{", encoding="utf-8")
    assert transport(*models, **given).candidates == whole.candidates


def test_every_candidate_has_its_line_of_progress_with_what_is_known_so_far(kit):
    entries = []
    transport(
        *strangers(kit),
        data=kit.pictures(32),
        batches=1,
        progress=lambda what, done, total: entries.append(what),
    )
    lines = [what for what in dict.fromkeys(entries) if what.endswith(": strength")]
    assert [line.split(",")[0] for line in lines] == [f"candidate {number} of 4" for number in range(1, 5)]
    assert "best so far" not in lines[0]
    assert all("best so far identity" in line or "best so far" in line for line in lines[1:])


def test_a_spent_budget_leaves_candidates_out_and_says_so(kit):
    models, given = strangers(kit), {"data": kit.pictures(32), "batches": 1}
    result = transport(*models, budget=1e-9, **given)
    assert len(result.choice.curve) == 4, "strengths that are tried whatever the budget"
    assert sum("the budget of 0 s leaves it no time" in note for note in result.notes) == 3
    assert transport(*models, budget=1e6, **given).candidates == transport(*models, **given).candidates
    with pytest.raises(OptionError, match="--budget: it is for comparing, and 'theseus' is compared"):
        transport(*models, method="theseus", budget=1.0, **given)
    with pytest.raises(OptionError, match="--budget: -1 minutes"):
        transport(*models, budget=-1.0, **given)


def test_a_finish_that_nobody_asked_for_keeps_to_the_budget(kit, monkeypatch):
    monkeypatch.setattr("transship.verbs.transport.finishing.LEAST_INPUTS", 8)
    given = {"data": kit.pictures(32), "batches": 1}
    result = transport(*strangers(kit), budget=1e-4, **given)
    assert any("it was not finished: that may take" in note for note in result.notes)
    assert not any("finish" in candidate.method for candidate in result.candidates)
    asked = transport(*strangers(kit), budget=1e-4, finish="weights:2", **given)
    assert any("finish" in candidate.method for candidate in asked.candidates)


def test_a_budget_allows_what_ends_before_it_does():
    now = [0.0]
    budget = Budget(10.0, lambda: now[0])
    assert budget.allows(10.0)
    assert not budget.allows(10.1)
    now[0] = 10.5
    assert not budget.allows()
    assert Budget().allows(1e9)


def test_a_plan_says_how_long_it_takes_and_how_many_candidates_it_compares(kit):
    source, tuned, target = strangers(kit)
    request = Request(source=source, tuned=tuned, target=target, data=kit.pictures(32))
    plan = make_plan(request)
    assert len(plan.candidates()) == 4
    facts = str(plan.page())
    assert "4 candidates are compared" in facts
    assert 0 < plan.following_seconds() < plan.seconds()
    labelled = wrap(kit.pictures(96), [f"LABEL_{row % 5}" for row in range(96)], kind="array")
    request = Request(source=source, tuned=tuned, target=target, data=labelled, settings=Settings(batches=1))
    assert make_plan(request).seconds() > 0
