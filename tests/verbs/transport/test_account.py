"""What a transport says of itself: which inputs it compared on, what it left out, what its maps carry."""

import numpy as np
import pytest
import torch

from transship.errors import MatchError
from transship.verbs.transport import transport
from transship.verbs.transport.rows import draw


@pytest.mark.parametrize(("rows", "fitted"), [(64, True), (400, False)])
def test_auto_says_so_when_it_compares_on_inputs_that_maps_were_fitted_on(kit, tmp_path, rows, fitted):
    source = kit.tiny_vit(16)
    models = source, kit.nudge(source, size=0.3), kit.tiny_vit(24, seed=4)
    images = kit.pictures(rows)
    drawn = draw(images, batches=2)
    inside = [any(np.array_equal(each, other) for other in drawn.calibration) for each in drawn.held_out]
    assert all(inside) if fitted else not any(inside)
    result = transport(*models, data=images, batches=2, strength=1.0)
    text = " ".join(result.notes)
    assert ("of the inputs that maps were fitted on" in text) == fitted
    assert ("% of calibration inputs" in text) == fitted
    assert ("% of new inputs" in text) != fitted
    assert ("agreement on held-out inputs" in result.metrics) != fitted
    assert f"{len(inside)} " in result.compared_on
    assert ("no map or head was fitted on" in result.compared_on) != fitted
    assert result.summary()["compared_on"] == result.compared_on
    page = result.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert result.compared_on in page


def test_auto_names_what_it_left_out_and_inputs_that_were_not_kept(kit, monkeypatch):
    from transship.verbs.transport import auto

    source = kit.tiny_vit(16)
    models = source, kit.nudge(source, size=0.3), kit.tiny_vit(24, seed=4)
    moving = auto.move

    def failing(plan, statistics, method):
        if method.name == "gradient":
            raise MatchError("its units were not matched", where="vision.0", fix="use theseus")
        return moving(plan, statistics, method)

    monkeypatch.setattr(auto, "move", failing)
    monkeypatch.setattr(auto, "CARRY_MARGIN", 2.0)
    images = kit.pictures(96)
    result = transport(*models, data=images, batches=1, strength=1.0, keep=images)
    assert result.head is None
    assert "'gradient' was left out: vision.0: its units were not matched; use theseus" in result.notes
    assert "gradient" not in {candidate.method for candidate in result.candidates}
    assert any(note.startswith("--keep was not used") for note in result.notes)
    monkeypatch.setattr(auto, "CARRY_MARGIN", -2.0)
    kept = transport(*models, data=images, batches=1, strength=1.0, keep=images)
    assert kept.head is not None
    assert not any(note.startswith("--keep was not used") for note in kept.notes)


def test_energy_is_the_share_in_directions_that_the_inputs_showed_however_maps_are_completed(kit):
    source, target = kit.tiny_vit(16), kit.tiny_vit(24, seed=4)
    tuned = kit.nudge(source)
    name = "vit.layers.1.attention.q_proj.weight"
    seen: list[torch.Tensor] = []
    layer = source.get_submodule(name.removesuffix(".weight"))
    energies = {}
    for complete in ("zero", "identity", "svd"):
        result = transport(
            source,
            tuned,
            target,
            data=kit.pictures(4),
            method="theseus",
            strength=1.0,
            batches=1,
            batch_size=4,
            tokens_per_input=0,
            align="cls",
            options={"complete": complete},
        )
        energies[complete] = next(layer for layer in result.moved.layers if layer.tensor == name)
    hook = layer.register_forward_hook(lambda module, given, made: seen.append(given[0][:, 0]))
    kit.logits(source, kit.pictures(4))
    hook.remove()
    basis = torch.linalg.qr(seen[0].T)[0]  # the first tokens of four images span four directions
    change = (tuned.get_parameter(name) - source.get_parameter(name)).detach()
    wanted = float((change @ basis).square().sum() / change.square().sum())
    assert 0.05 < wanted < 0.6
    for complete, right in energies.items():
        assert right.rank_in[0] == 4
        assert right.energy_in == pytest.approx(wanted, rel=1e-3), complete


def test_a_part_of_a_fused_weight_that_stays_is_listed_though_others_move(kit):
    from transformers import Phi3Config, Phi3Model

    def phi(seed: int, keys: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
        names = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        return kit.spread(
            Phi3Model(Phi3Config(vocab_size=20, num_key_value_heads=keys, **shape, **names)), seed
        )

    source, target = phi(1, 2), phi(2, 4)
    ids = torch.randint(3, 20, (32, 6), generator=torch.Generator().manual_seed(0))
    result = transport(
        source,
        kit.nudge(source),
        target,
        data=ids,
        method="identity",
        strength=1.0,
        batches=1,
        preprocess=lambda rows: {"input_ids": torch.stack([torch.as_tensor(row) for row in rows])},
    )
    name = "layers.0.self_attn.qkv_proj.weight"
    assert float(result.moved.dense[name][:32].norm()) > 0
    assert float(result.moved.dense[name][32:].norm()) == 0
    left = {each.role: each for each in result.moved.left if each.tensor == name}
    assert set(left) == {"attention.key", "attention.value"}
    for role, right in left.items():
        assert right.reason == f"its part {role}: 'identity' moves between equal shapes only"
        assert right.norm > 0
