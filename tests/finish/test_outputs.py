"""Teachers are asked once."""

from pathlib import Path

import torch

from transship.finish.outputs import kept_outputs


def asked(answers: list[int]):
    def ask():
        answers.append(1)
        return {"outputs": torch.arange(6.0).reshape(2, 3)}

    return ask


def test_a_teacher_is_asked_once_for_the_same_key(tmp_path: Path):
    answers: list[int] = []
    first = kept_outputs(tmp_path, "model and inputs", asked(answers))
    again = kept_outputs(tmp_path, "model and inputs", asked(answers))
    assert torch.equal(first["outputs"], again["outputs"])
    assert len(answers) == 1
    kept_outputs(tmp_path, "another model", asked(answers))
    assert len(answers) == 2


def test_without_a_folder_nothing_is_kept_and_a_damaged_file_is_asked_for_again(tmp_path: Path):
    answers: list[int] = []
    kept_outputs(None, "key", asked(answers))
    kept_outputs(tmp_path, "key", asked(answers))
    next(tmp_path.iterdir()).write_bytes(b"cut off")
    kept_outputs(tmp_path, "key", asked(answers))
    assert len(answers) == 3
