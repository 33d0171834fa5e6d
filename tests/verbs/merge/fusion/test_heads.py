"""Heads of the merged model."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from transship.errors import OptionError
from transship.verbs.merge.fusion import Fusion
from transship.verbs.merge.tasks.heads import HeadSettings, LinearHead, carry, head_kinds, polish, tune


@pytest.fixture
def problem() -> tuple[torch.Tensor, torch.Tensor, LinearHead]:
    torch.manual_seed(0)
    own = torch.randn(50, 8)
    head = LinearHead(torch.randn(3, 8), torch.randn(3))
    merged = own @ (torch.eye(8) + 0.2 * torch.randn(8, 8)) + 0.3 * torch.randn(50, 8)
    return merged, head(own), head


def test_a_carried_head_is_the_centred_ridge(problem: Any):
    features, outputs, own = problem
    result = carry(features, outputs, own, HeadSettings(penalty=0.01, prior="zero"))
    x = features.double().numpy()
    centred, target = x - x.mean(0), outputs.double().numpy() - outputs.double().numpy().mean(0)
    gram = centred.T @ centred
    weight = np.linalg.solve(gram + 0.01 * np.trace(gram) / 8 * np.eye(8), centred.T @ target)
    np.testing.assert_allclose(result.weight.numpy(), weight.T, atol=1e-5)
    bias = outputs.double().numpy().mean(0) - x.mean(0) @ weight
    assert result.bias is not None
    np.testing.assert_allclose(result.bias.numpy(), bias, atol=1e-5)


def test_carrying_features_and_folding_in_the_head_is_the_same(problem: Any):
    features, _, own = problem
    before = torch.randn(50, 8)  # the task's own features: any target will do, as ridge is linear in it
    settings = HeadSettings(penalty=1e-3, prior="zero")
    direct = carry(features, own(before), own, settings)
    eye = LinearHead(torch.eye(8), torch.zeros(8))
    through = carry(features, before, eye, settings)
    torch.testing.assert_close(direct.weight, own.weight @ through.weight, rtol=1e-4, atol=1e-5)


def test_the_own_prior_leaves_the_own_head_where_the_penalty_is_large(problem: Any):
    features, outputs, own = problem
    far = carry(features, outputs, own, HeadSettings(penalty=1e9, prior="own"))
    torch.testing.assert_close(far.weight, own.weight, rtol=1e-5, atol=1e-6)
    near = carry(features, outputs, own, HeadSettings(penalty=1e-9, prior="own"))
    plain = carry(features, outputs, own, HeadSettings(penalty=1e-9, prior="zero"))
    torch.testing.assert_close(near.weight, plain.weight, rtol=1e-3, atol=1e-4)


def _spread(features: torch.Tensor) -> float:
    return float((features - features.mean(0)).double().square().sum())


def test_by_default_the_penalty_is_the_one_that_foretells_outputs_left_out(problem: Any):
    features, outputs, own = problem

    def left_out(penalty: float) -> float:
        errors = []
        for row in range(len(features)):
            others = torch.arange(len(features)) != row
            # λ is a share of the variance of the rows at hand
            share = penalty * _spread(features) / _spread(features[others])
            head = carry(features[others], outputs[others], own, HeadSettings(penalty=share))
            errors.append((head(features[row]) - outputs[row]).square().mean().item())
        return float(np.mean(errors))

    chosen = carry(features, outputs, own, HeadSettings())
    grid = [10.0 ** (power / 4) for power in range(-12, 9)]
    best = carry(features, outputs, own, HeadSettings(penalty=min(grid, key=left_out)))
    torch.testing.assert_close(chosen.weight, best.weight, rtol=1e-4, atol=1e-5)


def test_features_that_did_not_move_keep_the_own_head(problem: Any):
    features, _, own = problem
    result = carry(features, own(features), own, HeadSettings())
    torch.testing.assert_close(result.weight, own.weight, rtol=1e-5, atol=1e-5)


def test_a_single_input_moves_no_weight(problem: Any):
    features, outputs, own = problem
    result = carry(features[:1], outputs[:1], own, HeadSettings())
    torch.testing.assert_close(result.weight, own.weight)
    torch.testing.assert_close(result(features[:1]), outputs[:1], rtol=1e-4, atol=1e-4)


def test_a_head_without_bias_stays_without(problem: Any):
    features, outputs, own = problem
    bare = LinearHead(own.weight)
    assert carry(features, outputs, bare, HeadSettings()).bias is None
    assert tune(bare, features, outputs.argmax(1), HeadSettings()).bias is None


def test_tuning_and_polishing_lower_their_losses(problem: Any):
    features, outputs, own = problem
    labels = outputs.argmax(1)
    tuned = tune(own, features, labels, HeadSettings())
    assert functional.cross_entropy(tuned(features), labels) < functional.cross_entropy(own(features), labels)
    carried = carry(features, outputs, own, HeadSettings())
    polished = polish(carried, features, outputs, HeadSettings())
    wanted = outputs.softmax(1)
    assert functional.cross_entropy(polished(features), wanted) < functional.cross_entropy(
        carried(features), wanted
    )


def test_the_papers_schedule_tunes_a_head_when_the_next_model_comes(toy: Any):
    fusion = Fusion(toy.base, "average", heads=("tuned", "tuned-fresh"), keep_inputs=None)
    toy.join(fusion, 0)
    assert "tuned" not in fusion.tasks[0].heads
    assert "tuned-fresh" in fusion.tasks[0].heads
    toy.join(fusion, 1)
    tuned = fusion.tasks[0].heads["tuned"].weight.clone()
    assert not torch.equal(tuned, fusion.tasks[0].heads["own"].weight)
    assert "tuned" not in fusion.tasks[1].heads
    toy.join(fusion, 2)
    assert torch.equal(tuned, fusion.tasks[0].heads["tuned"].weight)  # older heads stay
    assert "tuned" in fusion.tasks[1].heads
    assert torch.equal(fusion.head("task-2").weight, fusion.tasks[2].heads["own"].weight)


def test_the_last_head_is_tuned_too_on_request(toy: Any):
    fusion = Fusion(toy.base, "average", heads="tuned", head_options={"final_head": True}, keep_inputs=None)
    toy.join(fusion, 0)
    assert "tuned" in fusion.tasks[0].heads


def test_tuned_heads_see_a_quarter_of_the_labels(toy: Any):
    fusion = Fusion(toy.base, "average", heads="tuned", keep_inputs=None)
    toy.join(fusion, 0)
    kept = fusion.tasks[0].store.kept()
    assert kept is not None
    assert kept.labels is not None
    assert (len(kept), len(kept.labels)) == (160, 40)


def test_carried_once_stays_and_carried_follows_the_backbone(toy: Any):
    fusion = Fusion(toy.base, "opcm", heads=("carried", "carried-once"), keep_inputs=None)
    toy.join(fusion, 0)
    once, fresh = (fusion.head("task-0", kind).weight.clone() for kind in ("carried-once", "carried"))
    torch.testing.assert_close(once, fresh)  # the same rows, the same backbone
    toy.join(fusion, 1)
    assert torch.equal(once, fusion.head("task-0", "carried-once").weight)
    assert not torch.equal(fresh, fusion.head("task-0", "carried").weight)


def test_no_labels_are_kept_unless_heads_are_tuned(toy: Any):
    fusion = Fusion(toy.base, "average", heads="carried", keep_inputs=None)
    toy.join(fusion, 0)
    kept = fusion.tasks[0].store.kept()
    assert kept is not None
    assert kept.labels is None


@pytest.mark.parametrize(
    ("asked", "kept", "message"),
    [
        ("carryed", True, "there is no kind of head 'carryed'; did you mean 'carried'?"),
        ("carried", False, "allow inputs to be kept"),
        ((), True, "no kind of head is asked for"),
    ],
)
def test_a_kind_of_head_that_cannot_be_is_one_sentence(asked: Any, kept: bool, message: str):
    with pytest.raises(OptionError) as caught:
        head_kinds(asked, kept=kept)
    assert message in str(caught.value)


def test_auto_heads_follow_what_may_be_kept():
    assert head_kinds("auto", kept=True) == ("carried-polished",)
    assert head_kinds("auto", kept=False) == ("carried-once",)
