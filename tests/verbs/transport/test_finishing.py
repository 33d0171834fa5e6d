"""The finish of a transport: what learns, what stays, and what stands beside it."""

from typing import Any

import pytest
import torch

from transship.errors import OptionError
from transship.registry import build_method
from transship.verbs.transport import Request, Settings, apply, make_plan, prepare, transport
from transship.verbs.transport.finishing import check_finish, cost_of, finish_with_control, finishing

GIVEN: dict[str, Any] = {"method": "theseus", "strength": 1.0, "batches": 2}


@pytest.fixture(scope="module")
def models(kit):
    source = kit.tiny_vit()
    return source, kit.nudge(source, size=0.3, names=lambda name: "classifier" not in name), kit.tiny_vit(48)


@pytest.fixture(scope="module")
def finished(kit, models):
    return transport(*models, data=kit.pictures(200), finish="weights:60", **GIVEN)


def test_no_steps_change_nothing(kit, models):
    plain = transport(*models, data=kit.pictures(100), finish="none", **GIVEN)
    still = transport(*models, data=kit.pictures(100), finish="weights:0", **GIVEN)
    assert plain.moved.dense.keys() == still.moved.dense.keys()
    assert all(torch.equal(change, still.moved.dense[name]) for name, change in plain.moved.dense.items())


def test_the_target_says_more_of_what_the_fine_tune_says_and_its_head_stays(kit, models, finished):
    metrics = finished.metrics
    assert metrics["finish, held-out loss after"] < 0.8 * metrics["finish, held-out loss before"]
    assert (finished.choice.by, finished.strength) == ("finish", 1.0)
    head, own = finished.model().classifier, models[2].classifier
    assert torch.equal(head.weight, own.weight)
    assert torch.equal(head.bias, own.bias)
    images = kit.pictures(64, seed=5)
    wanted = kit.logits(models[1], images).log_softmax(1)
    plain = transport(*models, data=kit.pictures(200), finish="none", **GIVEN)
    distances = [
        float((wanted.exp() * (wanted - kit.logits(result.model(), images).log_softmax(1))).sum(1).mean())
        for result in (plain, finished)
    ]
    assert distances[1] < 0.8 * distances[0]


def test_the_same_finish_of_the_untouched_target_stands_beside_it(finished):
    names = [row.method for row in finished.candidates]
    assert names == ["theseus", "untouched target, finish weights:60", "theseus, finish weights:60"]
    assert "inputs that no map or head was fitted on" in finished.compared_on
    closed, control, ended = finished.candidates
    assert closed.seconds is None
    assert min(control.seconds, ended.seconds) > 0
    assert closed.kept is control.kept is ended.kept is None


def test_the_control_can_be_run_like_the_result(kit, models):
    source, tuned, target = models
    given = {"data": kit.pictures(120), "method": build_method("transport", "theseus")}
    settings = Settings(strength=1.0, batches=2, finish="weights:10")
    plan = make_plan(Request(source=source, tuned=tuned, target=target, settings=settings, **given))
    prepared = prepare(plan, plan.method)
    finished, control = finish_with_control(plan, prepared, apply(plan, prepared, plan.method))
    assert control.method == "untouched target, finish weights:10"
    images = kit.pictures(8, seed=4)
    answers = [kit.logits(model, images) for model in (target, control.model(), finished.model())]
    assert float((answers[0] - answers[1]).norm()) > 1e-3
    assert float((answers[1] - answers[2]).norm()) > 1e-3


def test_strengths_scale_the_rows_of_what_was_moved_and_a_random_update_is_their_control(kit, models):
    plain = transport(*models, data=kit.pictures(120), finish="none", **GIVEN)
    rows = transport(*models, data=kit.pictures(120), finish="row:40", **GIVEN)
    assert rows.candidates[1].method == "random-aligned, finish row:40"
    name = "vit.layers.0.mlp.fc1.weight"
    before, after = plain.moved.dense[name], rows.moved.dense[name]
    strengths = (after * before).sum(1) / before.square().sum(1)
    torch.testing.assert_close(after, strengths[:, None] * before, rtol=1e-3, atol=1e-4)
    assert float(strengths.std()) > 0.01


def test_kept_inputs_hold_what_the_target_knew(kit, models):
    kept = kit.pictures(200, seed=8) + 3.0
    given = {**GIVEN, "data": kit.pictures(200), "finish": "weights:60"}
    images = kit.pictures(64, seed=9) + 3.0
    before = kit.logits(models[2], images)
    drifts = []
    for keep in (None, kept):
        result = transport(*models, keep=keep, keep_weight=4.0, **given)
        drifts.append(float((kit.logits(result.model(), images) - before).norm()))
        assert all((row.kept is None) == (keep is None) for row in result.candidates)
    assert drifts[1] < 0.8 * drifts[0]
    table = next(rows for name, rows in result.summary().items() if name == "candidates")
    assert {"old domain", "finish"} <= set(table[-1])


def test_an_adapter_is_finished_as_one(kit, tmp_path):
    peft = pytest.importorskip("peft")
    from safetensors.torch import load_file
    from transformers import GPT2Config, GPT2LMHeadModel

    def gpt2(width: int, seed: int):
        config = GPT2Config(vocab_size=40, n_embd=width, n_layer=2, n_head=2, n_positions=16)
        return kit.spread(GPT2LMHeadModel(config), seed).eval()

    base, wide = gpt2(16, 1), gpt2(24, 2)
    base.save_pretrained(tmp_path / "a")
    wide.save_pretrained(tmp_path / "b")
    config = peft.LoraConfig(
        r=3, lora_alpha=6, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, init_lora_weights=False
    )
    peft.get_peft_model(base, config).save_pretrained(tmp_path / "lora")

    def preprocess(rows):
        ids = torch.stack([torch.as_tensor(row) for row in rows])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    ids = torch.randint(0, 40, (60, 8), generator=torch.Generator().manual_seed(0))
    places = [str(tmp_path / name) for name in ("a", "lora", "b")]
    given = {"data": ids.numpy(), "preprocess": preprocess, "batches": 1, "strength": 1.0}
    result = transport(*places, method="theseus", finish="weights:20", **given)
    assert result.adapter
    assert result.metrics["finish, held-out loss after"] < result.metrics["finish, held-out loss before"]
    result.save(tmp_path / "out")
    stored = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert {tensor.shape[0] for name, tensor in stored.items() if "lora_A" in name} == {3}
    loaded = peft.PeftModel.from_pretrained(
        GPT2LMHeadModel.from_pretrained(tmp_path / "b"), str(tmp_path / "out")
    )
    with torch.no_grad():
        answers = [model(ids[:4]).logits for model in (loaded.eval(), result.model().eval())]
    torch.testing.assert_close(answers[0], answers[1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("method", "rows", "moves"), [(None, 400, "weights"), (None, 60, "none")])
def test_auto_finishes_where_inputs_suffice(kit, models, method, rows, moves):
    plan = make_plan(
        Request(source=models[0], tuned=models[1], target=models[2], data=kit.pictures(rows), method=method)
    )
    assert finishing(plan).moves == moves
    cost = cost_of(plan)
    assert (cost is None) == (moves == "none")


def test_what_cannot_learn_is_refused(kit, models):
    plan = make_plan(
        Request(
            source=models[0],
            tuned=models[1],
            target=models[2],
            data=kit.pictures(40),
            settings=Settings(finish="sideways"),
        )
    )
    with pytest.raises(OptionError, match="there is no finish"):
        check_finish(plan)
