"""Masks by the descent of the target."""

import pytest
import torch

from transship.verbs.transport import transport
from transship.verbs.transport.methods.gradfix import Gradfix


def test_gradfix_keeps_what_goes_downhill(layers):
    pair, _ = layers.layer_pair(4, 3, 4, 3)
    update = layers.gaussian(3, 4, seed=4)
    update[0, 0] = 0.0
    moved = Gradfix().transport(update, pair)
    expected = torch.where(update * pair.descent > 0, update, torch.zeros_like(update))
    assert torch.equal(moved, expected)
    # a first-order promise: the masked update lowers the loss
    assert float((moved * -pair.descent).sum()) < 0
    forced = Gradfix(force=True).transport(update, pair)
    assert torch.equal(forced, update.abs() * torch.sign(pair.descent))


def test_gradfix_control_masks_noise_of_the_same_norm(layers):
    pair, _ = layers.layer_pair(4, 3, 4, 3)
    update = layers.gaussian(3, 4, seed=4)
    control = Gradfix(control=True).transport(update, pair)
    assert bool(((control == 0) | (torch.sign(control) == torch.sign(pair.descent))).all())
    assert not torch.equal(control, Gradfix().transport(update, pair))


@pytest.mark.parametrize("vote", ["mean", "max"])
def test_gradfix_masks_by_the_targets_own_gradients_against_the_fine_tuned_source(kit, vote: str):
    source, target = kit.tiny_vit(), kit.tiny_vit(seed=4)
    tuned, images = kit.nudge(source, size=0.3), torch.from_numpy(kit.pictures(64))
    wanted = kit.logits(tuned, images.numpy()).argmax(1)
    work = (source, tuned, target)
    given = {"data": images, "method": "gradfix", "options": {"vote": vote}, "strength": 1.0, "batches": 2}
    moved = transport(*work, **given).moved.dense
    # a key's bias shifts all scores of a query alike, so its true gradient is zero
    felt = {name: each for name, each in target.named_parameters() if not name.endswith("k_proj.bias")}
    assert len(felt) == len(list(target.parameters())) - 2
    assert set(felt) <= set(moved)
    descent = {name: torch.zeros_like(each) for name, each in felt.items()}
    for rows in [slice(0, 64)] if vote == "mean" else [slice(row, row + 1) for row in range(64)]:
        loss = torch.nn.functional.cross_entropy(target(images[rows]).logits, wanted[rows], reduction="sum")
        for name, part in zip(felt, torch.autograd.grad(loss, list(felt.values())), strict=True):
            descent[name] -= part if vote == "mean" else part.sign()
    for name, down in descent.items():
        update = (tuned.get_parameter(name) - source.get_parameter(name)).detach()
        expected = torch.where(update * down > 0, update, torch.zeros_like(update))
        # a gradient of rounding size may have either sign
        assert float((moved[name] != expected).double().mean()) < 0.01, name
