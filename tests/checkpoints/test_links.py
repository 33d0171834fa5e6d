"""Symbolic links in model folders: nothing from outside a folder gets into an output."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from transship.checkpoints import copied, open, write_checkpoint
from transship.checkpoints.write import carried_files
from transship.errors import CheckpointError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    values = np.ones((2, 2), np.float32)
    tensors = [("weight", (2, 2), "float32", lambda: values)]
    return write_checkpoint(tmp_path / "model", tensors, config={"model_type": "bert"}, sync=False)


@pytest.mark.parametrize("name", ["LICENSE", "tokenizer.json", "notes.txt"])
def test_a_link_out_of_the_folder_is_refused_by_name(name: str, model: Path, tmp_path: Path):
    (tmp_path / "private").write_text("secret")
    (model / name).symlink_to(tmp_path / "private")
    with pytest.raises(CheckpointError, match=f"'?{name}'? is a link to a file outside the folder"):
        open(model)


def test_weights_that_lie_elsewhere_are_refused_by_name(model: Path, tmp_path: Path):
    (model / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    (model / "model.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors'? is a link"):
        open(model)


def test_a_part_of_a_sentence_encoder_that_lies_elsewhere_is_refused(model: Path, tmp_path: Path):
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "config.json").write_text("{}")
    (model / "modules.json").write_text(json.dumps([{"path": "1_Pooling"}]))
    (model / "1_Pooling").symlink_to(tmp_path / "private")
    with pytest.raises(CheckpointError, match=r"1_Pooling/config\.json'? is a link"):
        carried_files(open(model))


def test_links_within_the_folder_and_to_the_folder_are_followed(model: Path, tmp_path: Path):
    (model / "texts").mkdir()
    (model / "texts" / "license.txt").write_text("MIT")
    (model / "LICENSE").symlink_to("texts/license.txt")
    (tmp_path / "link").symlink_to(model)
    for folder in (model, tmp_path / "link"):
        checkpoint = open(folder)
        out = write_checkpoint(
            tmp_path / f"out-{folder.name}", copied(checkpoint), like=checkpoint, sync=False
        )
        assert (out / "LICENSE").read_text() == "MIT"
        assert not (out / "LICENSE").is_symlink()


def test_the_blobs_of_the_same_repository_are_followed_and_those_of_another_are_not(
    model: Path, tmp_path: Path
):
    snapshot, others = (tmp_path / f"models--{name}" for name in ("one", "two"))
    for repository in (snapshot, others):
        (repository / "blobs").mkdir(parents=True)
    folder = snapshot / "snapshots" / "abc"
    folder.mkdir(parents=True)
    for file in model.iterdir():
        file.rename(snapshot / "blobs" / file.name)
        (folder / file.name).symlink_to(f"../../blobs/{file.name}")
    assert open(folder).read("weight").sum() == 4
    (others / "blobs" / "LICENSE").write_text("of another")
    (folder / "LICENSE").symlink_to(others / "blobs" / "LICENSE")
    with pytest.raises(CheckpointError, match=r"LICENSE'? is a link"):
        open(folder)
