"""A transport and, in closed form, a head for the target."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

from jaxtyping import Float
from torch import Tensor

from transship.registry import build_method
from transship.verbs.transport.protocol import LayerPair, Needs, TransportMethod, require_number


@dataclass(frozen=True, kw_only=True)
class Carry(TransportMethod):
    """Move the update with `body`, then fit a head for the target by ridge onto the fine-tuned source's
    outputs.

    W = (C_BB + λI)⁻¹ C_BL about the means, b = μ_L − μ_B W: features of the (transported) target against the
    outputs of the fine-tuned source on the same unlabelled inputs. Ridge is linear in its targets, so
    carrying the head through a ridge map of features is the same thing. It replaces the target's head: what
    that could do before is lost unless inputs to keep are given.

    Attributes:
        body: the method that moves the weights: none, theseus, gradient, identity or transfusion.
        penalty: λ relative to the mean variance of the features; none takes the least generalised
            cross-validation error.
    """

    paper: ClassVar[str] = "ours"
    place_in_auto: ClassVar[int | None] = 4
    part_in_auto: ClassVar[Literal["candidate", "head", "control"]] = "head"

    body: Literal["none", "theseus", "gradient", "identity", "transfusion"] = "theseus"
    penalty: float | None = None

    def __post_init__(self) -> None:
        """Refuse a penalty below zero."""
        require_number(self.name, "penalty", self.penalty, 0.0)

    @property
    def needs(self) -> Needs:
        """What the body needs, and a head."""
        body = self.body_method
        needs = Needs() if body is None else body.needs
        return dataclasses.replace(needs, head=True, penalty=self.penalty)

    @property
    def body_method(self) -> TransportMethod | None:
        """The body's method; None where no weights move."""
        if self.body == "none":
            return None
        method: TransportMethod = build_method("transport", self.body)
        return method

    def transport(self, update: Float[Tensor, "out_a in_a"], pair: LayerPair) -> Float[Tensor, "out_b in_b"]:
        """Return the body's update; zero for none."""
        body = self.body_method
        return update.new_zeros(pair.shape) if body is None else body.transport(update, pair)

    def transport_vector(self, update: Float[Tensor, " out_a"], pair: LayerPair) -> Float[Tensor, " out_b"]:
        body = self.body_method
        return update.new_zeros(pair.shape[:1]) if body is None else body.transport_vector(update, pair)
