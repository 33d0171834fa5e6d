"""A drawn sample of what `make faults` does in full: writers that are killed, interrupted and refused."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).with_name("harness.py")


@pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler"
)
def test_a_sample_of_faults_loses_nothing(request: pytest.FixtureRequest):
    families = ["translate apply, npy"]
    seed = str(request.config.option.order_seed)
    command = [sys.executable, str(HARNESS), "--each", "2", "--seed", seed, *families]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.findall(r"^(.+): (\d+) faults over (\d+) calls .*: 0 lost or left", done.stdout, re.MULTILINE)
    assert [name for name, _, _ in counts] == families
    assert all(int(faults) >= 8 and int(calls) > 20 for _, faults, calls in counts)
