"""Small numeric files keep what they are given, and have the same bytes for the same content."""

import os
import subprocess
import sys

import pytest
import torch

from transship.errors import OutputError
from transship.geometry.maps import read_arrays, write_arrays

ABOUT = {
    "format": "sample",
    "version": "1",
    "größe": 'with "quotes"\nand lines',
    "a": "1",
    "b": "2",
    "c": "3",
}
WRITE = f"""
import sys, torch
from transship.geometry.maps import write_arrays
write_arrays(sys.argv[1], {{"x": torch.arange(6.0).reshape(2, 3), "y": torch.ones(5)}}, {ABOUT!r})
"""


def test_what_is_written_is_read_back(tmp_path):
    arrays = {"x": torch.randn(3, 4), "empty": torch.zeros(0), "whole": torch.arange(3)}
    write_arrays(tmp_path / "a", arrays, ABOUT)
    result, about = read_arrays(tmp_path / "a", "sample", 1)
    assert about == ABOUT
    assert result.keys() == arrays.keys()
    assert all(torch.equal(result[name], array) for name, array in arrays.items())


def test_two_processes_write_the_same_bytes(tmp_path):
    for seed in "12":
        environment = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", WRITE, tmp_path / seed], check=True, env=environment)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_a_fifo_stays_one(tmp_path):
    os.mkfifo(tmp_path / "a")
    with pytest.raises(OutputError, match="it is a FIFO"):
        write_arrays(tmp_path / "a", {"x": torch.ones(2)}, ABOUT)
    assert (tmp_path / "a").is_fifo()
