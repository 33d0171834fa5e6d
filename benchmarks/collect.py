"""What collecting Moments costs beside the two models' forward passes alone, and what `compare` costs.

Reads the local models and glosses (TRANSSHIP_MODELS, TRANSSHIP_DATA or ~/.cache/transship) and prints wall and
CPU seconds with their ratio. The bound is a ratio of 1.6; run it on an idle machine.

    python benchmarks/collect.py [--inputs 500] [--threads 2] [--tokens 4] [--repeat 2]
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import torch

from transship.activations import LoadedModel, collect, compare, load_model, match_sites
from transship.activations.collect import DEFAULT_TOKENS
from transship.activations.step import Batches

BOUND = 1.6
HOME = Path.home() / ".cache/transship"


def forward_alone(source: LoadedModel, target: LoadedModel, texts: list[str]) -> None:
    """Run both models as `collect` does, preprocessing included, and look at nothing."""
    with torch.no_grad():
        for items in Batches(texts, 32, target.length):
            inputs = [item for _, item in items]
            for model in (source, target):
                model.run(model.preprocess(inputs))


def measure(work: Callable[[], Any], repeat: int) -> tuple[float, float]:
    """Return the least wall and CPU seconds over some runs."""
    found = []
    for _ in range(repeat):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        found.append((time.perf_counter() - wall, time.process_time() - cpu))
    return min(wall for wall, _ in found), min(cpu for _, cpu in found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", default="minilm-l6")
    parser.add_argument("--target", default="mpnet-base")
    parser.add_argument("--inputs", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=DEFAULT_TOKENS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    models = Path(os.environ.get("TRANSSHIP_MODELS", HOME / "models"))
    glosses = Path(os.environ.get("TRANSSHIP_DATA", HOME / "data")) / "wordnet_supersense-train.parquet"
    if not glosses.is_file() or not (models / asked.target).is_dir():
        print("collect: skipped, the local models or glosses are not here")
        return 0
    texts = pyarrow.parquet.read_table(glosses, columns=["text"]).column("text").to_pylist()[: asked.inputs]
    source, target = load_model(models / asked.source), load_model(models / asked.target)
    matching = match_sites(source, target)
    forward_alone(source, target, texts[:64])  # warm up

    alone = measure(lambda: forward_alone(source, target, texts), asked.repeat)
    made = collect(source, target, matching, texts[:64], tokens_per_input=asked.tokens)
    together = measure(
        lambda: collect(source, target, matching, texts, tokens_per_input=asked.tokens), asked.repeat
    )
    compared = measure(lambda: compare(source, target, texts), 1)
    print(
        f"{asked.source} → {asked.target}, {len(texts)} glosses, {asked.threads} threads, ≤ {asked.tokens} tokens each"
    )
    print(f"  forward passes alone   {alone[0]:7.1f} s wall {alone[1]:7.1f} s CPU")
    print(f"  collect ({len(made.kept)} Moments, {made.nbytes / 1e9:.2f} GB)")
    print(f"                         {together[0]:7.1f} s wall {together[1]:7.1f} s CPU")
    print(
        f"  ratio                  {together[0] / alone[0]:7.2f}        {together[1] / alone[1]:7.2f}   (bound {BOUND})"
    )
    print(f"  compare                {compared[0]:7.1f} s wall {compared[1]:7.1f} s CPU")
    return int(cpu > BOUND)


if __name__ == "__main__":
    sys.exit(main())
