"""FLD, its table, FA and the Lipschitz penalty, against references of a few lines."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from transship.errors import OptionError
from transship.geometry import wasserstein_exact
from transship.verbs.adapt.model.recalibrate import lipschitz_penalty
from transship.verbs.adapt.train.losses import (
    LabelTable,
    SinkhornAlignment,
    conditional_entropy,
    distortion,
    find_loss,
    soft_table,
    table_loss,
    transition,
    transport_distance,
)

seeds = st.integers(0, 10_000)


def drawn(rows: int, source: int, target: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2.0 * torch.randn(rows, source, generator=generator, dtype=torch.float64)
    return logits.softmax(1), torch.randint(0, target, (rows,), generator=generator)


def counted(labels: list[int], codes: list[int]) -> float:
    """H[Z'|Z] of counts: Σ_z p(z) H(z' | z), from dictionaries."""
    pairs, rows, total = Counter(zip(labels, codes, strict=True)), Counter(labels), len(labels)
    return -sum(n / total * math.log(n / rows[z]) for (z, _), n in pairs.items())


@given(seed=seeds, source=st.integers(1, 6), target=st.integers(1, 5))
def test_fld_of_one_hot_predictions_is_that_of_counts(seed: int, source: int, target: int):
    generator = np.random.default_rng(seed)
    labels, codes = generator.integers(0, source, 40), generator.integers(0, target, 40)
    one_hot = torch.nn.functional.one_hot(torch.from_numpy(labels), source).double()
    value = float(distortion(one_hot, torch.from_numpy(codes), target))
    assert value == pytest.approx(counted(labels.tolist(), codes.tolist()), abs=1e-9)


def test_fld_is_zero_when_source_labels_determine_target_labels():
    labels = torch.arange(60) % 6
    one_hot = torch.nn.functional.one_hot(labels, 6).double()
    assert float(distortion(one_hot, labels // 2, 3)) == pytest.approx(0.0, abs=1e-9)


def test_fld_is_the_entropy_of_targets_when_both_are_independent():
    labels, codes = (
        grid.flatten() for grid in torch.meshgrid(torch.arange(4), torch.arange(5), indexing="ij")
    )
    one_hot = torch.nn.functional.one_hot(labels, 4).double()
    assert float(distortion(one_hot, codes, 5)) == pytest.approx(math.log(5), abs=1e-9)
    same = torch.full((60, 4), 0.25, dtype=torch.float64)  # p_s that never changes says nothing either
    assert float(distortion(same, torch.arange(60) % 3, 3)) == pytest.approx(math.log(3), abs=1e-9)


@given(seed=seeds)
def test_fld_lies_between_zero_and_the_entropy_of_targets(seed: int):
    source, codes = drawn(50, 4, 3, seed)
    marginal = soft_table(source, codes, 3).sum(0)
    value = float(distortion(source, codes, 3))
    assert -1e-9 <= value <= float(-(marginal * marginal.log()).sum()) + 1e-9


def test_the_gradient_of_fld_is_that_of_finite_differences():
    torch.manual_seed(0)
    logits = torch.randn(12, 4, dtype=torch.float64, requires_grad=True)
    codes = torch.arange(12) % 3
    assert torch.autograd.gradcheck(
        lambda x: distortion(x.softmax(1), codes, 3), (logits,), eps=1e-6, atol=1e-7
    )


def test_the_table_loss_on_the_whole_set_has_the_value_and_the_gradient_of_fld():
    source, codes = drawn(200, 6, 4, 0)
    logits = source.log().requires_grad_(True)
    table = soft_table(source, codes, 4)
    assert float(table_loss(source, codes, table)) == pytest.approx(float(distortion(source, codes, 4)))
    (exact,) = torch.autograd.grad(distortion(logits.softmax(1), codes, 4), logits)
    (result,) = torch.autograd.grad(table_loss(logits.softmax(1), codes, table), logits)
    torch.testing.assert_close(result, exact)


def embedder_gradients(kind: str) -> tuple[Tensor, list[Tensor]]:
    """Return the gradients of an embedder before a fixed classifier: of the whole set, and of 16 batches."""
    torch.manual_seed(0)
    inputs, codes = torch.randn(512, 8, dtype=torch.float64), torch.arange(512) % 5
    inputs[torch.arange(512), codes] += 1.0
    weight = torch.randn(8, 6, dtype=torch.float64, requires_grad=True)
    head = torch.randn(6, 10, dtype=torch.float64)

    def source(rows: Tensor) -> Tensor:
        return (torch.tanh(rows @ weight) @ head).softmax(1)

    (exact,) = torch.autograd.grad(distortion(source(inputs), codes, 5), weight)
    table = LabelTable(codes, 5, most=4096 if kind == "whole" else 0)
    table.fill(source(inputs).detach(), torch.arange(512))
    entries = []
    for index in torch.randperm(512).split(32):
        output = source(inputs[index])
        loss = distortion(output, codes[index], 5) if kind == "batch" else table.loss(output, index)
        entries.append(torch.autograd.grad(loss, weight)[0])
    return exact, entries


def cosine(x: Tensor, y: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(x.flatten(), y.flatten(), dim=0))


def test_a_pass_of_the_table_estimator_at_batch_32_points_where_the_whole_set_does():
    """What has cosine ≥ 0.95 is the mean of the 16 batches of one pass at fixed weights: the bias is gone.

    A single batch of 32 is that plus the noise of its draw, with any estimator: cosine about 0.35 here.
    """
    means, single = {}, {}
    for kind in ("whole", "moving", "batch"):
        exact, parts = embedder_gradients(kind)
        means[kind] = cosine(exact, torch.stack(parts).mean(0))
        single[kind] = float(np.mean([cosine(exact, part) for part in parts]))
    assert means["whole"] == pytest.approx(1.0, abs=1e-9)
    assert means["moving"] >= 0.95
    assert means["batch"] < means["moving"]  # entropies of single batches are another, biased function
    assert single["whole"] == pytest.approx(0.35, abs=0.05), single


def test_the_remembering_table_is_the_whole_sets_after_updates():
    source, codes = drawn(64, 4, 3, 0)
    other, _ = drawn(64, 4, 3, 1)
    table = LabelTable(codes, 3)
    table.fill(source, torch.arange(64))
    for index in torch.arange(64).split(8):
        table.update(other[index], index)
    assert table.table is not None
    torch.testing.assert_close(table.table, soft_table(other, codes, 3))


def test_rows_of_the_transition_sum_to_one():
    source, codes = drawn(64, 4, 3, 0)
    for smooth in (0.0, 0.1):
        rows = transition(soft_table(source, codes, 3), smooth).sum(1)
        torch.testing.assert_close(rows, torch.ones_like(rows))


@given(st.lists(st.floats(0, 2), min_size=1, max_size=20), st.floats(0.1, 1.5))
def test_the_lipschitz_penalty_is_zero_exactly_when_no_norm_is_above_omega(norms: list[float], omega: float):
    penalty = float(lipschitz_penalty(torch.tensor(norms, dtype=torch.float64), omega))
    over = [norm - omega for norm in norms if norm > omega]
    assert (penalty == 0.0) == (not over or max(over) < 1e-160)
    assert penalty == pytest.approx(sum(part * part for part in over) / len(norms))


def test_alignment_is_near_the_exact_distance_and_its_gradient_is_the_plans():
    torch.manual_seed(0)
    source = torch.randn(60, 8)
    rows = (torch.randn(60, 8) + 2.0).requires_grad_(True)
    exact = wasserstein_exact(rows, source)
    alignment = SinkhornAlignment(source, epsilon=0.005, iterations=2000)
    value = alignment(rows)
    assert value.item() == pytest.approx(exact.item(), rel=0.02)
    (result,) = torch.autograd.grad(value, rows)
    (wanted,) = torch.autograd.grad(exact, rows)
    assert cosine(result, wanted) > 0.97


def test_alignment_goes_on_from_its_own_potentials():
    torch.manual_seed(0)
    source, rows = torch.randn(80, 8), torch.randn(32, 8) + 1.0
    whole = SinkhornAlignment(source)
    values = [float(whole(rows)) for _ in range(3)]
    first = SinkhornAlignment(source)
    first(rows)
    second = SinkhornAlignment(source)
    second.load(first.state())
    assert [float(second(rows)), float(second(rows))] == values[1:]


def test_the_logged_distance_is_symmetric_and_zero_for_one_set():
    torch.manual_seed(0)
    x, y = torch.randn(40, 5), torch.randn(50, 5) + 1.0
    assert transport_distance(x, y) == pytest.approx(transport_distance(y, x), rel=1e-3)
    assert transport_distance(x, x) == pytest.approx(0.0, abs=1e-4)


def test_relative_loss_is_in_the_targets_own_units():
    torch.manual_seed(0)
    truth, values = torch.randn(6, 1, 9) + 3.0, torch.randn(6, 1, 9)
    mean, std = truth.mean(), truth.std()
    result = find_loss("relative-l2", "dense").compute(
        (values - mean) / std, (truth - mean) / std, (mean, std)
    )
    ratio = (values - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1)
    torch.testing.assert_close(result, ratio.mean())


def test_a_loss_of_another_task_is_refused():
    with pytest.raises(OptionError, match="'mse' is no loss of classification; choose cross-entropy"):
        find_loss("mse", "classification")


def test_conditional_entropy_of_a_table_without_mass_in_a_row_is_finite():
    table = torch.tensor([[0.5, 0.5], [0.0, 0.0]])
    assert float(conditional_entropy(table)) == pytest.approx(math.log(2), abs=1e-6)
