"""Every method: one contract, and what is its own."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from transship.data import Dataset
from transship.registry import build_method, describe, method_names
from transship.verbs.adapt.backbone import Backbone, open_backbone
from transship.verbs.adapt.bench import Bench, Rows
from transship.verbs.adapt.embedders import shape_for
from transship.verbs.adapt.estimator import Recraft
from transship.verbs.adapt.heads import HeadShape
from transship.verbs.adapt.losses import find_loss
from transship.verbs.adapt.methods.mona import Bilevel, Mona
from transship.verbs.adapt.methods.pare import Pare, PatchReplacement
from transship.verbs.adapt.network import Network, new_embedder
from transship.verbs.adapt.objectives import DatasetDistance, FeatureAlignment, LabelDistortion
from transship.verbs.adapt.source import open_source

pytestmark = pytest.mark.filterwarnings("ignore::transship.errors.TransshipWarning")
SHORT: dict[str, dict[str, Any]] = {
    "recraft": {"fa_steps": 4, "fld_steps": 4},
    "fa": {"fa_steps": 4},
    "fa-warm": {"fa_steps": 4, "steps": 4},
    "warm": {"steps": 4},
    "orca": {"steps": 3},
    "mona": {"steps": 2},
}


@pytest.mark.parametrize("name", method_names("adapt"))
def test_every_method_keeps_the_contract(name: str, quick: dict[str, Any], waves: Any, tiny_bert: Backbone):
    card = describe("adapt", name)
    assert card.summary.endswith(".")
    assert all(parameter.help for parameter in card.parameters), name
    before = tiny_bert.fingerprint
    model = Recraft(**quick | {"method_options": SHORT.get(name), "steps": 4}, method=name).fit(*waves)
    assert open_backbone(tiny_bert.loaded).fingerprint == before
    assert model.predict_proba(waves[0]).shape == (60, 3)
    assert set(model.predict(waves[0])) <= {"slow", "fast", "noise"}
    pristine = dict(tiny_bert.body().named_parameters())
    kept = {
        key: torch.equal(value, pristine[key])
        for key, value in model.adapted_.network.body.named_parameters()
    }
    method = build_method("adapt", name)
    assert all(kept.values()) == ("body" not in method.trains)
    assert (model.source_ is not None) == method.needs_source


@pytest.mark.parametrize("task", ["regression", "multilabel", "dense", "grid"])
def test_recraft_takes_every_task(task: str, quick: dict[str, Any], waves: Any):
    inputs, labels = waves
    wanted: Any = {
        "regression": inputs.mean(1).astype(float),
        "multilabel": np.stack([labels == "slow", labels != "noise"], 1).astype(int),
        "dense": np.roll(inputs, 3, axis=1).astype(float),
        "grid": inputs[:, :36].reshape(60, 6, 6).astype(float),
    }[task]
    if task == "grid":
        inputs, task = wanted[:, None].astype(np.float32), "dense"
    short = quick | {"method_options": SHORT["recraft"], "steps": 6}
    model = Recraft(**short, task=task).fit(inputs, wanted)
    assert model.predict(inputs).shape == wanted.shape
    assert np.isfinite(list(model.evaluate(inputs, wanted).values())).all()
    assert model.stage1_[-1]["entropy_target"] > 0.3  # k-means codes stand for the labels


@pytest.fixture
def bench(tiny_bert: Backbone, proxy: Dataset, waves: Any, tmp_path: Any) -> Bench:
    shape = shape_for(tiny_bert.theta, (37,), 1, tokens=8)
    head = HeadShape("linear", 32, 3).build()
    network = Network(new_embedder(shape, tiny_bert.theta, 0), tiny_bert.body(), head)
    network.train_only({"embedder", "head"})
    codes = torch.from_numpy(np.unique(waves[1], return_inverse=True)[1]).long()
    rows = Rows(torch.from_numpy(waves[0])[:, None], codes, codes)
    source = open_source(tiny_bert, proxy, items=90, omega=0.5, seed=0, cache=tmp_path)
    scale = (torch.zeros(1), torch.ones(1))
    loss = find_loss(None, "classification")
    return Bench(network, rows, rows, 3, loss, scale, tiny_bert, source, 0, torch.device("cpu"))


def test_alignment_does_not_run_the_body_and_moves_only_the_embedder(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Network, "states", lambda *arguments: pytest.fail("the body ran"))
    objective = FeatureAlignment()
    objective.begin(bench)
    objective.loss(bench, torch.arange(60), 0, 1).backward()
    assert bench.network.embedder.project.weight.grad is not None
    assert all(parameter.grad is None for parameter in bench.network.body.parameters())


def test_distortion_reaches_the_embedder_through_the_frozen_source(bench: Bench):
    plain, both = LabelDistortion(), LabelDistortion(alignment=1.0)
    values = []
    for objective in (plain, both):
        objective.begin(bench)
        loss = objective.loss(bench, torch.arange(60), 0, 1)
        values.append(loss.item())
        loss.backward()
    assert values[1] > values[0]  # Eq. (22) has ω·W₁ on top
    assert float(bench.network.embedder.project.weight.grad.norm()) > 0  # type: ignore[union-attr]
    assert all(parameter.grad is None for parameter in bench.network.body.parameters())
    assert all(parameter.grad is None for parameter in bench.network.head.parameters())


def test_dataset_distance_prefers_the_source_itself(bench: Bench):
    objective = DatasetDistance()
    objective.begin(bench)
    near = objective._distance(bench.known.features[bench.known.labels == 1])
    far = objective._distance(bench.known.features[bench.known.labels == 1] + 1.0)
    assert float(near) < float(far)


def test_pare_puts_the_best_source_patches_where_the_worst_target_patches_were(bench: Bench):
    objective = PatchReplacement(Pare())
    objective.begin(bench)
    tokens, source = bench.embedded(torch.arange(4)).detach(), torch.randn(4, 6, 32)
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[:, 5] = False
    mixed = objective._mix(tokens, source, mask, 3, None)
    gates = [torch.sigmoid(objective.gate(part)).squeeze(2) for part in (tokens, source)]
    worst = gates[0].argsort(1)[:, :3]
    best = gates[1].masked_fill(~mask, -1.0).topk(3, 1).indices
    for row in range(4):
        torch.testing.assert_close(mixed[row, worst[row]], source[row, best[row]])
        kept = [place for place in range(tokens.shape[1]) if place not in worst[row].tolist()]
        torch.testing.assert_close(mixed[row, kept], tokens[row, kept])
    mixed.square().sum().backward()
    assert objective.gate.weight.grad is not None
    assert float(objective.gate.weight.grad.abs().sum()) > 0


def test_monas_outer_gradient_is_that_of_finite_differences(bench: Bench):
    bench.network.double()
    bench.train = dataclasses.replace(bench.train, inputs=bench.train.inputs.double())
    objective = Bilevel(Mona(source_weight=0.0, inner_rate=0.5))
    index = torch.arange(12)
    bias = bench.network.embedder.project.bias
    assert bias is not None
    (slope,) = torch.autograd.grad(objective.loss(bench, index, 0, 1), bias)
    values = []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            bias[3] += step
        values.append(objective.loss(bench, index, 0, 1).item())
        with torch.no_grad():
            bias[3] -= step
    assert slope[3].item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-3, abs=1e-8)
