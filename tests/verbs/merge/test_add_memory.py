"""`merge add` with twenty tasks: the step itself, and all of the command with reading and writing."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

MB = 1_000_000

TWENTY = """
import json, sys, torch, transformers
from pathlib import Path
from transship.verbs.merge.fusion import Fusion
from transship.verbs.merge.fusion.measure import StepCost
transformers.logging.set_verbosity_error()
place, method, options, heads = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), sys.argv[4].split()
torch.manual_seed(0)
sides = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2)
config = dict(image_size=16, patch_size=8, **sides)
base = transformers.ViTModel(transformers.ViTConfig(**config))
base.save_pretrained(place / "base")
Fusion(place / "base", method, options=options, heads=heads, keep_inputs=16).save(place / "out")
for number in range(20):
    sorts = transformers.ViTConfig(num_labels=2 + number % 5, **config)
    tuned = transformers.ViTForImageClassification(sorts)
    tuned.vit.load_state_dict(base.state_dict(), strict=False)
    with torch.no_grad():
        for tensor in tuned.parameters():
            tensor.add_(torch.randn_like(tensor) * 0.002)
    tuned.save_pretrained(place / f"task-{number}")
    del tuned
    inputs = torch.randn(24, 3, 16, 16).numpy()
    with StepCost() as reading:
        fusion = Fusion.load(place / "out")
    fusion.add(place / f"task-{number}", inputs, labels=[0, 1] * 12, test=(inputs, [0] * 24))
    with StepCost() as writing:
        fusion.save(place / "out", force=True)
    step = fusion.history[-1].memory
    print(step, max(reading.memory, step, writing.memory), flush=True)
    del fusion
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options", "heads"),
    [("opcm", {}, "auto"), ("otmf", {"iterations": 2, "batch_size": 8}, "tuned carried-polished")],
)
def test_neither_the_step_nor_the_command_grows_with_twenty_tasks(
    method: str, options: dict[str, int], heads: str, tmp_path: Path
):
    arguments = [str(tmp_path), method, json.dumps(options), heads]
    result = subprocess.run(
        [sys.executable, "-c", TWENTY, *arguments], capture_output=True, text=True, check=True
    )
    steps = [tuple(map(int, line.split())) for line in result.stdout.splitlines()]
    assert len(steps) == 20
    for peaks in zip(*steps, strict=True):
        # a model that stayed would be 1.2 MB each, 14 MB in all
        assert statistics.median(peaks[15:]) - statistics.median(peaks[3:8]) < 4 * MB, peaks
