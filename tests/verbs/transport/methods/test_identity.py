"""The plain update: equal shapes, and near copies of blocks between relatives."""

import pytest
import torch

from transship.activations import load_model
from transship.errors import OptionError
from transship.verbs.transport import Request, Settings, kinship, make_plan, transport
from transship.verbs.transport.methods.identity import Identity


def test_identity_refuses_other_shapes(layers):
    pair, _ = layers.layer_pair(4, 3, 6, 5)
    with pytest.raises(OptionError, match="cannot move an update of shape"):
        Identity().transport(layers.gaussian(3, 4), pair)


def grown(source, kit, *, seed: int = 4):
    """A deeper relative: its even blocks are near copies of the source's, the odd ones strangers."""
    import copy

    deep = kit.tiny_vit(32, 4, seed=seed)
    near = kit.nudge(source, size=0.1, seed=8)
    for place, block in enumerate(near.vit.layers):
        deep.vit.layers[2 * place] = copy.deepcopy(block)
    return deep.eval()


def test_identity_moves_an_update_to_the_near_copies_of_its_blocks(kit):
    source = kit.tiny_vit()
    tuned, deep = kit.nudge(source, size=0.3), grown(source, kit)
    outcome = kinship(load_model(source), load_model(deep))
    assert outcome.related
    assert outcome.partners == {0: 0, 2: 1}
    options = {"data": kit.pictures(64), "method": "identity", "strength": 1.0, "batches": 2}
    result = transport(source, tuned, deep, **options)
    before, after = dict(source.named_parameters()), dict(tuned.named_parameters())
    for name in after:
        stem, _, rest = name.partition("vit.layers.")
        if stem:  # outside the blocks
            continue
        block, _, leaf = rest.partition(".")
        moved = result.moved.dense[f"vit.layers.{2 * int(block)}.{leaf}"]
        torch.testing.assert_close(moved, after[name].detach() - before[name].detach())
        assert f"vit.layers.{2 * int(block) + 1}.{leaf}" not in result.moved.dense
    assert not [each for each in result.moved.left if "layers" in each.tensor]
    spread = transport(source, tuned, deep, depth="nearest", **options)
    assert any("layers.1." in name for name in spread.moved.dense), "a depth that is asked for is obeyed"


@pytest.mark.parametrize("method", ["identity", "carry"])
def test_path_steps_move_between_the_same_blocks_as_one_step(kit, method):
    source = kit.tiny_vit()
    tuned, deep = kit.nudge(source, size=0.3), grown(source, kit)
    options = {"body": "identity"} if method == "carry" else {}
    given = {"data": kit.pictures(64), "method": method, "options": options, "strength": 1.0, "batches": 1}
    first, two = (transport(source, tuned, deep, path_steps=steps, **given).moved.dense for steps in (1, 2))
    assert set(first) == set(two)
    for name, change in first.items():
        torch.testing.assert_close(two[name], change, atol=1e-6, rtol=1e-5)


def test_blocks_without_a_near_copy_are_listed(kit):
    source = kit.tiny_vit(32, 4)
    target = kit.tiny_vit(32, 2, seed=4)
    near = kit.nudge(source, size=0.1, seed=8)
    for place in (0, 1):
        target.vit.layers[place] = near.vit.layers[place + 1]
    result = transport(
        source, kit.nudge(source), target, data=kit.pictures(64), method="identity", strength=1.0, batches=2
    )
    left = {each.tensor.split(".")[2]: each.reason for each in result.moved.left if "layers" in each.tensor}
    assert left == dict.fromkeys(("0", "3"), "no block of the target is like its block")


def test_strangers_of_other_depth_keep_the_interpolation(kit):
    source, target = kit.tiny_vit(), kit.tiny_vit(32, 3, seed=4)
    method = Identity()
    models = {"source": source, "tuned": kit.nudge(source), "target": target, "method": method}
    plan = make_plan(Request(data=kit.pictures(64), settings=Settings(batches=2), **models))
    assert plan.kinship is not None
    assert not plan.kinship.related
    assert plan.matching_for(method.needs) is plan.matching
