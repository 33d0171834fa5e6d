"""Every method: one contract, and what is its own."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from transship.data import Dataset
from transship.errors import OptionError
from transship.registry import build_method, describe, method_names
from transship.verbs.adapt.estimator import Recraft
from transship.verbs.adapt.methods.mona import Bilevel, Mona
from transship.verbs.adapt.methods.pare import Pare, PatchReplacement
from transship.verbs.adapt.model.backbone import Backbone, open_backbone
from transship.verbs.adapt.model.embedders import shape_for
from transship.verbs.adapt.model.heads import HeadShape
from transship.verbs.adapt.model.network import Network, new_embedder
from transship.verbs.adapt.parts import network_of
from transship.verbs.adapt.source.model import open_source
from transship.verbs.adapt.train.learner import Bench, Rows
from transship.verbs.adapt.train.losses import find_loss
from transship.verbs.adapt.train.objectives import DatasetDistance, FeatureAlignment, LabelDistortion

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


@pytest.mark.parametrize(("most", "embedded"), [(5, 5), (128, 20)])
def test_orca_takes_so_many_rows_of_each_class(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, most: int, embedded: int
):
    (phase,) = build_method("adapt", "orca", {"per_class": most}).phases()
    assert phase.batch is None  # all rows, of which it takes its own
    sizes: list[int] = []
    distance = DatasetDistance._distance

    def watched(self: DatasetDistance, rows: Any) -> Any:
        sizes.append(len(rows))
        return distance(self, rows)

    monkeypatch.setattr(DatasetDistance, "_distance", watched)
    phase.objective.begin(bench)
    phase.objective.loss(bench, torch.randperm(60), 0, 1).backward()
    assert sizes == [embedded] * 3
    assert float(bench.network.embedder.project.weight.grad.norm()) > 0  # type: ignore[union-attr]


def test_orca_weighs_classes_by_their_share_of_all_rows(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(DatasetDistance, "_distance", lambda self, rows: rows.new_tensor(float(len(rows))))
    objective = DatasetDistance(per_class=4)
    objective.begin(bench)
    codes = bench.train.codes
    index = torch.cat([(codes == code).nonzero()[:count, 0] for code, count in ((0, 20), (1, 10), (2, 2))])
    assert objective.loss(bench, index, 0, 1).item() == pytest.approx((20 * 4 + 10 * 4 + 2 * 2) / 32)


def test_pare_has_the_recipe_of_its_backbone():
    plain = Pare()
    assert plain.recipe(vision=False, dense=False) == (0.5, 0.0, 0.1)
    assert plain.recipe(vision=True, dense=False) == (0.64, 0.16, 1.0)
    assert plain.recipe(vision=True, dense=True) == (0.32, 0.16, 1.0)
    told = build_method("adapt", "pare", {"start_share": "0.4", "weight": "0.2"})
    assert told.recipe(vision=True, dense=False) == (0.4, 0.16, 0.2)


@pytest.mark.parametrize(("reads", "shape"), [("text", (60,)), ("vision", (60,)), ("vision", (60, 1, 3, 3))])
def test_pares_mixture_has_the_share_and_the_weight_of_the_recipe(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, reads: str, shape: tuple[int, ...]
):
    monkeypatch.setattr(Backbone, "reads", reads)
    bench.train = dataclasses.replace(bench.train, targets=torch.zeros(shape))
    objective = PatchReplacement(Pare())
    objective.begin(bench)
    replaced: list[int] = []

    def mixed(tokens: Any, source: Any, mask: Any, count: int, generator: Any) -> Any:
        replaced.append(count)
        return tokens

    monkeypatch.setattr(objective, "_mix", mixed)
    monkeypatch.setattr(Bench, "target_loss", lambda self, outputs, index: outputs.new_zeros(()))
    monkeypatch.setattr(
        Bench,
        "source_tokens",
        lambda self, items: (torch.zeros(4, 9, 32), torch.ones(4, 9, dtype=torch.bool)),
    )
    monkeypatch.setattr("torch.nn.functional.cross_entropy", lambda scores, labels: torch.tensor(1.0))
    losses = [float(objective.loss(bench, torch.arange(4), step, 9).detach()) for step in (0, 8)]
    count = bench.embedded(torch.arange(1)).shape[1]
    start, end, weight = Pare().recipe(vision=reads == "vision", dense=len(shape) > 2)
    wanted = [round(share * count) for share in (start, end)]
    assert replaced == [one for one in wanted if one]
    # λ CE(mixture, z) is all that is left of the loss
    assert losses == pytest.approx([weight * one / count for one in wanted])


@pytest.mark.parametrize(
    ("name", "option", "value", "message"),
    [
        ("recraft", "fa_batch", "0", "fa_batch: it is 0; give a number from 1"),
        ("recraft", "fld_steps", "-1", "fld_steps: it is -1; give a number from 0"),
        ("recraft", "fld_rate", "0", "fld_rate: it is 0; give a number above 0"),
        ("recraft", "fa_rate", "nan", "fa_rate: it is nan; give a number above 0"),
        ("recraft", "keep", "-0.5", "keep: it is -0.5; give a number from 0"),
        ("warm", "batch", "-3", "batch: it is -3; give a number from 1"),
        ("orca", "per_class", "0", "per_class: it is 0; give a number from 1"),
        ("orca", "rate", "inf", "rate: it is inf; give a number above 0"),
        ("pare", "start_share", "1.5", "start_share: it is 1.5; give a number from 0 to 1"),
        ("pare", "temperature", "0", "temperature: it is 0; give a number above 0"),
        ("mona", "source_items", "0", "source_items: it is 0; give a number from 1"),
    ],
)
def test_numbers_that_cannot_be_are_refused_when_the_method_is_built(
    name: str, option: str, value: str, message: str
):
    with pytest.raises(OptionError, match=message):
        build_method("adapt", name, {option: value})


@pytest.mark.parametrize("left_out", ["fa_steps", "fld_steps"])
def test_a_phase_of_no_steps_is_left_out(left_out: str, quick: dict[str, Any], waves: Any):
    options = {"fa_steps": 3, "fld_steps": 3} | {left_out: 0}
    model = Recraft(**quick | {"method_options": options, "steps": 3}).fit(*waves)
    phases = {row["phase"] for row in model.stage1_}
    assert left_out.removesuffix("_steps") not in phases
    assert len(phases) > 1


@pytest.mark.parametrize("kind", ["bert", "vit"])
def test_scratch_has_nothing_of_the_pretrained_weights(kind: str, tiny_bert: Backbone):
    backbone, size = tiny_bert, (37,)
    if kind == "vit":
        torch.manual_seed(0)
        config: Any = transformers.ViTConfig(
            image_size=12, patch_size=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2
        )
        backbone, size = open_backbone(transformers.ViTModel(config).eval()), (12, 12)
    theta = backbone.theta
    if theta.norm_weight is not None:  # a new model's norms are what a random one has
        theta = dataclasses.replace(theta, norm_weight=theta.norm_weight + 0.5)
        backbone = dataclasses.replace(backbone, theta=theta)
    shape = shape_for(theta, size, 3 if kind == "vit" else 1, tokens=8)
    head = HeadShape("linear", theta.width, 3)
    known, random = (
        dict(network_of(backbone, shape, head, build_method("adapt", name), 0).named_parameters())
        for name in ("nft", "scratch")
    )
    reused = ["positions", "prefix", "project.weight"] if kind == "vit" else ["positions", "norm.weight"]
    for name in (f"embedder.{part}" for part in reused):
        assert not torch.equal(known[name], random[name]), name
    assert float(random["embedder.positions"].detach().std()) == pytest.approx(0.02, rel=0.3)
    bodies = [name for name in known if name.startswith("body") and known[name].dim() > 1]
    assert bodies
    assert not [name for name in bodies if torch.equal(known[name], random[name])]
    if kind == "bert":  # what the pretrained embedding has nothing of is drawn alike
        assert torch.equal(known["embedder.project.weight"], random["embedder.project.weight"])


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
