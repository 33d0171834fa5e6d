"""Controls move what THESEUS moves: the same tensors under the same roles, random where they say so."""

import pytest
import torch
from torch import Tensor, nn

from transship.verbs.transport import transport

ANY_WIDTH = ("gradient", "pad", "pinv", "pinv-tikhonov", "random", "random-aligned")
SAME_WIDTH = (*ANY_WIDTH, "identity", "transfusion", "gradfix")


def moved_by(method: str, models, data, **given):
    return transport(*models, data=data, method=method, strength=1.0, batches=1, **given).moved


def cosine(one: Tensor, other: Tensor) -> float:
    return abs(float(torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0)))


@pytest.mark.parametrize("roles", ["all", "paper", {"norms": "diagonal", "patches": "keep"}])
def test_every_method_moves_the_tensors_that_theseus_moves(kit, roles):
    source = kit.tiny_vit(16)
    tuned, images = kit.nudge(source), kit.pictures(48)
    for target, names in ((kit.tiny_vit(24, seed=4), ANY_WIDTH), (kit.tiny_vit(16, seed=4), SAME_WIDTH)):
        models = source, tuned, target
        wanted = moved_by("theseus", models, images, roles=roles)
        if roles == "all":
            assert set(wanted.dense) == {name for name, _ in target.named_parameters()}
        for name in names:
            moved = moved_by(name, models, images, roles=roles)
            assert set(moved.dense) == set(wanted.dense), name
            assert {each.tensor for each in moved.left} == {each.tensor for each in wanted.left}, name


@pytest.mark.parametrize("method", ["random", "random-aligned"])
def test_a_random_update_is_random_in_every_tensor_and_keeps_every_norm(kit, method):
    # towards one width both theseus and a random update keep the norm of every tensor
    source, target = kit.tiny_vit(), kit.tiny_vit(seed=4)
    models, images = (source, kit.nudge(source), target), kit.pictures(256)
    theseus = moved_by("theseus", models, images).dense
    moved, other = (moved_by(method, models, images, seed=seed).dense for seed in (0, 1))
    for name, change in moved.items():
        assert float(change.norm()) == pytest.approx(float(theseus[name].norm()), rel=2e-2), name
        assert not torch.allclose(change, other[name]), f"{name} does not depend on the seed"
        assert not torch.allclose(change, theseus[name]), name
        if change.numel() >= 64:
            assert cosine(change, theseus[name]) < 0.5, name
    norm = "vit.layers.0.layernorm_before."
    assert cosine(moved[norm + "weight"], moved[norm + "bias"]) < 0.9, "two vectors are drawn apart"


def test_a_random_update_does_not_read_the_tables_of_the_fine_tune(kit):
    """Two fine-tunes whose changes have the same norms give one random update."""
    source, target = kit.tiny_vit(16), kit.tiny_vit(24, seed=4)
    images = kit.pictures(48)
    for method in ("random", "random-aligned"):
        first, other = (
            moved_by(method, (source, kit.nudge(source, seed=seed), target), images).dense for seed in (3, 5)
        )
        for name, change in first.items():
            torch.testing.assert_close(change, other[name], atol=1e-5, rtol=1e-3, msg=f"{method} {name}")


def test_controls_move_the_tables_of_a_text_model_where_strings_and_heads_correspond(kit):
    from transformers import T5Config, T5ForConditionalGeneration

    def t5(width: int, heads: int, seed: int) -> nn.Module:
        shape = {"d_model": width, "d_kv": 8, "d_ff": 2 * width, "num_layers": 1, "num_heads": heads}
        config = T5Config(vocab_size=40, dropout_rate=0.0, decoder_start_token_id=0, **shape)
        torch.manual_seed(seed)
        return kit.spread(T5ForConditionalGeneration(config), seed).eval()

    source, target = t5(16, 2, 1), t5(24, 3, 2)
    models, ids = (source, kit.nudge(source), target), torch.randint(3, 40, (32, 7))

    def preprocess(rows):
        words = torch.stack([torch.as_tensor(row) for row in rows])
        return {"input_ids": words, "decoder_input_ids": words}

    wanted = moved_by("theseus", models, ids, preprocess=preprocess).dense
    table = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    assert {table, "shared.weight"} <= set(wanted)
    for method in ("random", "random-aligned", "pinv-tikhonov"):
        moved = moved_by(method, models, ids, preprocess=preprocess).dense
        assert set(moved) == set(wanted), method
        assert all(bool(torch.isfinite(change).all()) for change in moved.values())
        assert float(moved[table].norm()) > 0
        if method != "pinv-tikhonov":
            assert cosine(moved["shared.weight"], wanted["shared.weight"]) < 0.5, method
