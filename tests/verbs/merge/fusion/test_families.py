"""Real architectures on disk: they join, are saved, load by from_pretrained, and go on where they stopped."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from transship.activations import load_model
from transship.verbs.merge.fusion import Fusion

HEADED = ["bert", "roberta", "distilbert", "vit", "llama-classes"]
HEADLESS = ["clip", "t5", "llama"]


@pytest.mark.parametrize("name", HEADED)
@pytest.mark.parametrize("method", ["opcm", "otmf"])
def test_tasks_join_and_each_loads_by_from_pretrained(
    name: str, method: str, family: Callable[[str], Path], rows: Callable[..., Any], tmp_path: Path
):
    folder = family(name)
    options = {"iterations": 4, "batch_size": 8} if method == "otmf" else {}
    fusion = Fusion(folder / "base", method, options=options, heads=("carried", "own"), keep_inputs=20)
    for number in range(2):
        fusion.add(folder / f"task-{number}", rows(name, 30, number))
    fusion.save(tmp_path / "out")
    fresh = rows(name, 6, 9)
    for number in range(2):
        place = tmp_path / "out" / "tasks" / f"task-{number}"
        expected = fusion.predict(f"task-{number}", fresh)
        loaded = load_model(place, head=True)
        assert not loaded.unused
        with torch.no_grad():
            result = loaded.run(loaded.preprocess(fresh))["logits"]
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    merged, loaded = fusion.parameters, transformers.AutoModel.from_pretrained(tmp_path / "out").state_dict()
    same = [(key, own) for key in merged for own in loaded if key == own or key.endswith(f".{own}")]
    assert len(same) == len(merged)
    for key, own in same:
        torch.testing.assert_close(loaded[own], merged[key])


@pytest.mark.parametrize("name", HEADED)
def test_a_loaded_fusion_goes_on_as_one_that_never_stopped(
    name: str, family: Callable[[str], Path], rows: Callable[..., Any], tmp_path: Path
):
    folder = family(name)
    through = Fusion(folder / "base", "opcm", keep_inputs=20)
    stopped = Fusion(folder / "base", "opcm", keep_inputs=20)
    stopped.save(tmp_path / "out")
    for number in range(3):
        given = rows(name, 30, number)
        through.add(folder / f"task-{number}", given)
        Fusion.load(tmp_path / "out").add(folder / f"task-{number}", given).save(tmp_path / "out", force=True)
    again = Fusion.load(tmp_path / "out")
    for key, tensor in through.vector.items():
        assert torch.equal(again.vector[key], tensor), key
    fresh = rows(name, 6, 9)
    for task in through.tasks:
        torch.testing.assert_close(again.predict(task.name, fresh), through.predict(task.name, fresh))


@pytest.mark.parametrize("name", HEADLESS)
@pytest.mark.parametrize("method", ["average", "otmf"])
def test_models_without_heads_join_and_the_folder_is_the_model(
    name: str, method: str, family: Callable[[str], Path], rows: Callable[..., Any], tmp_path: Path
):
    folder = family(name)
    options = {"iterations": 4, "batch_size": 8} if method == "otmf" else {}
    fusion = Fusion(folder / "base", method, options=options, keep_inputs=12)
    for number in range(2):
        fusion.add(folder / f"task-{number}", rows(name, 12, number))
    fusion.save(tmp_path / "out")
    assert not (tmp_path / "out" / "tasks").exists()
    model = load_model(tmp_path / "out", head=name != "clip")
    for key, tensor in dict(model.model.named_parameters()).items():
        torch.testing.assert_close(tensor, fusion.parameters[key])
    assert Fusion.load(tmp_path / "out").history[-1].shift.keys() == {"task-0", "task-1"}
