"""What collecting Moments costs beside the two models' forward passes alone, and how long `compare` takes.

Uses the local models and glosses (TRANSSHIP_MODELS, TRANSSHIP_DATA, or ~/.cache/transship); without them
there are no rows. `python benchmarks/collect.py --inputs 200 --threads 1` prints a smaller case.
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SOURCE, TARGET = "minilm-l6", "mpnet-base"
GLOSSES = "wordnet_supersense-train.parquet"
HOME = Path.home() / ".cache/transship"
COMPARE_SECONDS = 180.0


def run(
    inputs: int = 500, threads: int = 2, tokens: int | None = None, repeat: int = 1
) -> list[dict[str, Any]]:
    """Return the rows: collect against forward passes (CPU), compare against its limit (wall)."""
    models = Path(os.environ.get("TRANSSHIP_MODELS", HOME / "models"))
    glosses = Path(os.environ.get("TRANSSHIP_DATA", HOME / "data")) / GLOSSES
    if not glosses.is_file() or not all(
        (models / name / "config.json").is_file() for name in (SOURCE, TARGET)
    ):
        print("collect: skipped, the local models or glosses are not here")
        return []
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _rows(models, glosses, inputs, tokens, repeat)
    finally:
        torch.set_num_threads(before)


def _rows(models: Path, glosses: Path, inputs: int, tokens: int | None, repeat: int) -> list[dict[str, Any]]:
    import pyarrow.parquet

    from transship.activations import collect, compare, load_model, match_sites
    from transship.activations.collected import DEFAULT_TOKENS

    tokens = DEFAULT_TOKENS if tokens is None else tokens
    texts = pyarrow.parquet.read_table(glosses, columns=["text"]).column("text").to_pylist()[:inputs]
    source, target = load_model(models / SOURCE), load_model(models / TARGET)
    matching = match_sites(source, target)
    forward_alone(source, target, texts[:64])  # warm up
    alone = measure(lambda: forward_alone(source, target, texts), repeat)
    both = measure(lambda: collect(source, target, matching, texts, tokens_per_input=tokens), repeat)
    compared = measure(lambda: compare(source, target, texts), 1)
    pair = f"{SOURCE} → {TARGET}, {len(texts)} glosses"
    return [
        {
            "name": f"collect / forward alone, CPU s: {pair}, {tokens} tokens each",
            "ours": both[1],
            "peer": alone[1],
            "ratio": both[1] / alone[1],
            "needed": "<= 1.6",
        },
        {
            "name": "the same, wall s",
            "ours": both[0],
            "peer": alone[0],
            "ratio": both[0] / alone[0],
            "needed": None,
        },
        {
            "name": f"compare / {COMPARE_SECONDS:.0f} s, wall s: {pair}",
            "ours": compared[0],
            "peer": COMPARE_SECONDS,
            "ratio": compared[0] / COMPARE_SECONDS,
            "needed": "<= 1",
        },
    ]


def forward_alone(source: Any, target: Any, texts: list[str]) -> None:
    """Run both models as `collect` does, preprocessing included, and look at nothing."""
    from transship.activations.batches import Batches

    with torch.no_grad():
        for items in Batches(texts, 32, target.length):
            inputs = [item for _, item in items]
            for model in (source, target):
                model.run(model.preprocess(inputs))


def measure(work: Callable[[], Any], repeat: int) -> tuple[float, float]:
    """Return the least wall and CPU seconds over some runs."""
    entries = []
    for _ in range(repeat):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        entries.append((time.perf_counter() - wall, time.process_time() - cpu))
    return min(wall for wall, _ in entries), min(cpu for _, cpu in entries)


def main() -> None:
    """Print the rows of one case."""
    parser = argparse.ArgumentParser(description="collect against forward passes")
    parser.add_argument("--inputs", type=int, default=500)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--repeat", type=int, default=1)
    asked = parser.parse_args()
    for row in run(asked.inputs, asked.threads, asked.tokens, asked.repeat):
        print(
            f"{row['name']}: {row['ours']:.1f} / {row['peer']:.1f} = {row['ratio']:.2f} {row['needed'] or ''}"
        )


if __name__ == "__main__":
    main()
