"""Cost matrices between two point sets, with closed-form gradients that stay finite at coincident points."""

from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from transship.errors import DataError, OptionError
from transship.numerics import chunks

Cost = Literal["squared_euclidean", "euclidean", "cosine"]

# A squared distance below this share of ‖x‖² + ‖y‖² has lost digits to cancellation and is taken again
# directly.
CANCELLED = 1e-4


def cost_matrix(
    x: Float[Tensor, "n width"], y: Float[Tensor, "m width"], cost: Cost = "squared_euclidean"
) -> Float[Tensor, "n m"]:
    """Return C_ij = c(x_i, y_j), differentiable once in both point sets.

    `squared_euclidean` ‖x−y‖²; `euclidean` ‖x−y‖ with gradient zero where x = y; `cosine` 1 − cos(x, y),
    where a zero vector has cosine 0 with everything and gradient zero.
    """
    if x.shape[1] != y.shape[1]:
        raise DataError(
            f"points of widths {x.shape[1]} and {y.shape[1]} have no distance",
            where="cost matrix",
            fix="map one set into the space of the other first",
        )
    dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
    x, y = x.to(dtype), y.to(dtype)
    if cost == "squared_euclidean":
        result: Tensor = _SquaredEuclidean.apply(x, y)  # type: ignore[no-untyped-call]
    elif cost == "euclidean":
        result = _Euclidean.apply(x, y)  # type: ignore[no-untyped-call]
    elif cost == "cosine":
        result = 1.0 - _unit_rows(x) @ _unit_rows(y).T
    else:
        raise OptionError(
            f"there is no cost '{cost}'", where="cost matrix", fix=f"choose {', '.join(get_args(Cost))}"
        )
    return result


class _SquaredEuclidean(torch.autograd.Function):
    """C = ‖x‖² + ‖y‖² − 2 x·y about the common mean, which keeps the cancellation small."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        x, y = _about_common_mean(x, y)
        ctx.save_for_backward(x, y)
        return _squared_distances(x, y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        return _pull(x, y, upstream, ctx.needs_input_grad, 2.0)


class _Euclidean(torch.autograd.Function):
    """C = ‖x − y‖, in float64: the root magnifies the cancellation of nearby points."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.dtype = x.dtype
        x, y = _about_common_mean(x.double(), y.double())
        squares = _squared_distances(x, y)
        scale = _squared_norms(x)[:, None] + _squared_norms(y)
        rows, columns = (squares < CANCELLED * scale).nonzero(as_tuple=True)
        for part in chunks(rows.numel(), max(1, 2**22 // max(1, x.shape[1]))):
            i, j = rows[part], columns[part]
            squares[i, j] = (x[i] - y[j]).square().sum(1)
        distances = squares.sqrt_()
        ctx.save_for_backward(x, y, distances)
        return distances.to(ctx.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y, distances = ctx.saved_tensors
        weights = torch.where(distances > 0, upstream.double() / distances, 0.0)
        pulls = _pull(x, y, weights, ctx.needs_input_grad, 1.0)
        x_grad, y_grad = (None if part is None else part.to(ctx.dtype) for part in pulls)
        return x_grad, y_grad


def _pull(
    x: Tensor, y: Tensor, weights: Tensor, needed: tuple[bool, ...], factor: float
) -> tuple[Tensor | None, Tensor | None]:
    """Return factor·Σ_j w_ij (x_i − y_j) and factor·Σ_i w_ij (y_j − x_i), each only when it is needed."""
    grad_x = (
        torch.addmm(weights.sum(1)[:, None] * x, weights, y, alpha=-1).mul_(factor) if needed[0] else None
    )
    grad_y = (
        torch.addmm(weights.sum(0)[:, None] * y, weights.T, x, alpha=-1).mul_(factor) if needed[1] else None
    )
    return grad_x, grad_y


def _about_common_mean(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    mean = (x.sum(0) + y.sum(0)) / max(1, x.shape[0] + y.shape[0])
    return x - mean, y - mean


def _squared_distances(x: Tensor, y: Tensor) -> Tensor:
    norms = _squared_norms(x)[:, None] + _squared_norms(y)
    return norms.addmm_(x, y.T, alpha=-2.0).clamp_min_(0.0)


def _squared_norms(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)  # without a temporary as large as the rows
    return norms.square_()


def _unit_rows(rows: Tensor) -> Tensor:
    norms = torch.linalg.vector_norm(rows.detach(), dim=1, keepdim=True)
    zero = norms == 0
    # the row is replaced before its norm is taken: a norm has no derivative at zero
    safe = torch.where(zero, torch.ones_like(rows), rows)
    return torch.where(
        zero, torch.zeros_like(rows), safe / torch.linalg.vector_norm(safe, dim=1, keepdim=True)
    )
