"""A Fourier neural operator from `neuraloperator`: the specialised row of Table 3."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import numpy as np

from transship.numerics import chunks
from transship_suites.materials.series import Task
from transship_suites.recraft.measure import scored


def missing() -> str | None:
    """Return why the operator cannot run here; None where it can."""
    if importlib.util.find_spec("neuralop") is None:
        return "neuraloperator is not installed (pip install 'transship[pde]')"
    try:
        from neuralop.models import FNO  # noqa: F401
    except ImportError as error:  # it imports several libraries of its own
        return f"neuraloperator does not import: {error}"
    return None


def fourier_operator(
    task: Task, *, seed: int, epochs: int = 60, width: int = 24, modes: int = 8, batch: int = 16
) -> dict[str, float]:
    """Train an FNO on the training rows (relative ℓ2, AdamW, one cycle) and return its test figures.

    Inputs and outputs are standardised by the training rows; the last weights are kept. Channels and modes
    are small: it trains in about the time that the adapted models have.
    """
    import torch
    from neuralop.models import FNO

    start = time.process_time()
    inputs, outputs = (torch.as_tensor(np.asarray(part, np.float32)) for part in task.train)
    shaped = outputs.reshape(len(outputs), -1, *inputs.shape[2:])
    mean_in, mean_out = inputs.mean(), shaped.mean()
    scale_in, scale_out = inputs.std().clamp_min(1e-6), shaped.std().clamp_min(1e-6)
    axes = inputs.ndim - 2
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = FNO(
            n_modes=(min(modes, inputs.shape[-1] // 2),) * axes,
            in_channels=inputs.shape[1],
            out_channels=shaped.shape[1],
            hidden_channels=width,
            n_layers=4,
        )
    x, y = (inputs - mean_in) / scale_in, (shaped - mean_out) / scale_out
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-4)
    steps = epochs * max(1, len(x) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=4e-3, total_steps=steps, pct_start=0.2)
    order = torch.randperm(len(x), generator=generator)
    for step in range(steps):
        place = step % max(1, len(x) // batch)
        if place == 0:
            order = torch.randperm(len(x), generator=generator)
        rows = order[place * batch : (place + 1) * batch]
        wrong = (model(x[rows]) - y[rows]).flatten(1).norm(dim=1)
        loss = (wrong * scale_out / shaped[rows].flatten(1).norm(dim=1).clamp_min(1e-6)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    with torch.inference_mode():
        held = (torch.as_tensor(np.asarray(task.test[0], np.float32)) - mean_in) / scale_in
        made = torch.cat([model(held[some]) for some in chunks(len(held), 64)]) * scale_out + mean_out
    figures = scored(task, made.numpy(), None)
    return {**figures, "seconds": time.process_time() - start, "stage1_seconds": 0.0}
