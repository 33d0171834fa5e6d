import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import transship
from transship.activations import LoadedModel, compare, load_model

Tiny = Callable[..., LoadedModel]


def test_a_model_is_most_like_itself(tiny: Tiny, sentences: list[list[int]]):
    model = tiny("bert")
    comparison = compare(model, model, sentences * 4, tokens_per_input=None)
    (stack,) = comparison.stacks
    assert stack.source_layers == ("embedding", "block 0", "block 1")
    assert [stack.cka[layer][layer] for layer in range(3)] == pytest.approx([1.0] * 3)
    assert stack.best_source == stack.best_target == (0, 1, 2)
    # both sides of a layer are its own space, so the best rotation leaves nothing
    assert max(each.residual for each in (*comparison.layers, *comparison.sites)) < 1e-5
    assert {layer.role for layer in comparison.layers} == {"block"}


def test_cka_equals_the_unbiased_estimate_by_hand(tiny: Tiny, sentences: list[list[int]]):
    """One batch: HSIC with the Gram matrices' diagonals removed, as Nguyen et al. (2021) write it."""
    a, b = tiny("bert", 0, torch.float64), tiny("distilbert", 1, torch.float64)
    stacks = compare(a, b, sentences, tokens_per_input=None, batch_size=12).stacks[0]

    def rows(model: LoadedModel, layer: int) -> torch.Tensor:
        with torch.no_grad():
            models = [
                model.model(**model.preprocess([ids]).inputs, output_hidden_states=True) for ids in sentences
            ]
        return torch.cat([each.hidden_states[layer][0] for each in models])

    def hsic(x: torch.Tensor, y: torch.Tensor) -> float:
        k, m = (rows @ rows.T for rows in (x, y))
        k, m = (gram - gram.diag().diag() for gram in (k, m))
        n, values = len(x), torch.ones(len(x), dtype=x.dtype)
        trace = (k * m).sum() + (values @ k @ values) * (values @ m @ values) / ((n - 1) * (n - 2))
        return float((trace - 2 / (n - 2) * (values @ k @ m @ values)) / (n * (n - 3)))

    x, y = rows(a, 1), rows(b, 2)
    expected = hsic(x, y) / (hsic(x, x) * hsic(y, y)) ** 0.5
    assert stacks.cka[1][2] == pytest.approx(expected, rel=1e-4)


def test_the_residual_is_what_the_best_rotation_and_scale_leave(tiny: Tiny, sentences: list[list[int]]):
    from scipy.linalg import orthogonal_procrustes

    a, b = tiny("bert", 0, torch.float64), tiny("bert", 1, torch.float64)
    comparison = compare(a, b, sentences * 3, tokens_per_input=None)
    residual = next(
        layer for layer in comparison.layers if layer.name == "text.1.block" and layer.side == "output"
    )
    states = []
    for model in (a, b):
        with torch.no_grad():
            entries = [
                model.model(**model.preprocess([ids]).inputs).last_hidden_state[0] for ids in sentences
            ]
        rows = torch.cat(entries)
        states.append((rows - rows.mean(0)).numpy())
    turned, scale = orthogonal_procrustes(states[0], states[1])
    best = scale / (states[0] ** 2).sum() * states[0] @ turned
    assert residual.residual == pytest.approx(
        ((states[1] - best) ** 2).sum() / (states[1] ** 2).sum(), rel=1e-6
    )
    assert residual.rows == 3 * sum(map(len, sentences))


def test_stages_of_a_pyramid_have_their_own_rows(tiny: Tiny, pictures: Callable[[int], list[Any]]):
    comparison = compare(tiny("swin"), tiny("swin", 1), pictures(32), tokens_per_input=None)
    (stack,) = comparison.stacks
    assert len(stack.cka) == len(stack.cka[0]) == 5
    assert all(value != 0.0 for row in stack.cka for value in row)


def test_wide_spaces_are_left_out_unless_asked_for(tiny: Tiny, sentences: list[list[int]]):
    a, b = tiny("bert"), tiny("bert", 1)
    narrow = compare(a, b, sentences, widest=20)
    every = compare(a, b, sentences, widest=None)
    assert {(site.name, site.side) for site in every.sites} - {
        (site.name, site.side) for site in narrow.sites
    } == {
        (f"text.{block}.{role}", side)
        for block in range(2)
        for role, side in (("mlp.in", "output"), ("mlp.out", "input"))
    }


def test_a_comparison_is_plain_data(tiny: Tiny, sentences: list[list[int]]):
    comparison = compare(tiny("bert"), tiny("llama"), sentences)
    assert json.loads(json.dumps(comparison.to_dict()))["target"] == "llama"
    assert ("target", "text.0.mlp.gate", "the source's stack 'text' has no mlp.gate") in comparison.unmatched


def test_compare_is_a_public_name():
    assert transship.compare is compare


@pytest.mark.slow
def test_relatives_are_recognised_among_real_models(models_dir: Path):
    """bge-small grew out of minilm-l6: deeper blocks are nearest to deeper ones; depths differ."""
    texts = [
        f"{word} is a thing of kind {number}"
        for number, word in enumerate(["dog", "tree", "sea", "idea"] * 12)
    ]
    comparison = compare(load_model(models_dir / "minilm-l6"), load_model(models_dir / "bge-small"), texts)
    (stack,) = comparison.stacks
    best = list(stack.best_source)
    assert best[0] == 0
    assert sum(later >= earlier for earlier, later in pairwise(best)) >= len(best) - 3
    assert stack.cka[0][0] > 0.8
