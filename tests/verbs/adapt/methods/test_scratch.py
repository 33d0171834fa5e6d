"""Scratch: the same network from random weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import transformers

from transship.registry import build_method
from transship.verbs.adapt.fit import new_network
from transship.verbs.adapt.model.backbone import Backbone, open_backbone
from transship.verbs.adapt.model.embedder import shape_for
from transship.verbs.adapt.model.network import HeadShape


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
        dict(new_network(backbone, shape, head, build_method("adapt", name), 0).named_parameters())
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
