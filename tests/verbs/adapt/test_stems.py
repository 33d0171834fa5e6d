"""Stems: what a token sees of a series."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import conv1d

from transship.errors import OptionError
from transship.verbs.adapt.estimator import Recraft
from transship.verbs.adapt.model.backbone import Backbone
from transship.verbs.adapt.model.embedders import shape_for
from transship.verbs.adapt.model.network import new_embedder
from transship.verbs.adapt.model.stems import LENGTH, RandomStem

pytestmark = pytest.mark.filterwarnings("ignore::transship.errors.TransshipWarning")


def drawn(channels: int = 1, length: int = 37, patch: int = 5) -> RandomStem:
    torch.manual_seed(0)
    return RandomStem(channels, length, patch)


def test_features_are_shares_and_maxima_of_every_kernel_in_every_patch():
    stem, values = drawn(channels=2, length=40), torch.randn(3, 2, 40)
    stem.look_at(torch.randn(50, 2, 40))
    found = stem(values) * stem.get_buffer("scale")[:, None] + stem.get_buffer("mean")[:, None]
    place = 0
    for dilation in stem.dilations:
        weights = stem.get_buffer(f"weights{dilation}")
        wide = torch.nn.functional.pad(values, (dilation * (LENGTH // 2),) * 2)
        out = conv1d(wide, weights, dilation=dilation) - stem.get_buffer(f"biases{dilation}")[:, None]
        for token in range(8):
            piece, kernels = out[:, :, 5 * token : 5 * token + 5], len(weights)
            shares, tops = (piece > 0).float().mean(2), piece.max(2).values
            torch.testing.assert_close(found[:, place : place + kernels, token], shares, atol=1e-4, rtol=1e-4)
            later = found[:, place + kernels : place + 2 * kernels, token]
            torch.testing.assert_close(later, tops, atol=1e-4, rtol=1e-4)
        place += 2 * len(weights)
    assert place == stem.outputs


def test_the_widest_kernel_stays_within_the_series():
    assert drawn(length=8).dilations == [1]
    assert drawn(length=96).dilations == [1, 2, 4, 8]


def test_biases_and_scale_come_from_the_rows_it_looks_at():
    stem = drawn()
    rows = 7 + 3 * torch.randn(80, 1, 40)
    stem.look_at(rows)
    features = stem(rows).transpose(1, 2).flatten(0, 1)
    torch.testing.assert_close(features.mean(0), torch.zeros(stem.outputs), atol=1e-3, rtol=0)
    moving = features.std(0) > 1e-3
    assert moving.float().mean() > 0.95
    torch.testing.assert_close(features.std(0)[moving], torch.ones(int(moving.sum())), atol=1e-2, rtol=0)


def test_the_stem_is_not_trained_and_the_map_behind_it_is(tiny_bert: Backbone):
    shape = shape_for(tiny_bert.theta, (37,), 1, tokens=8, stem="rocket")
    embedder = new_embedder(shape, tiny_bert.theta, 0)
    assert not list(embedder.stem.parameters())  # type: ignore[union-attr]
    made = embedder(torch.randn(4, 1, 37))
    assert made.shape == (4, 8, 32)
    made.sum().backward()
    assert embedder.project.weight.grad is not None


@pytest.mark.parametrize("stem", ["multiscale", "rocket"])
def test_fields_have_no_stem_but_patches(tiny_bert: Backbone, stem: Any):
    with pytest.raises(OptionError, match=f"stem: the {stem} stem is for series; choose patch"):
        shape_for(tiny_bert.theta, (12, 12), 1, tokens=16, stem=stem)


def test_a_fit_with_random_convolutions_comes_back_from_its_folder(
    quick: dict[str, Any], waves: Any, tmp_path: Any
):
    from transship.verbs.adapt import load_adapted

    settings = quick | {"method": "nft", "steps": 30, "stem": "rocket"}
    model = Recraft(**settings).fit(*waves)
    assert model.validation_["error"] < 0.4  # of three classes
    model.save(tmp_path / "model")
    again = load_adapted(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(waves[0]), model.predict_proba(waves[0]))
