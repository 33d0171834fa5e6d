"""What a second process saves when Moments are collected, and how their cost grows with layers and tokens.

Two processes against one, wall seconds over inputs ×1, ×4, ×16, each with one thread: both are started by
torchrun, on two random encoders made on the spot. Starting processes and opening models is not counted;
sharing out, both models' passes, products and the sum over processes are. The other curves are CPU seconds of
one thread in this process.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

INPUTS, TOKENS, BATCH = (64, 256, 1024), 48, 16
GROWN = {"layers": (2, 8, 32), "tokens": (16, 64, 256)}


def run(repeat: int = 2) -> list[dict[str, Any]]:
    """Return the rows of all curves; of one process and of two, the least seconds of some turns."""
    from benchmarks.scaling import worker_rows

    turns: dict[int, list[list[float]]] = {1: [], 2: []}
    for _ in range(repeat):
        for processes, right in turns.items():
            right.append(_launch(processes))
    seconds = {processes: list(map(min, zip(*each, strict=True))) for processes, each in turns.items()}
    return [*map(_curve, GROWN), *worker_rows("collect", "inputs", INPUTS, seconds)]


def _curve(what: str) -> dict[str, Any]:
    """Return the exponent of collecting over layers or tokens, every token used."""
    from benchmarks._mergekit import Cost
    from benchmarks.scaling import curve_row

    _collect(layers=2, tokens=16)  # warm up
    costs = [Cost(cpu, cpu, 0) for cpu in (_collect(**{what: size}) for size in GROWN[what])]
    # attention grows with the square of the tokens, all else with the tokens
    return curve_row("collect", what, GROWN[what], costs, 0.0) | {"needed": "<= 1.2"}


def _collect(layers: int = 4, tokens: int = 32) -> float:
    """Return the CPU seconds of one collection between two small encoders."""
    import torch

    from transship.activations import collect, load_model, match_sites

    torch.set_num_threads(1)
    source, target = (load_model(_encoder(width, layers), preprocess=torch.tensor) for width in (64, 96))
    inputs = torch.randint(1, 1000, (64, tokens), generator=torch.Generator().manual_seed(0)).tolist()
    matching, started = match_sites(source, target), time.process_time()
    collect(source, target, matching, inputs, batch_size=BATCH, tokens_per_input=None)
    return time.process_time() - started


def _launch(processes: int) -> list[float]:
    """Return the wall seconds at each number of inputs, by so many processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(processes), str(Path(__file__).resolve()), "work"],
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return [float(second) for second in json.loads(done.stdout.strip().splitlines()[-1])["seconds"]]


def work() -> None:
    """Collect in this process of the launch; the first one prints the seconds at each number of inputs."""
    import torch

    from transship import parallel
    from transship.activations import collect, load_model, match_sites

    parallel.join()
    torch.set_num_threads(1)
    source, target = (load_model(_encoder(width), preprocess=torch.tensor) for width in (256, 384))
    drawn = torch.Generator().manual_seed(0)
    inputs = torch.randint(1, 1000, (INPUTS[-1], TOKENS), generator=drawn).tolist()
    matching = match_sites(source, target)
    collect(source, target, matching, inputs[:BATCH], batch_size=BATCH)  # warm up
    seconds = []
    for count in INPUTS:
        parallel.agreed(True)
        started = time.perf_counter()
        collect(source, target, matching, inputs[:count], batch_size=BATCH, tokens_per_input=8)
        seconds.append(time.perf_counter() - started)
    if parallel.is_main():
        print(json.dumps({"seconds": seconds}), flush=True)
    parallel.leave()


def _encoder(width: int, layers: int = 6) -> Any:
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(width)
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    return BertModel(BertConfig(vocab_size=1000, num_attention_heads=8, **sizes), add_pooling_layer=False)


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        work()
    else:
        print(json.dumps(run(), indent=2))
