"""What a transport method is handed and what it gives back: one layer at a time, tensors and Moments only.

A layer is y = x Wᵀ + b with W stored as (out, in). A is the source model, B the target model; an update of
the source's weight is τ_A (out_a × in_a), the target's is τ_B (out_b × in_b). A map T (width_a × width_b)
takes rows of A's space into B's.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transship.errors import MatchError, OptionError
from transship.geometry import LinearMap, Moments
from transship.geometry.moments import Part
from transship.numerics import derive_seed
from transship.registry import Method, method_class, method_name, method_names


@dataclass(frozen=True)
class Rebasin:
    """How permutations are looked for; see `permutations.match_units`."""

    residual: Literal["shared", "segments"] = "shared"
    sweeps: int = 100


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What the runner must prepare before a method can run.

    Attributes:
        parts: the parts of the activation Moments that it reads; empty when it needs no activations.
        gradients: whether it reads Moments of the output gradients (one backward pass of each base model).
        descent: which of the target's own weight gradients it reads: their sum over the inputs (`mean`), or a
            count of the inputs' own signs (`max`); empty for none.
        permutations: how units of the source are matched to the target's by weights; None where they are not.
        same_shape: whether it can only move updates between layers of equal shape.
        near_copies: whether, between relatives of other depth, blocks are paired with their near copies.
        head: whether it fits a head for the target.
        penalty: λ of that head, relative to the mean variance of the features; None chooses it.
        hidden: the weight that an MLP's units behind the activation get in their Moments; one map then stands
            for the units on both sides of the activation. 0 keeps the two sides apart.
    """

    parts: tuple[Part, ...] = ()
    gradients: bool = False
    descent: Literal["", "mean", "max"] = ""
    permutations: Rebasin | None = None
    same_shape: bool = False
    near_copies: bool = False
    head: bool = False
    penalty: float | None = None
    hidden: float = 0.0


@dataclass(frozen=True, eq=False)
class LayerPair:
    """One layer of the source and its partner in the target.

    Attributes:
        name: the target's site, for messages.
        shape: (out_b, in_b) of the target's weight.
        inputs: Moments of what enters the layer, a = source, b = target.
        outputs: Moments of what leaves it.
        gradients: Moments of ∂L/∂output.
        descent: −∂L/∂W_B, or a count of votes with the same sign; (out_b, in_b) or (out_b,) as the update is.
        input_order: input_order[i] is the source's unit at the target's input i.
        output_order: likewise for outputs.
        seed: for methods that draw.
    """

    name: str
    shape: tuple[int, ...]
    inputs: Moments | None = None
    outputs: Moments | None = None
    gradients: Moments | None = None
    descent: Float[Tensor, "..."] | None = None
    input_order: Int[Tensor, " in_b"] | None = None
    output_order: Int[Tensor, " out_b"] | None = None
    seed: int = 0

    def side(self, which: str) -> Moments:
        """Return the Moments `inputs`, `outputs` or `gradients`; a clear error when they were not
        collected.
        """
        moments: Moments | None = getattr(self, which)
        if moments is None:
            raise MatchError(
                f"there are no Moments of its {which}",
                where=self.name,
                fix="collect them for this pair first",
            )
        return moments


class StaysError(Exception):
    """A change is not moved; says why."""


class TransportMethod(Method):
    """A way of moving an update from a source layer to a target layer. Frozen dataclass; no state, no
    files.

    Attributes:
        place_in_auto: its place among what `--method auto` uses, in the order it is tried; None for no place.
        part_in_auto: what it is there: a candidate, a head around each candidate (its field `body`), or a
            control that no choice may fall behind.
        keeps_rank: whether a low-rank update keeps its rank.
    """

    place_in_auto: ClassVar[int | None] = None
    part_in_auto: ClassVar[Literal["candidate", "head", "control"]] = "candidate"
    keeps_rank: ClassVar[bool] = False

    @cached_property
    def name(self) -> str:
        """The `--method` name: the name of the file that defines the class."""
        return method_name(type(self))

    @property
    def needs(self) -> Needs:
        return Needs()

    @property
    def body_method(self) -> "TransportMethod | None":
        """The method that moves the weights: itself, unless it leaves that to another, or moves none."""
        return self

    @property
    def mapped(self) -> "MappedMethod | None":
        """Itself, where it has one map per side of a layer."""
        return None

    @abstractmethod
    def transport(self, update: Float[Tensor, "out_a in_a"], pair: LayerPair) -> Float[Tensor, "out_b in_b"]:
        """Return the update of the target's weight."""

    @abstractmethod
    def transport_vector(self, update: Float[Tensor, " out_a"], pair: LayerPair) -> Float[Tensor, " out_b"]:
        """Return the update of a vector along the output axis: a bias, the shift of a norm."""

    def carried(self, update: Float[Tensor, "..."], pair: LayerPair) -> Float[Tensor, "..."]:
        """Return c(τ_A), what goes through maps and from row to row: the update itself, unless the method is
        a control.
        """
        return update

    def space_map(self, pair: LayerPair) -> LinearMap | None:
        """Return T of the space whose Moments are the pair's inputs, for tables and heads: their rows lie in
        one space. None where the method has no maps: it is then asked for an update of the target's shape.
        """
        return None

    def settled(self, moved: Float[Tensor, "..."], pair: LayerPair) -> Float[Tensor, "..."]:
        """Return the last word on rows that were moved: themselves, unless the method masks."""
        return moved


def parts_of(part: str) -> list[TransportMethod]:
    """Return the methods that play a part in `auto`, in their order; a head has no body yet."""
    kinds = [method_class("transport", name) for name in method_names("transport")]
    placed = [
        kind
        for kind in kinds
        if issubclass(kind, TransportMethod) and kind.place_in_auto is not None and kind.part_in_auto == part
    ]
    return [kind() for kind in sorted(placed, key=lambda kind: kind.place_in_auto or 0)]


class MappedMethod(TransportMethod):
    """A method of the form τ_B = T_outᵀ c(τ_A) T_in: one map per side, fitted once for all layers that share
    it.

    Attributes:
        two_sided: whether a space has another map as the output of one layer than as the input of the next.
    """

    two_sided: ClassVar[bool] = True

    @property
    def mapped(self) -> "MappedMethod":
        return self

    @abstractmethod
    def input_map(self, pair: LayerPair) -> LinearMap:
        """Return T_in (in_a × in_b)."""

    @abstractmethod
    def output_map(self, pair: LayerPair) -> LinearMap:
        """Return T_out (out_a × out_b)."""

    def space_map(self, pair: LayerPair) -> LinearMap | None:
        """Return T_in: the map of an input is one of activations in every method."""
        return self.input_map(pair)

    def observed_map(self, pair: LayerPair) -> LinearMap | None:
        """Return T_in on the directions that the inputs showed, and zero elsewhere; None where T_in is that
        already.
        """
        return None

    def transport(self, update: Float[Tensor, "out_a in_a"], pair: LayerPair) -> Float[Tensor, "out_b in_b"]:
        """Return T_outᵀ c(τ_A) T_in in the update's dtype."""
        return move_matrix(self.carried(update, pair), self.input_map(pair), self.output_map(pair))

    def transport_vector(self, update: Float[Tensor, " out_a"], pair: LayerPair) -> Float[Tensor, " out_b"]:
        """Return T_outᵀ c(δb)."""
        return move_vector(self.carried(update, pair), self.output_map(pair))


class SidedMethod(MappedMethod):
    """A method whose maps carry the update itself: τ_B = T_outᵀ τ_A T_in.

    Because the form is a product, the factors of a low-rank update move one by one and the rank stays.
    """

    keeps_rank: ClassVar[bool] = True


def move_matrix(
    update: Float[Tensor, "out_a in_a"], input_map: LinearMap, output_map: LinearMap
) -> Float[Tensor, "out_b in_b"]:
    """Return T_outᵀ τ_A T_in, multiplied in the precision of the update (a model's: float32).

    The cheaper of the two orders is taken.
    """
    t_in, t_out = input_map.matrix.to(update.dtype), output_map.matrix.to(update.dtype)
    (in_a, in_b), (out_a, out_b) = t_in.shape, t_out.shape
    if out_a * in_b * (in_a + out_b) <= out_b * in_a * (out_a + in_b):
        return t_out.T @ (update @ t_in)
    return (t_out.T @ update) @ t_in


def move_vector(update: Float[Tensor, " out_a"], output_map: LinearMap) -> Float[Tensor, " out_b"]:
    """Return T_outᵀ δb."""
    moved: Tensor = output_map.matrix.T @ update.to(output_map.matrix.dtype)
    return moved.to(update.dtype)


def move_factors(
    up: Float[Tensor, "out_a rank"],
    down: Float[Tensor, "rank in_a"],
    input_map: LinearMap,
    output_map: LinearMap,
) -> tuple[Float[Tensor, "out_b rank"], Float[Tensor, "rank in_b"]]:
    """Return (T_outᵀ U, D T_in): the factors of T_outᵀ (U D) T_in."""
    moved_up: Tensor = output_map.matrix.T @ up.to(output_map.matrix.dtype)
    moved_down: Tensor = down.to(input_map.matrix.dtype) @ input_map.matrix
    return moved_up.to(up.dtype), moved_down.to(down.dtype)


def require_number(
    method: str, name: str, value: float | None, least: float, most: float = math.inf, *, above: bool = False
) -> None:
    """Raise unless a method's parameter lies in its range; `above` leaves the least out. None is fine."""
    if value is None or (math.isfinite(value) and least <= value <= most and not (above and value == least)):
        return
    span = f"from {least:g} to {most:g}" if most < math.inf else f"{least:g} or more"
    fix = f"choose a number above {least:g}" if above else f"choose {span}"
    raise OptionError(f"{name} is {value:g}", where=method, fix=fix)


def require_same_shape(update: Float[Tensor, "..."], pair: LayerPair, method: str) -> None:
    """Raise unless the update has the shape that the target's weight has."""
    wanted = pair.shape[: update.ndim]
    if tuple(update.shape) != tuple(wanted):
        raise OptionError(
            f"'{method}' cannot move an update of shape {tuple(update.shape)} to {tuple(wanted)}",
            where=pair.name,
            fix="choose theseus, or a target of the source's shape",
        )


def gaussian_like(
    update: Float[Tensor, "..."], shape: Sequence[int], seed: int, name: str
) -> Float[Tensor, "..."]:
    """Return Gaussian noise of `shape` with the Frobenius norm and dtype of `update`."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "random update", name, len(shape)))
    noise = torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
    scale = update.double().norm() / noise.norm().clamp_min(torch.finfo(torch.float64).tiny)
    scaled: Tensor = (noise * scale).to(update.dtype)
    return scaled
