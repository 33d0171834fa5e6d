"""Whole transports on small random transformers: exact where they can be, complete, and bit for bit at
strength 0.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from transship.errors import CheckpointError, OptionError
from transship.verbs.transport import transport


def test_one_model_gets_its_own_update_back(kit):
    source = kit.tiny_vit().double()
    tuned = kit.nudge(source)
    result = transport(
        source,
        tuned,
        source,
        data=kit.pictures(64).astype(np.float64),
        method="theseus",
        strength=1.0,
        batches=2,
    )
    before, after = dict(source.named_parameters()), dict(tuned.named_parameters())
    assert not result.moved.left
    for name, moved in result.moved.dense.items():
        torch.testing.assert_close(moved, (after[name] - before[name]).float(), atol=2e-6, rtol=1e-4)
    assert set(result.moved.dense) == set(before)


@pytest.mark.parametrize("method", ["theseus", "gradient", "transfusion"])
def test_a_permuted_twin_gets_the_permuted_fine_tune(kit, method):
    source = kit.tiny_vit().double()
    twin = kit.permuted_vit(source)
    images = kit.pictures(128).astype(np.float64)
    torch.testing.assert_close(kit.logits(twin, images), kit.logits(source, images))
    tuned = kit.nudge(source)
    result = transport(source, tuned, twin, data=images, method=method, strength=1.0, batches=4)
    fresh = kit.pictures(16, seed=5).astype(np.float64)
    moved, wanted = kit.logits(result.model(), fresh), kit.logits(tuned, fresh)
    assert not result.moved.left
    assert float((moved - wanted).abs().max()) < 1e-4
    assert float((kit.logits(twin, fresh) - wanted).abs().max()) > 0.05, "the fine-tune does something"


def test_strength_zero_is_the_target_bit_for_bit(kit):
    source, target = kit.tiny_vit(), kit.tiny_vit(48, seed=4)
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    result = transport(
        source, kit.nudge(source), target, data=kit.pictures(32), method="theseus", strength=3.0, batches=1
    )
    for model in (target, result.at(0.0).model()):
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, before[name]), name


def test_the_norm_is_kept_towards_a_wider_target(kit):
    source, target = kit.tiny_vit(32).double(), kit.tiny_vit(48, seed=4).double()
    images = kit.pictures(256).astype(np.float64)
    result = transport(
        source, kit.nudge(source), target, data=images, method="theseus", strength=1.0, batches=8
    )
    weights = [layer for layer in result.moved.layers if layer.rank_in is not None]
    assert len(weights) == 12
    for layer in weights:
        assert layer.rank_in[0] == layer.rank_in[1]
        assert layer.kept == pytest.approx(1.0, abs=1e-6)


def test_towards_a_narrower_target_every_layer_says_what_it_keeps(kit):
    source, target = kit.tiny_vit(48), kit.tiny_vit(32, seed=4)
    tuned = kit.nudge(source)
    result = transport(source, tuned, target, data=kit.pictures(128), method="theseus", strength=1.0)
    weights = {layer.tensor: layer for layer in result.moved.layers if layer.rank_in is not None}
    assert len(weights) == 12
    before, after = dict(source.named_parameters()), dict(tuned.named_parameters())
    for name, layer in weights.items():
        change = (after[name] - before[name]).detach()
        wanted = float(result.moved.dense[name].norm() / change.norm())
        assert 0.2 < layer.kept < 0.99
        assert layer.kept == pytest.approx(wanted, rel=1e-4)
        assert (
            layer.rank_in[0]
            == layer.rank_in[1]
            == min(before[name].shape[1], target.get_parameter(name).shape[1])
        )
        assert layer.kept**2 <= layer.energy_in < 1.0
    by_name = {layer["tensor"]: layer["kept"] for layer in result.summary()["layers"]}
    assert all(by_name[name] == layer.kept for name, layer in weights.items())


def test_norm_gains_move_as_a_vector_as_a_diagonal_or_not_at_all(kit):
    source, target = kit.tiny_vit(32), kit.tiny_vit(48, seed=4)
    tuned, name = kit.nudge(source), "vit.layers.0.layernorm_before.weight"
    change = (tuned.get_parameter(name) - source.get_parameter(name)).detach()
    given = {"data": kit.pictures(256), "method": "theseus", "strength": 1.0, "batches": 8}
    by_name = {
        choice: transport(source, tuned, target, roles={"norms": choice}, **given).moved
        for choice in ("vector", "diagonal", "keep")
    }
    vector, diagonal = (by_name[choice].dense[name] for choice in ("vector", "diagonal"))
    # rows of T are orthonormal: Tᵀδγ keeps the length, (T ∘ T)ᵀδγ the sum
    assert float(vector.norm()) == pytest.approx(float(change.norm()), rel=1e-5)
    assert float(diagonal.sum()) == pytest.approx(float(change.sum()), rel=1e-4)
    assert not torch.allclose(vector, diagonal, atol=1e-4)
    assert name not in by_name["keep"].dense
    assert "norms are kept (roles)" in {each.reason for each in by_name["keep"].left if each.tensor == name}


def test_shots_are_labelled_rows_per_class_of_the_training_part_alone():
    from transship.data import wrap
    from transship.verbs.transport.rows import draw

    rows, labels = np.arange(300.0).reshape(300, 1), np.arange(300) % 5
    parts = np.repeat(["train", "validation", "test"], 100)
    data = wrap(rows, labels, kind="array", splits=list(parts))
    result = draw(data, shots=3, seed=1)
    chosen = np.concatenate(list(result.calibration)).astype(int)
    assert np.bincount(labels[chosen]).tolist() == [3] * 5
    assert result.calibration_labels.tolist() == labels[chosen].tolist()
    for drawn in (result.calibration, result.head, result.held_out):
        assert set(parts[np.concatenate(list(drawn)).astype(int)]) == {"train"}
    assert set(parts[np.concatenate(list(result.validation)).astype(int)]) == {"validation"}
    again, other = (np.concatenate(list(draw(data, shots=3, seed=seed).calibration)) for seed in (1, 2))
    assert again.tolist() == chosen.tolist() != other.tolist()


def test_another_depth_moves_interpolated_updates_through_interpolated_moments(kit):
    source, target = kit.tiny_vit(32, 2), kit.tiny_vit(48, 3, seed=4)
    result = transport(
        source, kit.nudge(source), target, data=kit.pictures(64), method="theseus", strength=1.0, batches=2
    )
    between = next(
        layer for layer in result.moved.layers if layer.site == "vision.1.mlp.in" and layer.rank_in
    )
    assert between.sources == ("vision.0.mlp.in", "vision.1.mlp.in")
    assert not result.moved.left


def test_every_change_is_moved_or_listed_with_its_reason(kit):
    source, target = kit.tiny_vit(), kit.tiny_vit(48, seed=4, classes=7)
    tuned = kit.nudge(source)
    for roles in ("all", "paper"):
        result = transport(
            source,
            tuned,
            target,
            data=kit.pictures(32),
            method="theseus",
            strength=1.0,
            batches=1,
            roles=roles,
        )
        left = {each.tensor: each.reason for each in result.moved.left}
        assert "different outputs" in left["classifier.weight"] or "kept" in left["classifier.weight"]
        names = {name for name, _ in source.named_parameters()}
        moved = {name for name in names if name in result.moved.dense}
        assert moved | set(left) == names
        assert all(left.values())
    assert "vit.embeddings.cls_token" in left


def test_a_head_that_grew_in_the_fine_tune_is_listed(kit, tmp_path):
    source, target = kit.tiny_vit(classes=3), kit.tiny_vit(48, seed=4, classes=3)
    tuned = kit.tiny_vit(classes=5)
    tuned.vit.load_state_dict(kit.nudge(source.vit).state_dict())
    folders = []
    for name, model in (("a", source), ("tuned", tuned), ("b", target)):
        model.save_pretrained(tmp_path / name)
        folders.append(str(tmp_path / name))
    options = {"data": kit.pictures(32), "method": "theseus", "strength": 1.0, "batches": 1}
    for models in ((source, tuned, target), folders):
        left = {each.tensor: each for each in transport(*models, **options).moved.left}
        assert set(left) == {"classifier.weight", "classifier.bias"}
        assert left["classifier.weight"].reason == "it is 3 × 32 in the source and 5 × 32 in its fine-tune"
        assert left["classifier.weight"].role == "head"


def test_a_finer_patch_grid_is_aligned_and_its_tables_are_resampled(kit):
    source, target = kit.tiny_vit(), kit.tiny_vit(48, seed=4, patch=4)
    result = transport(
        source, kit.nudge(source), target, data=kit.pictures(32), method="theseus", strength=1.0, batches=1
    )
    assert not result.moved.left
    assert result.moved.dense["vit.embeddings.position_embeddings"].shape == (1, 50, 48)


def test_auto_strength_agrees_with_the_fine_tuned_source_without_labels(kit):
    source = kit.tiny_vit()
    twin = kit.permuted_vit(source)
    tuned = kit.nudge(source, size=0.3)
    result = transport(source, tuned, twin, data=kit.pictures(96), method="theseus", batches=3)
    assert result.choice.by == "agreement"
    assert result.strength == 1.0
    assert result.choice.score > 0.95


def test_statistics_are_reused_by_a_second_run(kit, tmp_path, monkeypatch):
    source, target = kit.tiny_vit(), kit.tiny_vit(48, seed=4)
    arguments = {
        "data": kit.pictures(64),
        "method": "theseus",
        "strength": 1.0,
        "batches": 2,
        "prepared": tmp_path,
    }
    first = transport(source, kit.nudge(source), target, **arguments)
    from transship.activations.step import Stepper

    def refuse(*_):
        raise AssertionError("the models ran again")

    monkeypatch.setattr(Stepper, "step", refuse)
    second = transport(source, kit.nudge(source), target, **arguments)
    for name, moved in first.moved.dense.items():
        assert torch.equal(moved, second.moved.dense[name])


def test_a_killed_run_goes_on_where_it_stopped(kit, tmp_path, monkeypatch):
    from transship.activations.step import Stepper

    source, target = kit.tiny_vit(), kit.tiny_vit(48, seed=4)
    tuned, data = kit.nudge(source), kit.pictures(256)
    whole = transport(
        source,
        tuned,
        target,
        data=data,
        method="theseus",
        strength=1.0,
        batches=8,
        prepared=tmp_path / "whole",
    )
    step, calls = Stepper.step, []

    def counted(self, items, *rest, limit):
        calls.append(len(items))
        if len(calls) > limit:
            raise KeyboardInterrupt
        return step(self, items, *rest)

    monkeypatch.setattr(Stepper, "step", lambda self, *given: counted(self, *given, limit=5))
    with pytest.raises(KeyboardInterrupt):
        transport(
            source,
            tuned,
            target,
            data=data,
            method="theseus",
            strength=1.0,
            batches=8,
            prepared=tmp_path / "cut",
        )
    calls.clear()
    monkeypatch.setattr(Stepper, "step", lambda self, *given: counted(self, *given, limit=99))
    resumed = transport(
        source, tuned, target, data=data, method="theseus", strength=1.0, batches=8, prepared=tmp_path / "cut"
    )
    assert len(calls) == 4, "the first half was saved"
    for name, moved in whole.moved.dense.items():
        assert torch.equal(moved, resumed.moved.dense[name])


# A command that ends as `kill -9` ends it, before the sixth batch of a stage.
KILLED = """
import os, signal, sys
from transship.activations.step import Stepper
from transship.cli.transport import command
from transship.verbs.transport.gradients import GradientStep
stage = {"activations": Stepper, "gradients": GradientStep}[sys.argv.pop(1)]
step, calls = stage.step, []
def dying(*given):
    if len(calls) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    calls.append(given)
    step(*given)
stage.step = dying
command()
"""


@pytest.mark.slow
def test_a_command_that_is_killed_twice_reuses_what_it_saved(kit, tmp_path, monkeypatch):
    from click.testing import CliRunner

    from transship.activations.step import Stepper
    from transship.cli.transport import command
    from transship.verbs.transport.gradients import GradientStep

    source = kit.tiny_vit()
    models = {"a": source, "tuned": kit.nudge(source), "b": kit.tiny_vit(48, seed=4)}
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
    np.save(tmp_path / "images.npy", kit.pictures(256))
    given = ["--data", str(tmp_path / "images.npy"), "--method", "gradient", "--batches", "8"]
    monkeypatch.setenv("TRANSSHIP_CACHE", str(tmp_path / "cache"))

    def arguments(out: str) -> list[str]:
        return [*(str(tmp_path / name) for name in (*models, out)), *given, "--strength", "1"]

    for stage in ("activations", "gradients"):
        killed = [sys.executable, "-c", KILLED, stage, *arguments("out")]
        assert subprocess.run(killed, capture_output=True, check=False).returncode == -signal.SIGKILL
        assert not (tmp_path / "out").exists()
    calls: dict[type, int] = {Stepper: 0, GradientStep: 0}
    for stage, step in ((Stepper, Stepper.step), (GradientStep, GradientStep.step)):

        def counted(self, *rest, stage=stage, step=step):
            calls[stage] += 1
            return step(self, *rest)

        monkeypatch.setattr(stage, "step", counted)
    assert CliRunner().invoke(command, arguments("out")).exit_code == 0
    assert calls == {Stepper: 0, GradientStep: 4}, "four of eight batches of gradients were saved"
    assert not list((tmp_path / "cache" / "transport").iterdir()), "nobody needs them any more"
    assert CliRunner().invoke(command, arguments("whole")).exit_code == 0
    assert calls == {Stepper: 8, GradientStep: 12}
    output = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "whole")]
    assert output[0] == output[1]


def test_wrong_pairs_are_named(kit):
    source, target = kit.tiny_vit(), kit.tiny_vit(seed=4)
    tuned = kit.nudge(source)
    with pytest.raises(CheckpointError, match="it is a fine-tune of TARGET"):
        transport(target, tuned, source, data=kit.pictures(8), method="theseus")
    with pytest.raises(CheckpointError, match="no fine-tune of it"):
        transport(source, kit.tiny_vit(seed=8), target, data=kit.pictures(8), method="theseus")
    with pytest.raises(CheckpointError, match="equal those of"):
        transport(source, source, target, data=kit.pictures(8), method="theseus")
    with pytest.raises(OptionError, match="is no strength"):
        transport(source, tuned, target, data=kit.pictures(8), method="theseus", strength="much")


def test_the_same_arguments_give_the_same_bytes(kit):
    source, target = kit.tiny_vit(), kit.tiny_vit(48, seed=4)
    denses = [
        transport(
            source, kit.nudge(source), target, data=kit.pictures(64), method=method, strength=1.0, batches=2
        ).moved.dense
        for method in ("gradient", "gradient", "random-aligned", "random-aligned")
    ]
    for first, other in ((denses[0], denses[1]), (denses[2], denses[3])):
        assert all(torch.equal(first[name], other[name]) for name in first)


def test_memory_does_not_grow_with_batches(kit):
    source, target = kit.tiny_vit(), kit.tiny_vit(48, seed=1)
    data = kit.pictures(3200)
    marks: dict[str, dict[int, int]] = {}

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    transport(
        source,
        kit.nudge(source),
        target,
        data=data,
        method="gradient",
        strength=1.0,
        batches=100,
        tokens_per_input=4,
        progress=lambda what, done, total: marks.setdefault(what, {}).update({done: resident()}),
    )
    assert set(marks) == {"activations", "gradients"}
    for what, seen in marks.items():
        assert len(seen) == 100
        growth = max(seen.values()) - max(size for done, size in seen.items() if done <= 640)
        assert growth < 8 * 2**20, f"{what} grew by {growth / 2**20:.1f} MB after twenty batches"


@pytest.mark.slow
def test_pairs_of_texts_move_between_tokenizers(minilm, models_dir):
    """A pair is read as two texts by both models, and its words are aligned text by text."""
    from transship.activations import load_model

    pairs = [(f"a dog and {n} cats", f"{n} animals are unmistakably here") for n in range(48)]
    source = load_model(minilm)
    tuned = load_model(kit_nudged(source.model), name="tuned")
    tuned.tokenizer, tuned.max_length = source.tokenizer, source.max_length
    result = transport(
        source,
        tuned,
        load_model(models_dir / "granite-small"),
        data=pairs,
        method="theseus",
        strength=2.0,
        batches=1,
    )
    linear = [layer for layer in result.moved.layers if layer.residual_out is not None]
    assert len(linear) == 6 * 6
    # unrelated encoders agree far more on the same words than a random alignment would
    assert sum(layer.residual_out for layer in linear) / len(linear) < 0.7


def kit_nudged(model: torch.nn.Module) -> torch.nn.Module:
    import copy

    copied = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in copied.named_parameters():
            if "encoder" in name:
                parameter.mul_(1.01)
    return copied
