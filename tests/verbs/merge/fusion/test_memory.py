"""Memory: what is stated is what is taken, and adds do not grow with the number of tasks."""

import ctypes
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from transship.verbs.merge.fusion import Fusion
from transship.verbs.merge.fusion.measure import PeakMemory, anonymous_memory

MB = 1_000_000
WIDTH = 1500


@pytest.mark.parametrize(("granularity", "copies"), [("entry", 8), ("row", 2), ("tensor", 2)])
def test_otmf_takes_the_memory_that_it_states(granularity: str, copies: int):
    torch.manual_seed(0)
    base = nn.Linear(WIDTH, WIDTH)
    size = 4 * WIDTH * (WIDTH + 1)
    fusion = Fusion(
        base,
        "otmf",
        options={"iterations": 2, "granularity": granularity, "batch_size": 8},
        heads="own",
        keep_inputs=8,
    )
    inputs = torch.randn(8, WIDTH)
    tuned = [
        {name: t + 0.001 * torch.randn(t.shape) for name, t in base.state_dict().items()} for _ in range(2)
    ]
    fusion.add(tuned[0], inputs, name="one")
    step = fusion._step(fusion.origin.admit(tuned[1], "two"), _rows(inputs), joins=True)
    stated = fusion.method.memory({name: t.shape for name, t in fusion.origin.backbone.items()})
    assert copies * size <= stated <= (copies + 0.1) * size
    ctypes.CDLL(None).malloc_trim(0)  # what earlier tests freed would be used again, and not be seen
    before = anonymous_memory()
    with PeakMemory() as memory:
        fusion.method.add(fusion.state, step)
    taken = memory.peak - before
    # beside what is stated: one tensor at work, and the sampling's granularity
    assert 0.5 * stated <= taken <= stated + 2 * size + 12 * MB, (taken / size, stated / size)


def _rows(inputs: torch.Tensor) -> Any:
    from transship.verbs.merge.fusion.rows import TaskRows

    return TaskRows(inputs)


TWENTY = """
import copy, sys, torch, transformers
from pathlib import Path
from transship.verbs.merge.fusion import Fusion
transformers.logging.set_verbosity_error()
place = Path(sys.argv[1])
torch.manual_seed(0)
sides = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2)
base = transformers.ViTModel(transformers.ViTConfig(image_size=16, patch_size=4, **sides))
base.save_pretrained(place / "base")
Fusion(place / "base", sys.argv[2], keep_inputs=16).save(place / "out")
for number in range(20):
    tuned = transformers.ViTForImageClassification(
        transformers.ViTConfig(image_size=16, patch_size=4, num_labels=2 + number % 5, **sides)
    )
    tuned.vit.load_state_dict(base.state_dict(), strict=False)
    with torch.no_grad():
        for tensor in tuned.parameters():
            tensor.add_(torch.randn_like(tensor) * 0.002)
    tuned.save_pretrained(place / f"task-{number}")
    del tuned
    inputs = torch.randn(24, 3, 16, 16).numpy()
    fusion = Fusion.load(place / "out").add(place / f"task-{number}", inputs, test=(inputs, [0] * 24))
    fusion.save(place / "out", force=True)
    print(fusion.history[-1].memory, flush=True)
    del fusion
"""


@pytest.mark.slow
def test_the_memory_of_an_add_does_not_grow_with_twenty_tasks(tmp_path: Path):
    found = subprocess.run(
        [sys.executable, "-c", TWENTY, str(tmp_path), "opcm"], capture_output=True, text=True, check=True
    )
    peaks = [int(line) for line in found.stdout.split()]
    assert len(peaks) == 20
    early, late = statistics.median(peaks[3:8]), statistics.median(peaks[15:])
    # a model that stayed would be 1.2 MB each, 14 MB in all
    assert late - early < 4 * MB, peaks


def test_peak_memory_sees_an_array_that_has_gone():
    ctypes.CDLL(None).malloc_trim(0)
    with PeakMemory() as memory:
        before = anonymous_memory()
        torch.ones(20_000_000).add_(1.0).sum()
    assert memory.peak - before > 60 * MB
