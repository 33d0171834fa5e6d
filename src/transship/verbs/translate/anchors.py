"""Which rows become anchors: farthest points, cluster centres or chance."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from transship.errors import DataError, OptionError
from transship.numerics import derive_seed
from transship.verbs.translate.rows import to_tensor, unit

Indices = np.ndarray[Any, np.dtype[np.int64]]


def farthest_points(distances: Tensor, *, start: int, delta: float = 0.0, most: int | None = None) -> Indices:
    """Return the indices that greedy farthest point sampling picks from a distance matrix, in order.

    Each step takes the row whose smallest distance to those taken is largest (the lowest index among equals);
    it stops when that distance is below `delta`, or when `most` are taken. Eq. (4) of Maiorca et al.,
    "Latent Space Translation via Inverse Relative Projection". Shapes: [anchors, anchors] → [kept].
    """
    return _from_starts(distances, [start], delta, most)[0]


def _from_starts(distances: Tensor, starts: list[int], delta: float, most: int | None) -> list[Indices]:
    """Return the picks from every start; all of them take their next step together."""
    own, last = torch.arange(len(starts)), torch.tensor(starts)
    nearest = distances[last]
    nearest[own, last] = -torch.inf
    taken, kept = [last], torch.ones(len(starts), dtype=torch.int64)
    for _ in range((len(distances) if most is None else min(most, len(distances))) - 1):
        distance, last = nearest.max(dim=1)
        # distances to those taken only fall: a start that has stopped stays so
        going = distance >= delta
        if not bool(going.any()):
            break
        taken.append(last)
        kept += going
        torch.minimum(nearest, distances[last], out=nearest)
        nearest[own, last] = -torch.inf
    picks = torch.stack(taken, dim=1).numpy()
    return [row[:count] for row, count in zip(picks, kept.tolist(), strict=True)]


def angular_distances(rows: Tensor) -> Tensor:
    """Return 1 − |cos| between all rows: opposite directions are as collinear as equal ones. Eq. (3)."""
    directions = unit(rows)
    return (directions @ directions.T).abs_().neg_().add_(1.0)


def subspace_indices(
    distances: Tensor, *, subspaces: int, delta: float, most: int | None, seed: int
) -> list[Indices]:
    """Return ω index lists, each from a random start of its own (drawn by seed and number, not by order)."""
    seeds = (derive_seed(seed, "irp start", number) for number in range(subspaces))
    starts = [int(np.random.default_rng(one).integers(len(distances))) for one in seeds]
    return _from_starts(distances, starts, delta, most)


Way = Literal["random", "farthest", "kmeans"]


POOL = 20_000  # rows that farthest and kmeans look at


def choose_rows(vectors: Any, count: int, *, way: Way = "random", seed: int = 0, pool: int = POOL) -> Indices:
    """Return `count` sorted row numbers to embed with the new model, so that a map can be fitted on them.

    random draws evenly; farthest spreads them by the angle to the mean-centred rows; kmeans takes the row
    nearest to each of `count` centres. The last two look at a random `pool` of rows when there are more.
    """
    some = candidate_rows(len(vectors), count, way=way, seed=seed, pool=pool)
    return some if len(some) == count else some[choose_among(vectors[some], count, way=way, seed=seed)]


def candidate_rows(total: int, count: int, *, way: Way, seed: int = 0, pool: int = POOL) -> Indices:
    """Return the sorted row numbers that a way looks at: a random draw, for `random` the choice itself."""
    if way not in ("random", "farthest", "kmeans"):
        raise OptionError(f"there is no way '{way}'", where="--way", fix="choose random, farthest or kmeans")
    if not 1 <= count <= total:
        raise DataError(f"{count} anchors of {total} rows", where="--count", fix=f"ask for 1 to {total}")
    looked_at = count if way == "random" else max(count, min(pool, total))
    rng = np.random.default_rng(derive_seed(seed, "anchors", way))
    return np.sort(rng.choice(total, looked_at, replace=False))


def choose_among(vectors: Any, count: int, *, way: Way, seed: int = 0) -> Indices:
    """Return which of the candidates' vectors [candidates, width] farthest or kmeans takes, sorted."""
    rows = to_tensor(np.asarray(vectors, dtype=np.float32))
    directions = unit(rows - rows.mean(0))
    if way == "farthest":
        start = int(np.random.default_rng(derive_seed(seed, "anchors start")).integers(len(rows)))
        return np.sort(_spread(directions, count, start=start))
    return np.sort(_central(directions.numpy(), count, seed=derive_seed(seed, "kmeans") % 2**32))


def _spread(directions: Tensor, count: int, start: int) -> Indices:
    """Farthest points without the full distance matrix: one row of it per pick."""
    nearest = torch.full((len(directions),), torch.inf)
    taken = [start]
    for _ in range(count - 1):
        torch.minimum(nearest, 1.0 - directions @ directions[taken[-1]], out=nearest)
        nearest[taken[-1]] = -torch.inf
        taken.append(int(nearest.argmax()))
    return np.asarray(taken, dtype=np.int64)


def _central(directions: np.ndarray[Any, Any], count: int, seed: int) -> Indices:
    """The row nearest to each centre; centres whose nearest row is taken give way to the next nearest."""
    from sklearn.cluster import MiniBatchKMeans

    kmeans = MiniBatchKMeans(count, random_state=seed, n_init=1, batch_size=4096, max_iter=30)
    centres = kmeans.fit(directions).cluster_centers_
    free = np.ones(len(directions), dtype=bool)
    taken = []
    for centre in centres:
        order = np.where(free, directions @ centre, -np.inf)
        taken.append(int(order.argmax()))
        free[taken[-1]] = False
    return np.asarray(taken, dtype=np.int64)
