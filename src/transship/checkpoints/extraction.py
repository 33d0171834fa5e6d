"""An adapter of a fine-tune: every matrix's change, cut to a low rank by its singular values.

With Δ = U Σ Vᵀ the best approximation of rank r keeps the share Σ_{i≤r} σ_i² / Σ σ_i² of the change's energy
(Eckart–Young). With the second moments C of a layer's inputs the energy is that of Δx instead: ΔC^½ is cut.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transship.checkpoints.adapters import write_adapter
from transship.checkpoints.card import Input, ModelCard
from transship.checkpoints.checkpoint import Checkpoint, Factors
from transship.checkpoints.dtypes import Array, Floats
from transship.checkpoints.lora import default_layout
from transship.checkpoints.update import Update
from transship.errors import CheckpointError, OptionError

# of a matrix's norm; fine-tunes move by a few per cent
_STRANGER = 0.7


@dataclass(frozen=True)
class ExtractedTensor:
    """What became of one tensor's change.

    Attributes:
        name: the base's.
        rank: of its factors; None where it is kept in full.
        energy: the share of the squared change that is kept.
        size: the squared change, Σ Δ².
        why: why it is kept in full.
    """

    name: str
    rank: int | None
    energy: float
    size: float
    why: str = ""


@dataclass(frozen=True)
class Extraction:
    """An adapter of a fine-tune, ready to be written.

    Attributes:
        update: the factors, and changes in full.
        tensors: in the base's order, those that changed.
    """

    update: Update
    tensors: tuple[ExtractedTensor, ...]
    tuned: Checkpoint
    base: Checkpoint

    @property
    def energy(self) -> float:
        """Return the share of the whole squared change that is kept."""
        return sum(each.energy * each.size for each in self.tensors) / sum(each.size for each in self.tensors)

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write the adapter, which PEFT loads onto the base."""
        card = ModelCard(
            title="Adapter of a fine-tune",
            verb="extract",
            method="svd",
            summary="What a fine-tune changed in its base, as low-rank factors.",
            inputs=[Input.of("base", self.base), Input.of("tuned", self.tuned)],
            metrics={"share of the squared change that is kept": self.energy},
            library="peft",
        )
        layouts = {name: default_layout(name, self.base) for name in self.update.names}
        return write_adapter(folder, self.update, dense="save", card=card, layouts=layouts, force=force)


def extract(
    tuned: Checkpoint,
    base: Checkpoint,
    *,
    rank: int | None = None,
    energy: float | None = None,
    covariances: Mapping[str, Floats] | None = None,
) -> Extraction:
    """Return what `tuned` changed in `base` as a LoRA adapter.

    Args:
        tuned: the fine-tune.
        base: the model that it was made from.
        rank: of every tensor's factors.
        energy: the least share of each tensor's squared change to keep, instead of a rank.
        covariances: tensor → E[x xᵀ] of what its layer reads, [in, in], to keep what matters on such inputs.

    Norms, and matrices whose factors would be no smaller than they are, are kept in full.
    """
    _check(rank, energy)
    change = Update.between(base, tuned, unmatched="skip")
    _require_related(change, base, tuned)
    whole = _kept_whole(change, base)
    given: dict[str, Factors | Callable[[], Array]] = {}
    tensors: list[ExtractedTensor] = []
    for name in change.names:
        dense = _as_matrix(change.dense(name))
        total = float(np.square(dense, dtype=np.float64).sum())
        if total == 0.0:
            continue
        why = whole.get(name, "")
        if not why:
            up, down, kept = _cut(dense, rank, energy, (covariances or {}).get(name))
            if up.size + down.size < dense.size:
                given[name] = (up, down)
                tensors.append(ExtractedTensor(name, up.shape[1], kept, total))
                continue
            why = "factors of that rank are no smaller"
        given[name] = _reading(change, name)
        tensors.append(ExtractedTensor(name, None, 1.0, total, why))
    if not given:
        raise CheckpointError("it equals its base", where=tuned.name, fix="give a fine-tune of this base")
    return Extraction(Update.from_arrays(given, base=base, added=change.added), tuple(tensors), tuned, base)


def _check(rank: int | None, energy: float | None) -> None:
    if (rank is None) == (energy is None):
        raise OptionError(
            "one of rank and energy is needed", where="extract", fix="give --rank R or --energy 0.99"
        )
    if rank is not None and rank < 1:
        raise OptionError(f"a rank of {rank} keeps nothing", where="--rank", fix="give 1 or more")
    if energy is not None and not 0 < energy <= 1:
        raise OptionError(
            f"{energy:g} is no share", where="--energy", fix="give a number above 0 and at most 1"
        )


def _require_related(change: Update, base: Checkpoint, tuned: Checkpoint) -> None:
    """Refuse two models of which most matrices differ as those of strangers do: by √2 of their norm."""
    moved = [row.relative for row in change.summary() if len(row.shape) >= 2]
    if moved and np.median(moved) > _STRANGER:
        raise CheckpointError(
            f"its matrices differ from those of {base.name} by {100 * np.median(moved):.0f} % in the median, "
            "so it is no fine-tune of it",
            where=tuned.name,
            fix="check the order of arguments: TUNED BASE OUT",
        )


def _kept_whole(change: Update, base: Checkpoint) -> dict[str, str]:
    """Return tensor → why its change is kept in full.

    PEFT changes biases beside factors for all modules of an adapter or for none, and never for a table.
    """
    reasons = {name: "it is no matrix of a layer" for name in change.names if not _is_matrix(name, base)}
    biased = {
        name.removesuffix(".bias") + ".weight"
        for name in change.names
        if name.endswith(".bias") and np.any(change.dense(name))
    }
    matrices = [name for name in change.names if name not in reasons]
    layers = [name for name in matrices if default_layout(name, base) != "embedding"]
    if biased.isdisjoint(layers):
        return reasons
    if all(name.removesuffix(".weight") + ".bias" in base.tensors for name in layers):
        tables = set(matrices) - set(layers)
        return reasons | dict.fromkeys(tables, "PEFT takes no factors of a table where biases change")
    return reasons | dict.fromkeys(
        biased.intersection(layers), "its bias changes, and other layers have none"
    )


def _as_matrix(values: Floats) -> Floats:
    """Return a tensor with all axes but the first as one."""
    return values.reshape(values.shape[0], -1) if values.ndim else values.reshape(1, 1)


def _is_matrix(name: str, base: Checkpoint) -> bool:
    return name.endswith(".weight") and len(base.info(name).shape) >= 2


def _cut(
    dense: Floats, rank: int | None, energy: float | None, covariance: Floats | None
) -> tuple[Floats, Floats, float]:
    """Return up, down and the share of energy that they keep; C^½ and its inverse are from eigenvectors."""
    matrix = dense.astype(np.float64)
    back = None
    if covariance is not None:
        values, vectors = np.linalg.eigh(covariance.astype(np.float64))
        roots = np.sqrt(np.maximum(values, 1e-12 * max(values[-1], np.finfo(np.float64).tiny)))
        matrix, back = matrix @ (vectors * roots) @ vectors.T, (vectors / roots) @ vectors.T
    u, singular, vt = np.linalg.svd(matrix, full_matrices=False)
    shares = np.cumsum(np.square(singular)) / np.square(singular).sum()
    # the last share is 1 but for rounding
    count = rank if rank is not None else 1 + int(np.searchsorted(shares[:-1], energy or 1.0))
    root = np.sqrt(singular[:count])
    down = root[:, None] * vt[:count]
    down = down if back is None else down @ back
    kept = float(shares[min(count, len(shares)) - 1])
    return (u[:, :count] * root).astype(np.float32), down.astype(np.float32), kept


def _reading(change: Update, name: str) -> Callable[[], Array]:
    return lambda: change.dense(name)
