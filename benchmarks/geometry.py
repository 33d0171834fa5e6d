"""CPU seconds of the polar factor against `torch.linalg.svd`, and of Moments against float64 products."""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

SHAPES = ((768, 896), (3072, 768))
LARGE = ((3072, 3584),)
DECADES = (
    4.5  # σ_1/σ_min = 3e4, as of cross moments of middle layers; beyond some 1e5 `polar` takes the SVD itself
)


def run(full: bool = False, threads: int = 1) -> list[dict[str, Any]]:
    """Return one row per case; `full` adds the shape that takes minutes."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rows = [_polar(*shape) for shape in SHAPES + (LARGE if full else ())]
        return [*rows, _moments(4096, 768, 768), _moments(4096, 384, 768), _moments(2048, 3072, 768)]
    finally:
        torch.set_num_threads(before)


def _polar(rows: int, columns: int) -> dict[str, Any]:
    from transship.geometry import polar

    draw = torch.Generator().manual_seed(0)
    least = min(rows, columns)
    left, right = (
        torch.linalg.qr(torch.randn(size, least, generator=draw, dtype=torch.float64))[0]
        for size in (rows, columns)
    )
    cross = left * torch.logspace(0, -DECADES, least, dtype=torch.float64) @ right.T

    def peer() -> torch.Tensor:
        u, _, vt = torch.linalg.svd(cross, full_matrices=False)
        return u @ vt

    polar_factor, expected = polar(cross, route="gram"), peer()
    gap = float((polar_factor.factor - expected).norm() / expected.norm())
    assert gap < 1e-8, f"the two do not compute the same thing: {gap:.1e}"
    mine, theirs = _cpu_seconds(lambda: polar(cross, route="gram"), peer, 1 if least > 2000 else 3)
    return {
        "name": f"polar factor {rows}×{columns} (CPU s)",
        "ours": mine,
        "peer": theirs,
        "ratio": theirs / mine,
        "needed": None,
        "note": f"torch.linalg.svd, float64; route {polar_factor.route}, agreement {gap:.0e}",
    }


def _moments(rows: int, width_a: int, width_b: int) -> dict[str, Any]:
    from transship.geometry import Moments

    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(rows, width, generator=draw) for width in (width_a, width_b))
    ours, dense = Moments.zeros(width_a, width_b), Moments.zeros(width_a, width_b)

    def peer() -> None:
        left, right = a.double(), b.double()
        for total, product in (
            (dense.aa, left.T @ left),
            (dense.bb, right.T @ right),
            (dense.ab, left.T @ right),
        ):
            assert total is not None
            total += product

    mine, theirs = _cpu_seconds(lambda: ours.update(a, b), peer, 3)
    return {
        "name": f"Moments {width_a}×{width_b}, {rows} rows (CPU s)",
        "ours": mine,
        "peer": theirs,
        "ratio": theirs / mine,
        "needed": None,
        "note": f"float64 products; {rows / mine:,.0f} rows per CPU second",
    }


def _cpu_seconds(ours: Callable[[], object], peer: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the median CPU seconds of both, run in turns so that both see the same machine."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for kept, call in zip(times, (ours, peer), strict=True):
            start = time.process_time()
            call()
            kept.append(time.process_time() - start)
    return statistics.median(times[0]), statistics.median(times[1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="add 3072×3584, which takes minutes")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    for row in run(given.full, given.threads):
        print(f"{row['name']:48} {row['ours']:8.3f} {row['peer']:8.3f}  ×{row['ratio']:.2f}   {row['note']}")
