"""Moments that a collection keeps on disk: after a kill it goes on from them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from transship.activations import CollectedMoments, LoadedModel, collect
from transship.errors import DataError, OptionError, OutputError

Tiny = Callable[..., LoadedModel]


def test_a_killed_collection_continues_to_the_same_result(
    tiny: Tiny, sentences: list[list[int]], tmp_path: Path, assert_same: Any
):
    a, b = tiny("bert"), tiny("distilbert", 1)
    options: dict[str, Any] = {"batch_size": 2, "save_every": 2, "tokens_per_input": 3}
    whole = collect(a, b, None, sentences, folder=tmp_path / "whole", **options)

    calls = 0

    def stop(done: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(a, b, None, sentences, folder=tmp_path / "state", progress=stop, **options)
    # as a kill leaves it that comes while the state before is removed
    (tmp_path / "state" / "state-000-000000001-1").mkdir()
    done: list[int] = []
    resumed = collect(a, b, None, sentences, folder=tmp_path / "state", progress=done.append, **options)
    assert done == [10, 12]  # four of six batches were saved
    assert_same(resumed, whole, 0.0)
    again: list[int] = []
    assert_same(
        collect(a, b, None, sentences, folder=tmp_path / "state", progress=again.append, **options),
        whole,
        0.0,
    )
    assert again == []
    with pytest.raises(OptionError, match="other inputs"):
        collect(a, b, None, [[*ids, 5] for ids in sentences], folder=tmp_path / "state", **options)
    with pytest.raises(OptionError, match="another collection"):
        collect(a, b, None, sentences, folder=tmp_path / "state", **{**options, "tokens_per_input": 2})
    with torch.no_grad():
        b.model.transformer.layer[1].ffn.lin2.bias += 0.01
    with pytest.raises(OptionError, match="another collection"):  # the weights have changed
        collect(a, b, None, sentences, folder=tmp_path / "state", **options)


def test_collected_moments_are_saved_and_loaded(
    tiny: Tiny, sentences: list[list[int]], tmp_path: Path, assert_same: Any
):
    collected = collect(tiny("gpt2"), tiny("llama", 1), None, sentences, parts=("ab", "bb"))
    collected.save(tmp_path / "moments")
    loaded = CollectedMoments.load(tmp_path / "moments")
    assert_same(loaded, collected, 0.0)
    assert loaded.matching == collected.matching
    assert loaded.output("text.1.mlp.out").bb is not None
    with pytest.raises(OutputError):
        collected.save(tmp_path / "moments")
    (tmp_path / "moments" / "collected.json").write_text("{}")
    with pytest.raises(DataError, match="does not hold collected Moments"):
        CollectedMoments.load(tmp_path / "moments")
