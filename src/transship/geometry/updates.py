"""Closed-form carriers of a layer's update that THESEUS is compared with: pseudo-inverse and Tikhonov.

A layer y = x Wᵀ has an update τ_A (out_a × in_a) in the source model; `inputs` and `outputs` are the Moments
of the layer's two sides, a = source model, b = target model. The M × M matrices of the paper are never
formed: with C_AB = H_Aᵀ H_B and C_BB = H_Bᵀ H_B everything has the widths of the layer.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from transship.errors import OptionError
from transship.geometry.moments import Moments
from transship.geometry.spectral import spectrum

# The paper names no cut-off; torch's default would decide the result when there are few rows.
PSEUDO_INVERSE_TOLERANCE = 1e-10


def pseudo_inverse(
    inputs: Moments,
    outputs: Moments,
    update: Float[Tensor, "out_a in_a"],
    *,
    tolerance: float | None = None,
) -> Float[Tensor, "out_b in_b"]:
    """Return τ_B = C_BB,out⁺ C_BA,out τ_A C_AB,in C_BB,in⁺ (Eq. 21 of THESEUS, transposed to weight shapes).

    It is the τ_B of least norm that minimises ‖H_B,in τ_Bᵀ H_B,outᵀ − H_A,in τ_Aᵀ H_A,outᵀ‖. Eigenvalues of
    C_BB below `tolerance` times the largest count as zero (1e-10, or the rounding of the products if larger).
    """
    carried = _carried(inputs, outputs, update)
    left, right = (
        spectrum(
            side.part("bb"),
            tolerance=max(PSEUDO_INVERSE_TOLERANCE, 2 * side.precision) if tolerance is None else tolerance,
            where=side.name,
        ).power(-1.0)
        for side in (outputs, inputs)
    )
    return (left @ carried @ right).to(update.dtype)


def tikhonov(
    inputs: Moments,
    outputs: Moments,
    update: Float[Tensor, "out_a in_a"],
    strength: float,
    *,
    per_side: bool = False,
) -> Float[Tensor, "out_b in_b"]:
    """Return the Tikhonov-regularised solution of the same problem.

    Exact (default): with C_BB,out = V r Vᵀ and C_BB,in = U s Uᵀ, the entries of Vᵀ R U are divided by r_i s_j
    + λ, R = C_BA,out τ_A C_AB,in and λ = strength · mean(r) · mean(s): the minimiser of the squared misfit +
    λ‖τ_B‖².
    `per_side`: each pseudo-inverse becomes (C_BB + λI)⁻¹, λ = strength · mean eigenvalue of that side. That
    is another problem, cheaper to reason about per side.
    """
    if not strength > 0:
        raise OptionError(f"strength is {strength}", where="tikhonov", fix="choose a number above 0")
    carried = _carried(inputs, outputs, update)
    left, right = (spectrum(side.part("bb"), where=side.name) for side in (outputs, inputs))
    if per_side:
        r, s = (side.values + strength * side.values.mean() for side in (left, right))
        divisor = torch.outer(r, s)
    else:
        divisor = torch.outer(left.values, right.values) + strength * left.values.mean() * right.values.mean()
    solved = (left.vectors.T @ carried @ right.vectors) / divisor
    return (left.vectors @ solved @ right.vectors.T).to(update.dtype)


def output_matching(
    inputs: Moments,
    update: Float[Tensor, "out_a in_a"],
    output_map: Float[Tensor, "out_a out_b"],
    strength: float,
) -> Float[Tensor, "out_b in_b"]:
    """Return T_outᵀ τ_A Mᵀ, M = (C_BB + λI)⁻¹ C_BA: τ_A's change of the output, reproduced from B's inputs.

    λ = strength · mean eigenvalue of C_BB of the input side.
    """
    if strength < 0:
        raise OptionError(f"strength is {strength}", where=inputs.name, fix="choose 0 or more")
    found = spectrum(inputs.part("bb"), precision=inputs.precision, where=inputs.name)
    penalty = strength * found.values.mean()
    inverse = (
        found.power(-1.0) if strength == 0 else (found.vectors / (found.values + penalty)) @ found.vectors.T
    )
    moved: Tensor = output_map.double().T @ update.double() @ inputs.part("ab") @ inverse
    return moved.to(update.dtype)


def _carried(inputs: Moments, outputs: Moments, update: Tensor) -> Tensor:
    """R = C_BA,out τ_A C_AB,in."""
    if update.shape != (outputs.width_a, inputs.width_a):
        raise OptionError(
            f"an update of shape {tuple(update.shape)} does not fit Moments of "
            f"{outputs.width_a} outputs and {inputs.width_a} inputs",
            where=inputs.name,
            fix="give the weight as (out, in)",
        )
    return outputs.part("ab").T @ update.double() @ inputs.part("ab")
