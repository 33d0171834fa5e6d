"""φ: how inputs are cut, and what is taken over from the pretrained embedding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from torch.nn.functional import conv1d

from transship.errors import OptionError
from transship.verbs.adapt.model.backbone import Backbone, Theta, open_backbone
from transship.verbs.adapt.model.embedder import LENGTH, Embedder, KmerStem, RandomStem, Shape, shape_for
from transship.verbs.adapt.model.network import new_embedder


def theta(width: int = 8, positions: int = 64) -> Theta:
    return Theta(
        width,
        torch.rand(width) + 0.5,
        torch.rand(width),
        1e-12,
        torch.randn(positions, width),
        torch.zeros(0, width),
        None,
        None,
        None,
    )


def vision_theta() -> Theta:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=12,
        patch_size=4,
        num_channels=3,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    return open_backbone(transformers.ViTModel(config).eval()).theta


@given(length=st.integers(2, 700), tokens=st.integers(2, 64), channels=st.integers(1, 3))
def test_a_series_of_any_length_becomes_at_most_so_many_tokens(length: int, tokens: int, channels: int):
    shape = shape_for(theta(), (length,), channels, tokens=tokens)
    result = Embedder(shape)(torch.randn(2, channels, length))
    assert result.shape == (2, shape.tokens, 8)
    assert shape.tokens <= tokens
    assert (shape.tokens - 1) * shape.patch[0] < length  # no token of padding alone


def test_a_prime_length_is_filled_up_and_not_read_as_one_token():
    assert shape_for(theta(), (131,), 1, tokens=12).grid == (1, 12)
    assert shape_for(theta(), (140,), 1, tokens=32).patch == (5,)


def test_tokens_are_patches_normed_with_the_pretrained_affine_and_placed():
    facts = theta()
    shape = shape_for(facts, (10,), 2, tokens=4, patch=3)
    embedder = new_embedder(shape, facts, 0)
    values = torch.randn(2, 2, 10)
    padded = functional.pad(values, (0, 2))
    patches = padded.unfold(2, 3, 3).permute(0, 2, 1, 3).flatten(2)
    raw = patches @ embedder.project.weight.flatten(1).T + embedder.project.bias
    expected = (
        functional.layer_norm(raw, (8,), facts.norm_weight, facts.norm_bias, 1e-12) + facts.positions[:4]
    )
    torch.testing.assert_close(embedder(values), expected)


def test_a_multiscale_stem_sees_more_than_its_patch():
    facts = theta()
    shape = shape_for(facts, (40,), 1, tokens=8, stem="multiscale")
    embedder = new_embedder(shape, facts, 0)
    values = torch.zeros(1, 1, 40, requires_grad=True)
    (slope,) = torch.autograd.grad(embedder(values)[0, 4].pow(2).sum(), values)
    assert int((slope != 0).sum()) > shape.patch[0]


def test_the_pretrained_patch_embedding_comes_back_on_its_own_pictures():
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=12,
        patch_size=4,
        num_channels=3,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    model = transformers.ViTModel(config).eval()
    facts = open_backbone(model).theta
    embedder = new_embedder(shape_for(facts, (12, 12), 3, tokens=64), facts, 0)
    pictures = torch.randn(2, 3, 12, 12)
    torch.testing.assert_close(embedder(pictures), model.embeddings(pictures))


def test_other_channels_repeat_the_pretrained_filter_and_keep_its_size():
    facts = vision_theta()
    embedder = new_embedder(shape_for(facts, (12, 12), 5, tokens=64), facts, 0)
    assert facts.patch_filter is not None
    torch.testing.assert_close(embedder.project.weight[:, 3] * 5 / 3, facts.patch_filter[:, 0])
    # a picture that is the same in every channel looks as it did
    grey = torch.randn(2, 1, 12, 12)
    native = new_embedder(shape_for(facts, (12, 12), 3, tokens=64), facts, 0)
    old, new = native(grey.expand(-1, 3, -1, -1)), embedder(grey.expand(-1, 5, -1, -1))
    assert ((old - new).norm() / old.norm()).item() < 0.5


def test_pictures_are_brought_to_the_size_that_the_backbone_knows_unless_a_patch_is_given():
    facts = vision_theta()
    assert shape_for(facts, (40, 30), 1, tokens=64).resize == (12, 12)
    own = shape_for(facts, (9, 7), 1, tokens=64, patch=2)
    assert own.resize is None
    assert own.grid == (5, 4)
    result = new_embedder(own, facts, 0)(torch.randn(2, 1, 9, 7))
    assert result.shape == (2, 1 + 20, 16)


def test_a_text_backbone_reads_the_patches_of_a_field_row_by_row(tiny_bert: Backbone):
    shape = shape_for(tiny_bert.theta, (16, 16), 1, tokens=16)
    assert shape.grid == (4, 4)
    output = new_embedder(shape, tiny_bert.theta, 0)
    field = torch.zeros(1, 1, 16, 16)
    field[0, 0, 4:8, 0:4] = 1.0  # second row, first column
    changed = (output(field) - output(torch.zeros_like(field))).abs().sum(2)[0]
    assert changed.nonzero().flatten().tolist() == [4]


def test_a_vision_backbone_refuses_series_and_too_many_tokens_are_refused():
    with pytest.raises(
        OptionError, match="a vision backbone reads pictures and fields, not series of length 30"
    ):
        shape_for(vision_theta(), (30,), 1, tokens=8)
    with pytest.raises(OptionError, match="patches of 1 make 100 tokens, and the backbone has 64 positions"):
        shape_for(theta(), (100,), 1, tokens=8, patch=1)


def test_a_shape_survives_json():
    shape = shape_for(vision_theta(), (9, 7), 1, tokens=64)
    assert Shape.from_dict(shape.to_dict()) == shape
    assert replace(shape, channels=2) != shape


def drawn(channels: int = 1, length: int = 37, patch: int = 5) -> RandomStem:
    torch.manual_seed(0)
    return RandomStem(channels, length, patch)


def test_features_are_shares_and_maxima_of_every_kernel_in_every_patch():
    stem, values = drawn(channels=2, length=40), torch.randn(3, 2, 40)
    stem.look_at(torch.randn(50, 2, 40))
    value = stem(values) * stem.get_buffer("scale")[:, None] + stem.get_buffer("mean")[:, None]
    place = 0
    for dilation in stem.dilations:
        weights = stem.get_buffer(f"weights{dilation}")
        wide = torch.nn.functional.pad(values, (dilation * (LENGTH // 2),) * 2)
        out = conv1d(wide, weights, dilation=dilation) - stem.get_buffer(f"biases{dilation}")[:, None]
        for token in range(8):
            piece, kernels = out[:, :, 5 * token : 5 * token + 5], len(weights)
            shares, tops = (piece > 0).float().mean(2), piece.max(2).values
            torch.testing.assert_close(value[:, place : place + kernels, token], shares, atol=1e-4, rtol=1e-4)
            later = value[:, place + kernels : place + 2 * kernels, token]
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
    output = embedder(torch.randn(4, 1, 37))
    assert output.shape == (4, 8, 32)
    output.sum().backward()
    assert embedder.project.weight.grad is not None


def test_a_stem_of_kmers_says_which_symbols_follow_one_another():
    ids = torch.randint(0, 4, (5, 11), generator=torch.Generator().manual_seed(0))
    values = functional.one_hot(ids, 4).float().transpose(1, 2)
    channels = KmerStem(4)(functional.pad(values, (0, 2)))  # two places behind hold no symbol
    assert torch.equal(channels[:, :4, :11], values)
    assert channels[:, 4:].sum().item() == 5 * 9
    for row, place in ((0, 0), (2, 5), (4, 8)):
        first, second, third = ids[row, place : place + 3].tolist()
        assert channels[row, 4:, place].argmax() == 16 * first + 4 * second + third


def test_kmers_are_pairs_of_many_symbols_and_refused_of_more():
    assert [KmerStem(symbols).k for symbols in (4, 10, 11, 32)] == [3, 3, 2, 2]
    with pytest.raises(OptionError, match="stem: there are 33 symbols"):
        KmerStem(33)


@pytest.mark.parametrize("stem", ["multiscale", "rocket"])
def test_fields_have_no_stem_but_patches(tiny_bert: Backbone, stem: Any):
    with pytest.raises(
        OptionError, match=f"stem: the {stem} stem is for series, .* leave it out; random conv"
    ):
        shape_for(tiny_bert.theta, (12, 12), 1, tokens=16, stem=stem)
