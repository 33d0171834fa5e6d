"""CPU seconds of a whole transport at the size of ViT-B/16 → ViT-B/16+, against the forward passes and the
plain way.

Every block costs the same, so one block of full width is measured and counted twelve times; what does not
depend on blocks (reading images, patch embedding) is measured on models without any and counted once. 10 × 32
images of 224 and 240 pixels. The plain way keeps all tokens, multiplies in float64 and takes a float64 SVD
for either side of every parameter, as released code does; its products are run on one batch of ten and
counted ten times.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

BATCHES, BATCH, BLOCKS = 10, 32, 12


def run(batches: int = BATCHES, widths: tuple[int, int] = (768, 896)) -> list[dict[str, Any]]:
    """Return the rows: ours over the forward passes, and the plain way over ours."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        source, target = _vit(widths[0], 224, 1, 0), _vit(widths[1], 240, 1, 1)
        tuned = _nudged(source)
        images = np.random.default_rng(0).integers(0, 255, (batches * BATCH, 224, 224, 3), dtype=np.uint8)
        fixed = _forward(_vit(widths[0], 224, 0, 0), _vit(widths[1], 240, 0, 1), images)
        forward = fixed + BLOCKS * (_forward(source, target, images) - fixed)
        ours = fixed + BLOCKS * (_seconds(lambda: _transport(source, tuned, target, images, batches)) - fixed)
        plain = forward + BLOCKS * _plain(source, target, images, batches)
        shape = f"{widths[0]} to {widths[1]}, {BLOCKS} blocks, {batches * BATCH} images"
        return [
            _row(f"transport over forward passes, {shape}", ours, forward, ours / forward, "<= 2.5"),
            _row(f"plain way over transport, {shape}", ours, plain, plain / ours, ">= 3"),
            _row("peak memory of 10 batches over 2", *_memory(), "<= 1.2"),
        ]
    finally:
        torch.set_num_threads(before)


def _row(name: str, ours: float, peer: float, ratio: float, needed: str) -> dict[str, Any]:
    return {"name": name, "ours": ours, "peer": peer, "ratio": ratio, "needed": needed}


def _vit(width: int, size: int, blocks: int, seed: int) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(seed)
    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=blocks,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        image_size=size,
        patch_size=16,
        num_labels=10,
    )
    return ViTForImageClassification(config).eval()


def _nudged(model: nn.Module) -> nn.Module:
    import copy

    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.add_(0.002 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    return copied


def _seconds(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _forward(source: nn.Module, target: nn.Module, images: np.ndarray) -> float:
    """Seconds of both models over all images, preprocessing included as in the transport."""
    from transship.activations import load_model

    models = load_model(source), load_model(target)

    def once() -> None:
        with torch.no_grad():
            for start in range(0, len(images), BATCH):
                for model in models:
                    model.run(model.preprocess(list(images[start : start + BATCH])))

    return _seconds(once)


def _transport(
    source: nn.Module, tuned: nn.Module, target: nn.Module, images: np.ndarray, batches: int
) -> None:
    from transship.data import wrap
    from transship.verbs.transport import transport

    data = wrap(images, kind="image")
    transport(
        source, tuned, target, data=data, method="theseus", strength=1.0, batches=batches, roles="paper"
    )


def _plain(source: nn.Module, target: nn.Module, images: np.ndarray, batches: int) -> float:
    """Seconds of products and SVDs only: for every linear weight both sides, for every bias its outputs."""
    rows = [_activations(model, images[:BATCH]) for model in (source, target)]
    names = [
        name
        for name, module in source.named_modules()
        if isinstance(module, nn.Linear) and "classifier" not in name
    ]
    total = 0.0
    for name in names:
        for side in ("in", "out", "out"):  # the weight's two sides, and the bias' one
            a, b = (_resampled(row[name, side], rows[1][name, side].shape[1]) for row in rows)
            crosses: list[Tensor] = []
            total += batches * _seconds(
                lambda a=a, b=b, crosses=crosses: crosses.append(
                    a.flatten(0, 1).double().T @ b.flatten(0, 1).double()
                )
            )
            total += _seconds(lambda crosses=crosses: torch.linalg.svd(crosses[0], full_matrices=False))
    return total


def _activations(model: nn.Module, images: np.ndarray) -> dict[tuple[str, str], Tensor]:
    from transship.activations import load_model

    loaded = load_model(model)
    by_name: dict[tuple[str, str], Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
            by_name[name, "in"], by_name[name, "out"] = given[0], made

        return hook

    handles = [
        module.register_forward_hook(keep(name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    with torch.no_grad():
        loaded.run(loaded.preprocess(list(images)))
    for handle in handles:
        handle.remove()
    return by_name


def _resampled(states: Tensor, tokens: int) -> Tensor:
    if states.shape[1] == tokens:
        return states
    return nn.functional.interpolate(states.transpose(1, 2), size=tokens, mode="linear").transpose(1, 2)


def _memory() -> tuple[float, float, float]:
    """Peak anonymous megabytes of collecting 10 and 2 batches, each in a process of its own."""
    import json
    import subprocess
    import sys

    script = (
        "import json, resource, sys; import numpy as np; from benchmarks import transport as t;"
        "n = int(sys.argv[1]); a, b = t._vit(192, 224, 1, 0), t._vit(224, 240, 1, 1);"
        "images = np.random.default_rng(0).integers(0, 255, (n * 32, 224, 224, 3), dtype=np.uint8);"
        "before = images.nbytes / 1e6; t._transport(a, t._nudged(a), b, images, n);"
        "print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3 - before))"
    )
    peaks = [
        float(
            json.loads(
                subprocess.run([sys.executable, "-c", script, str(n)], check=True, capture_output=True).stdout
            )
        )
        for n in (10, 2)
    ]
    return peaks[0], peaks[1], peaks[0] / peaks[1]
