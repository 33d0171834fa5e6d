"""TIES on rows of a whole model: trim each, and sum what agrees."""

import torch
from jaxtyping import Float
from torch import Tensor


def trim(row: Float[Tensor, " entries"], density: float) -> None:
    """Set all but the ⌊density · n⌋ largest magnitudes to zero, in place; of equal ones the first stay."""
    keep = int(density * row.numel())
    if keep <= 0:
        row.zero_()
        return
    size = row.abs()
    threshold = size.kthvalue(row.numel() - keep + 1).values
    above = size > threshold
    at = (size == threshold).nonzero().squeeze(1)[: keep - int(above.sum())]
    above[at] = True
    row.mul_(above)


def agree(rows: Float[Tensor, "models entries"]) -> Float[Tensor, " entries"]:
    """Return the sum, per entry, of those that have the entry's elected sign."""
    signs = rows.sum(0).sign_()
    majority = signs.sum().sign()
    signs = torch.where(signs == 0, majority, signs)
    return torch.where(rows.sign() == signs, rows, rows.new_zeros(())).sum(0)


def agreeing(vectors: list[dict[str, Tensor]], density: float) -> dict[str, Tensor]:
    """Return, tensor by tensor, what agrees of vectors that are trimmed over the whole model."""
    rows = torch.stack([torch.cat([tensor.reshape(-1) for tensor in vector.values()]) for vector in vectors])
    for row in rows:
        trim(row, density)
    parts = torch.split(agree(rows), [tensor.numel() for tensor in vectors[0].values()])
    return {
        name: part.view(tensor.shape) for (name, tensor), part in zip(vectors[0].items(), parts, strict=True)
    }
