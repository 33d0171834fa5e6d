"""The source head made ω-Lipschitz (Eq. 13, App. F), without a second derivative.

Eq. (13) alone has a zero head as its optimum, so the fitting term stays beside it: CE + ρ·mean max(0, ‖∇_u
ℓ_s‖ − ω)². The body is frozen, so for a head of weight A·W (A a square matrix over the labels that mixes the
trained head's logits, and a new bias) the gradient of an item is ∇_u ℓ_s = (W·J)ᵀ Aᵀ (p − e_z), with J the
derivative of the body's token mean. Its norm needs only the Gram matrix G = (W J)(W J)ᵀ of the item, labels
× labels: as many backward passes as there are labels, once. Every ω of the grid then costs milliseconds, and
the norms are exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from transship.errors import OptionError
from transship.numerics import chunks
from transship.verbs.adapt.model.backbone import Backbone, Body

GRID = tuple(round(0.1 * step, 1) for step in range(1, 11))
RHO = 100.0
TOLERANCE = 0.01  # held-out accuracy that ω may cost; one standard error of it, where that is more


@dataclass(frozen=True)
class GridPoint:
    """What one ω gave: accuracy and cross-entropy on held-out items, and the largest norm."""

    omega: float
    accuracy: float
    error: float
    worst: float


@dataclass(frozen=True, eq=False)
class Recalibration:
    """What the recalibration works on.

    Attributes:
        outputs: token means of the body's states.
        labels: classes.
        held_out: items that choose and never train.
        weight: of the head as trained.
        bias: the same.
        items: which items have gradients.
        grams: their Gram matrices G.
    """

    outputs: Float[Tensor, "items out"]
    labels: Int[Tensor, " items"]
    held_out: Bool[Tensor, " items"]
    weight: Float[Tensor, "labels out"]
    bias: Float[Tensor, " labels"]
    items: Int[Tensor, " calibration"]
    grams: Float[Tensor, "calibration labels labels"]

    def tensors(self) -> dict[str, Tensor]:
        return dict(vars(self))


@dataclass(frozen=True, eq=False, kw_only=True)
class Head:
    """The recalibrated head and what it costs.

    Attributes:
        weight: of the head.
        bias: the same.
        accuracy: on held-out items.
        error: its cross-entropy there in nats: err_s.
        omega: ω.
        norms: ‖∇_u ℓ_s‖ of the calibration items.
        grid: what each ω of the grid gave.
    """

    weight: Tensor
    bias: Tensor
    accuracy: float
    error: float
    omega: float
    norms: Tensor
    grid: tuple[GridPoint, ...]

    def arrays(self) -> dict[str, Tensor]:
        """Return the tensors by name, as they are saved."""
        return {name: value.contiguous() for name, value in vars(self).items() if isinstance(value, Tensor)}

    def about(self) -> dict[str, Any]:
        facts = {"accuracy": self.accuracy, "error": self.error, "omega": self.omega}
        return {**facts, "grid": [vars(point) for point in self.grid]}

    @classmethod
    def restore(cls, arrays: Mapping[str, Tensor], about: Mapping[str, Any]) -> Self:
        """Return what `arrays` and `about` gave."""
        tuples = {name: tuple(value) for name, value in about.items() if isinstance(value, list)}
        grid = tuple(GridPoint(**point) for point in about["grid"])
        return cls(**{**arrays, **about, **tuples, "grid": grid})


def head_grams(
    backbone: Backbone, body: Body, inputs: Sequence[Any], weight: Float[Tensor, "labels out"]
) -> Float[Tensor, "items labels labels"]:
    """Return G_i = (W J_i)(W J_i)ᵀ of each input, J_i the derivative of the pooled states in all of u."""
    parts = []
    for part in chunks(len(inputs), 16):
        tokens, mask, states = backbone.source_pass(inputs[part])
        mask_states = mask if states.shape[1] == mask.shape[1] else None
        grid = source_grid(backbone)
        parts.append(grams(body, tokens.clone(), mask, mask_states, grid, weight))
    return torch.cat(parts)


def grams(
    body: Body,
    tokens: Float[Tensor, "items tokens width"],
    mask: Bool[Tensor, "items tokens"] | None,
    mask_states: Bool[Tensor, "items states"] | None,
    grid: tuple[int, int] | None,
    weight: Float[Tensor, "labels out"],
) -> Float[Tensor, "items labels labels"]:
    """Return the Gram matrices for embedded tokens."""
    tokens = tokens.detach().requires_grad_(True)
    states = body(tokens, mask, grid)
    share = torch.ones(states.shape[:2]) if mask_states is None else mask_states.to(states.dtype)
    pooled = torch.einsum("itw,it->iw", states, share / share.sum(1, keepdim=True))
    logits = functional.linear(pooled, weight.to(pooled))
    rows = []
    for label in range(len(weight)):
        (slope,) = torch.autograd.grad(logits[:, label].sum(), tokens, retain_graph=label + 1 < len(weight))
        rows.append(slope.flatten(1))
    stacked = torch.stack(rows, 1)  # items × labels × (tokens · width)
    return stacked @ stacked.transpose(1, 2)


def gram_norms(
    grams: Float[Tensor, "items labels labels"],
    mixing: Float[Tensor, "labels labels"],
    probabilities: Float[Tensor, "items labels"],
    labels: Int[Tensor, " items"],
) -> Float[Tensor, " items"]:
    """Return ‖∇_u ℓ_s‖₂ = √(vᵀ G v) with v = Aᵀ (p − e_z), for the head A·W."""
    wrong = probabilities - functional.one_hot(labels, probabilities.shape[1]).to(probabilities)
    mixed = wrong @ mixing
    return torch.einsum("il,ilk,ik->i", mixed, grams, mixed).clamp_min(1e-24).sqrt()


def check_omega(omega: float | str) -> None:
    """Refuse an ω that is neither a number above 0 nor the grid."""
    if omega != "grid" and not (isinstance(omega, int | float) and omega > 0):
        raise OptionError(f"ω is {omega!r}", where="omega", fix='give a number above 0, or "grid"')


def lipschitz_penalty(norms: Float[Tensor, " inputs"], omega: float) -> Float[Tensor, ""]:
    """Return mean max(0, ‖∇_u ℓ_s‖ − ω)², Eq. (13): zero exactly when every norm is at most ω."""
    return (norms - omega).clamp_min(0.0).square().mean()


def recalibrate(evidence: Recalibration, *, omega: float | str = "grid") -> Head:
    """Return the head for a given ω, or for the smallest of the grid that keeps its accuracy.

    It may cost a point of held-out accuracy, or one standard error of it where that is more.
    """
    check_omega(omega)
    fits = [_fit(evidence, value) for value in (GRID if omega == "grid" else (float(omega),))]
    bar = 0.0
    if omega == "grid":
        accuracy, count = _fit(evidence, None)[1].accuracy, int(evidence.held_out.sum())
        bar = accuracy - max(TOLERANCE, (accuracy * (1.0 - accuracy) / count) ** 0.5)
    mixing, point = next((fit for fit in fits if fit[1].accuracy >= bar), fits[-1])
    weight, bias = _head(evidence, mixing)
    return Head(
        weight=weight,
        bias=bias,
        accuracy=point.accuracy,
        error=point.error,
        omega=point.omega,
        norms=_norms(evidence, mixing).float(),
        grid=tuple(point for _, point in fits),
    )


def _fit(evidence: Recalibration, omega: float | None) -> tuple[tuple[Tensor, Tensor], GridPoint]:
    """Return (A, bias) that minimises CE + ρ·penalty from A = 1, by L-BFGS; None for the head as it is."""
    logits = evidence.outputs.double() @ evidence.weight.double().T
    train = ~evidence.held_out
    mixing = torch.eye(len(evidence.bias), dtype=torch.float64).requires_grad_(True)
    bias = evidence.bias.double().requires_grad_(True)
    if omega is not None:
        worst = float(_norms(evidence, (mixing.detach(), bias.detach())).max())
        solver: Any = torch.optim.LBFGS(
            [mixing, bias], max_iter=60, history_size=10, line_search_fn="strong_wolfe", tolerance_change=1e-7
        )

        def closure() -> Tensor:
            solver.zero_grad()
            fit = functional.cross_entropy(logits[train] @ mixing.T + bias, evidence.labels[train])
            loss = fit + RHO * lipschitz_penalty(_norms(evidence, (mixing, bias)), omega)
            # stay near the trained head: it was fitted with a strength that held-out items chose
            loss = loss + 1e-3 * (mixing - torch.eye(len(bias), dtype=bias.dtype)).square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        if worst > omega:
            solver.step(closure)
    head = (mixing.detach(), bias.detach())
    outputs = logits[evidence.held_out] @ head[0].T + head[1]
    wanted = evidence.labels[evidence.held_out]
    accuracy = float((outputs.argmax(1) == wanted).double().mean())
    point = GridPoint(
        omega or 0.0,
        accuracy,
        float(functional.cross_entropy(outputs, wanted)),
        float(_norms(evidence, head).max()),
    )
    return head, point


def _norms(evidence: Recalibration, head: tuple[Tensor, Tensor]) -> Tensor:
    mixing, bias = head
    logits = evidence.outputs[evidence.items].double() @ evidence.weight.double().T @ mixing.T + bias
    return gram_norms(evidence.grams.double(), mixing, logits.softmax(1), evidence.labels[evidence.items])


def _head(evidence: Recalibration, head: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return (head[0] @ evidence.weight.double()).float(), head[1].float()


def source_grid(backbone: Backbone) -> tuple[int, int] | None:
    """Return the patches' (rows, columns) of the backbone's own pictures; None for text."""
    theta = backbone.theta
    if theta.patch_filter is None or theta.image is None:
        return None
    sides = zip(theta.image, theta.patch_filter.shape[2:], strict=True)
    high, wide = (-(-side // patch) for side, patch in sides)
    return high, wide
