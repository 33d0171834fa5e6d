"""What the merge benchmarks share: mergekit in its own environment, models made on the spot, measuring."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transship.checkpoints.write import TensorPlan, write_checkpoint

ROOT = Path(__file__).parents[1]
VENV = ROOT / ".peers" / "mergekit"
VERSIONS = ("torch==2.13.0", "mergekit==0.1.5")
_POOL = 1 << 22
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"} | {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
}


def mergekit_python() -> Path:
    """Return the Python of mergekit's environment, made when it is not there."""
    python, ready = VENV / "bin" / "python", VENV / ".ready"
    if not ready.is_file():
        print("setting up mergekit in .peers/mergekit …", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        for version in VERSIONS:  # torch first, so that the build without CUDA is taken where that is offered
            subprocess.run([python, "-m", "pip", "install", "--quiet", version], check=True)
        ready.touch()
    return python


@dataclass(frozen=True)
class Cost:
    """What a process took: CPU seconds (user and system), wall seconds, peak anonymous bytes."""

    cpu: float
    wall: float
    memory: int


def measure(command: Sequence[str | Path], cwd: Path) -> Cost:
    """Run a command to its end with one thread, and watch its anonymous memory."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    peak, status = 0, Path(f"/proc/{process.pid}/status")
    while True:
        ended, code, usage = os.wait4(process.pid, os.WNOHANG)
        if ended:
            break
        try:
            text = status.read_text()
        except OSError:
            continue
        peak = max(
            peak, *(int(line.split()[1]) for line in text.splitlines() if line.startswith("RssAnon")), 0
        )
        time.sleep(0.004)
    errors = process.stderr.read().decode() if process.stderr else ""
    if code:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{errors[-2000:]}")
    return Cost(usage.ru_utime + usage.ru_stime, time.perf_counter() - started, peak * 1024)


def llama_shapes(layers: int, width: int, inner: int, words: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a Llama's tensors by name, in the order in which they are written."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (words, width),
        "lm_head.weight": (words, width),
        "model.norm.weight": (width,),
    }
    for layer in range(layers):
        start = f"model.layers.{layer}."
        for name in "qkvo":
            shapes[f"{start}self_attn.{name}_proj.weight"] = (width, width)
        shapes |= {f"{start}mlp.{name}_proj.weight": (inner, width) for name in ("gate", "up")}
        shapes[f"{start}mlp.down_proj.weight"] = (width, inner)
        shapes |= {
            f"{start}{name}.weight": (width,) for name in ("input_layernorm", "post_attention_layernorm")
        }
    return shapes


def make_llama(
    folder: Path,
    *,
    layers: int,
    seed: int,
    base: int | None = None,
    width: int = 768,
    words: int = 32000,
) -> Path:
    """Write a bfloat16 Llama of random weights (11 layers: 0.25 GB); with `base`, that seed's and noise."""
    inner = 2048
    values = (
        np.random.default_rng(base if base is not None else seed).standard_normal(_POOL, np.float32) * 0.02
    )
    noise = np.random.default_rng([seed, 1]).standard_normal(_POOL, np.float32) * 0.002

    def produce(place: int, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
        """Yield the tensor in parts from a pool of numbers, each tensor from another place of it."""
        left, start = int(np.prod(shape)), place * 7919 % _POOL
        while left:
            stop = min(start + left, _POOL)
            yield values[start:stop] + noise[start:stop] if base is not None else values[start:stop]
            left, start = left - (stop - start), 0

    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "vocab_size": words,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    plans = [
        TensorPlan(name, shape, "bfloat16", functools.partial(produce, place, shape))
        for place, (name, shape) in enumerate(llama_shapes(layers, width, inner, words).items())
    ]
    return write_checkpoint(folder, plans, config=config, force=True, sync=False)
