from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from transship.activations import LoadedModel, Site, block_weights, match_sites
from transship.errors import MatchError


def block(number: int, role: str = "mlp.in", stack: str = "text") -> Site:
    return Site(
        f"layer.{number}.{role}", role, number, stack, "linear", 4, 4, f"layer.{number}.{role}.weight"
    )


def stack(depth: int) -> list[Site]:
    return [block(number) for number in range(depth)]


def test_equal_depth_matches_one_to_one(tiny: Callable[..., LoadedModel]):
    matching = match_sites(tiny("bert"), tiny("mpnet"))
    assert all(len(pair.sources) == 1 and pair.source.block == pair.target.block for pair in matching.pairs)
    roles = {pair.target.role for pair in matching.pairs if pair.target.block == 1}
    assert {
        "attention.query",
        "attention.key",
        "attention.value",
        "attention.out",
        "mlp.in",
        "mlp.out",
    } <= roles


def test_different_depth_interpolates_between_neighbours():
    matching = match_sites(stack(6), stack(12))
    weights = {
        pair.target.block: [(site.block, weight) for site, weight in pair.sources] for pair in matching.pairs
    }
    assert weights[0] == [(0, 1.0)]
    assert weights[11] == [(5, 1.0)]
    assert weights[1] == [(0, pytest.approx(6 / 11)), (1, pytest.approx(5 / 11))]  # p = 5/11
    assert matching.depths == {"text": (6, 12)}


@given(source=st.integers(1, 40), target=st.integers(1, 40))
def test_interpolation_weights_sum_to_one_and_rise_with_depth(source: int, target: int):
    places = []
    for number in range(target):
        result = block_weights(number, source, target)
        assert sum(weight for _, weight in result) == pytest.approx(1.0)
        assert all(0 <= index < source and weight > 0 for index, weight in result)
        places.append(sum(index * weight for index, weight in result))
    assert places == sorted(places)
    if target > 1:
        assert places[0] == 0
        assert places[-1] == pytest.approx(source - 1)


def test_nearest_takes_one_block_and_skip_leaves_the_rest_unmatched():
    assert [block_weights(number, 3, 5, depth="nearest")[0][0] for number in range(5)] == [0, 0, 1, 1, 2]
    matching = match_sites(stack(3), stack(5), depth="skip")
    assert [pair.target.block for pair in matching.pairs] == [0, 1, 2]
    assert [(each.side, each.site.block) for each in matching.unmatched] == [("target", 3), ("target", 4)]
    assert "3 blocks against 5" in matching.unmatched[0].reason


def test_sites_without_partner_are_listed_with_the_reason(tiny: Callable[..., LoadedModel]):
    matching = match_sites(tiny("bert"), tiny("llama"))
    reasons = {(each.side, each.site.name): each.reason for each in matching.unmatched}
    assert reasons["target", "text.0.mlp.gate"] == "the source's stack 'text' has no mlp.gate"
    assert (
        reasons["source", "text.embedding.position"] == "the target's stack 'text' has no embedding.position"
    )


def test_a_text_encoder_stands_for_the_encoder_of_an_encoder_decoder(tiny: Callable[..., LoadedModel]):
    matching = match_sites(tiny("bert"), tiny("t5"))
    stacks = {
        (pair.source.stack, pair.target.stack) for pair in matching.pairs if pair.target.block is not None
    }
    assert stacks == {("text", "encoder")}
    assert any("no stack like 'decoder'" in each.reason for each in matching.unmatched)


def test_models_with_nothing_in_common_are_refused():
    with pytest.raises(MatchError, match="no linear map with the same role"):
        match_sites(nn.Sequential(nn.Linear(2, 2)), nn.ModuleDict({"other": nn.Linear(2, 2)}))
