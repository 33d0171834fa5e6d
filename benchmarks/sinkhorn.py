"""CPU seconds of Sinkhorn with its gradient, against POT's envelope gradient, in one run.

Equal work: the same points, absolute ε and number of iterations without early stopping (in POT's
order of updates, so the same iterates), float32, one thread, and gradients in the same point sets; values and
gradients must agree to 1e-4 or the benchmark fails.
"""

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

POINTS, WIDTH, ITERATIONS, REPEATS = 1024, 512, 50, 7
NEEDED = ">= 4"


def run() -> list[dict[str, Any]]:
    """Return one row per case: CPU seconds of ours and of the peer, their ratio and what is needed of it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a second thread that waits for a busy core counts as CPU time, for either side
    try:
        return [_case("both sides", True), _case("one side", False)]
    finally:
        torch.set_num_threads(threads)


def _case(name: str, both: bool) -> dict[str, Any]:
    import ot

    from transship.geometry import cost_matrix, sinkhorn_cost

    draw = torch.Generator().manual_seed(0)
    x = torch.randn(POINTS, WIDTH, generator=draw).requires_grad_()
    y = (torch.randn(POINTS, WIDTH, generator=draw) + 0.1).requires_grad_(both)
    inputs = (x, y) if both else (x,)
    epsilon = sinkhorn_cost(cost_matrix(x, y), iterations=1).epsilon
    options = {"epsilon": epsilon, "relative": False, "iterations": ITERATIONS, "tolerance": 0.0}

    def ours() -> tuple[torch.Tensor, ...]:
        value = sinkhorn_cost(cost_matrix(x, y), **options).value
        return value, *torch.autograd.grad(value, inputs)

    def peer() -> tuple[torch.Tensor, ...]:
        value = ot.solve_sample(x, y, reg=epsilon, grad="envelope", max_iter=ITERATIONS, tol=0.0).value
        return value, *torch.autograd.grad(value, inputs)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # POT says that it may not have converged: it was told when to stop
        gap = _relative_gap(ours(), peer())
        assert gap < 1e-4, f"the two do not compute the same thing: {gap:.1e}"
        mine, theirs = _cpu_seconds(ours, peer)
    return {
        "name": f"sinkhorn {POINTS}×{WIDTH}, {ITERATIONS} iterations, gradient in {name} (CPU s)",
        "ours": mine,
        "peer": theirs,
        "ratio": theirs / mine,
        "needed": NEEDED,
        "note": f"POT solve_sample(grad='envelope'), agreement {gap:.0e}",
    }


def _relative_gap(mine: tuple[torch.Tensor, ...], theirs: tuple[torch.Tensor, ...]) -> float:
    pairs = zip(mine, theirs, strict=True)
    return max(float((a - b).detach().norm() / b.detach().norm()) for a, b in pairs)


def _cpu_seconds(ours: Callable[[], object], peer: Callable[[], object]) -> tuple[float, float]:
    """Return the median CPU seconds of both, run in turns so that both see the same machine."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(REPEATS):
        for kept, call in zip(times, (ours, peer), strict=True):
            start = time.process_time()
            call()
            kept.append(time.process_time() - start)
    return statistics.median(times[0]), statistics.median(times[1])


if __name__ == "__main__":
    for row in run():
        print(
            f"{row['name']:70} {row['ours']:8.3f} {row['peer']:8.3f}  ×{row['ratio']:.1f} ({row['needed']})"
        )
        print(f"    {row['note']}")
