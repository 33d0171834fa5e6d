"""The part of an update that goes downhill on the target."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from transship.errors import MatchError
from transship.geometry import LinearMap
from transship.registry import build_method
from transship.verbs.transport.protocol import LayerPair, Needs, TransportMethod, gaussian_like


@dataclass(frozen=True, kw_only=True)
class Gradfix(TransportMethod):
    """Keep the entries of an update whose sign agrees with descent on the target; drop the others.

    τ_B = τ ∘ 1[sign τ = sign(−∂L/∂θ_B)], Rinaldi et al., "Gradient-sign masking for task vector transport
    across pre-trained models". It is a sign-descent step as much as a transport: a random update masked in
    the same way (`control`) is what a figure must beat.

    Attributes:
        body: which method gives the update of the target's shape: identity (the paper's, for equal shapes),
            theseus or gradient.
        vote: mean takes the sign of the summed gradient, max the majority of the examples' own signs.
        force: take |τ| with the descent's sign everywhere instead of masking.
        control: mask Gaussian noise of the same norm instead of the update.
    """

    paper: ClassVar[str] = "GradFix (Rinaldi et al., ICLR 2026)"

    body: Literal["identity", "theseus", "gradient"] = "identity"
    vote: Literal["mean", "max"] = "mean"
    force: bool = False
    control: bool = False

    @property
    def needs(self) -> Needs:
        """What the body needs, and the target's weight gradients."""
        return dataclasses.replace(self._body().needs, descent=self.vote, near_copies=False)

    def transport(self, update: Float[Tensor, "out_a in_a"], pair: LayerPair) -> Float[Tensor, "out_b in_b"]:
        return self._mask(self._body().transport(update, pair), pair)

    def transport_vector(self, update: Float[Tensor, " out_a"], pair: LayerPair) -> Float[Tensor, " out_b"]:
        return self._mask(self._body().transport_vector(update, pair), pair)

    def space_map(self, pair: LayerPair) -> LinearMap | None:
        return self._body().space_map(pair)

    def settled(self, moved: Float[Tensor, "..."], pair: LayerPair) -> Float[Tensor, "..."]:
        return self._mask(moved, pair)

    def _body(self) -> TransportMethod:
        method: TransportMethod = build_method("transport", self.body)
        return method

    def _mask(self, moved: Tensor, pair: LayerPair) -> Tensor:
        if pair.descent is None or pair.descent.shape != moved.shape:
            raise MatchError("the target has no gradient here", where=pair.name, fix="give labels or a head")
        if self.control:
            moved = gaussian_like(moved, moved.shape, pair.seed, pair.name)
        signs = torch.sign(pair.descent).to(moved.dtype)
        if self.force:
            return moved.abs() * signs
        # sign(0) matches no entry: what the loss does not feel is dropped
        return torch.where(torch.sign(moved) == signs, moved, torch.zeros_like(moved)) * signs.abs()
