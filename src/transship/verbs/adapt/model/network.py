"""The adapted model as one module: φ, body and head [inputs, states, width] → answers; LoRA on the body."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from transship.errors import MissingError
from transship.verbs.adapt.model.backbone import Body, Theta
from transship.verbs.adapt.model.embedder import Embedder, SavedShape, Shape

Part = Literal["embedder", "body", "head", "norms"]  # norms: of the body, alone
PARTS: tuple[Part, ...] = ("embedder", "body", "head")
Predictor = Literal["linear", "transport", "pooled"]
FORWARD_ROWS = 64  # rows that run at once


class AdaptedNetwork(nn.Module):
    """φ, then the body, then the head. It stays in evaluation mode: there is no dropout anywhere.

    Attributes:
        embedder: φ.
        body: the transformer.
        head: the target predictor.
    """

    def __init__(self, embedder: Embedder, body: Body, head: nn.Module) -> None:
        super().__init__()
        self.embedder, self.body, self.head = embedder, body, head
        self.eval()

    def with_head(self, head: nn.Module) -> "AdaptedNetwork":
        """Return the same embedder and body under another head."""
        return AdaptedNetwork(self.embedder, self.body, head)

    def states(self, tokens: Float[Tensor, "inputs tokens width"]) -> Float[Tensor, "inputs states out"]:
        """Return the body's states of embedded tokens."""
        states: Tensor = self.body(tokens, None, self.embedder.shape.grid)
        return states

    def forward(self, values: Tensor) -> Tensor:
        """Return logits or values for a batch of inputs."""
        outputs: Tensor = self.head(self.states(self.embedder(values)))
        return outputs

    def train_only(self, parts: frozenset[Part] | set[Part]) -> list[nn.Parameter]:
        """Let only these parts learn; return their parameters."""
        for part in PARTS:
            for parameter in getattr(self, part).parameters():
                parameter.requires_grad_(False)
        every: tuple[Part, ...] = (*PARTS, "norms")
        return [parameter for part in every if part in parts for parameter in self._open(part)]

    def _open(self, part: Part) -> Iterator[nn.Parameter]:
        adapters = [p for name, p in self.body.named_parameters() if "lora_" in name]
        if part == "norms":
            norms = [module for module in self.body.modules() if type(module).__name__.endswith("Norm")]
            parameters = [parameter for norm in norms for parameter in norm.parameters()]
        else:
            parameters = adapters if part == "body" and adapters else list(getattr(self, part).parameters())
        for parameter in parameters:
            parameter.requires_grad_(True)
            yield parameter


def pooled(tokens: Float[Tensor, "inputs tokens width"]) -> Float[Tensor, "inputs width"]:
    """Return the token mean, where features of source and target are compared."""
    return tokens.mean(1)


def new_embedder(shape: Shape, theta: Theta, seed: int, *, pretrained: bool = True) -> Embedder:
    """Return φ with convolutions drawn from `seed` and everything else from the pretrained embedding.

    Without `pretrained` everything is drawn, and of the backbone's embedding only the shape is left.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        embedder = Embedder(shape, theta.norm_epsilon)
        if not pretrained:
            embedder.draw()
            return embedder
    embedder.start(theta)
    return embedder


@dataclass(frozen=True)
class HeadShape(SavedShape):
    """What a head is built from, as it is saved.

    Attributes:
        predictor: `linear`; `transport`: Λ over the source's labels; `pooled`: a dense head without weights.
        width: of a state.
        outputs: numbers per input (classes, labels, 1), or channels of a dense target.
        size: (length,) or (height, width) of a dense target; empty for one answer per input.
        grid: (rows, columns) of the patches that the states belong to.
        prefix: states before those of the patches.
        source: labels of the source, for `transport`.
    """

    predictor: Predictor
    width: int
    outputs: int
    size: tuple[int, ...] = ()
    grid: tuple[int, int] = (1, 1)
    prefix: int = 0
    source: int = 0

    def build(self) -> nn.Module:
        """Return the head, with weights from torch's current seed."""
        if self.size:
            return DenseHead(self)
        return TransportHead(self) if self.predictor == "transport" else PooledHead(self)


@torch.no_grad()
def silence(head: nn.Module) -> None:
    """Let a head give zeros until it has learned."""
    for parameter in head.parameters():
        parameter.zero_()


class PooledHead(nn.Module):
    """Token mean, then a linear map: [inputs, outputs]."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.linear = nn.Linear(shape.width, shape.outputs)
        nn.init.normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)

    def forward(self, states: Float[Tensor, "inputs states width"]) -> Float[Tensor, "inputs outputs"]:
        """Return the logits or values."""
        outputs: Tensor = self.linear(states.mean(1))
        return outputs


class TransportHead(nn.Module):
    """p_τ(z'|u) = Σ_z Λ(z'|z) p_s(z|u), Eq. (23); gives log-probabilities.

    Λ is a table of logits whose rows sum to one after the softmax; p_s starts as the source's own head.
    """

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.source = nn.Linear(shape.width, shape.source)
        self.table = nn.Parameter(torch.zeros(shape.source, shape.outputs))

    @property
    def plan(self) -> Float[Tensor, "source outputs"]:
        """Λ(z'|z)."""
        return self.table.softmax(1)

    @torch.no_grad()
    def start(self, weight: Tensor, bias: Tensor, plan: Float[Tensor, "source outputs"]) -> None:
        """Begin from the source's head and a plan (that of stage 1)."""
        self.source.weight.copy_(weight)
        self.source.bias.copy_(bias)
        self.table.copy_(plan.clamp_min(1e-6).log())

    def forward(self, states: Float[Tensor, "inputs states width"]) -> Float[Tensor, "inputs outputs"]:
        """Return log p_τ."""
        source = self.source(states.mean(1)).log_softmax(1)
        return torch.logsumexp(source[:, :, None] + self.table.log_softmax(1), dim=1)


class DenseHead(nn.Module):
    """Every state gives the values of its own patch: [inputs, channels, length] or [..., height, width].

    `linear` maps a state to its patch; `pooled` averages along the state instead and has no weights (ORCA's).
    """

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        self.linear: nn.Linear | None = None
        self.rows, self.columns = shape.grid if len(shape.size) == 2 else (1, shape.grid[0] * shape.grid[1])
        if shape.predictor != "pooled":
            self.linear = nn.Linear(shape.width, self._values())
            nn.init.normal_(self.linear.weight, std=0.02)
            nn.init.zeros_(self.linear.bias)

    def _sides(self) -> tuple[int, int]:
        size = self.shape.size if len(self.shape.size) == 2 else (1, self.shape.size[0])
        return -(-size[0] // self.rows), -(-size[1] // self.columns)

    def _values(self) -> int:
        return self.shape.outputs * math.prod(self._sides())

    def forward(self, states: Float[Tensor, "inputs states width"]) -> Float[Tensor, "inputs channels ..."]:
        """Return the field or signal."""
        states = states[:, self.shape.prefix :]
        if self.linear is not None:
            values = self.linear(states)
        else:
            values = functional.adaptive_avg_pool1d(states, self._values())
        (high, wide), channels = self._sides(), self.shape.outputs
        patches = values.reshape(len(states), self.rows, self.columns, channels, high, wide)
        whole = len(states), channels, self.rows * high, self.columns * wide
        plane: Tensor = patches.permute(0, 3, 1, 4, 2, 5).reshape(whole)
        if len(self.shape.size) == 1:
            return plane[:, :, 0, : self.shape.size[0]]
        return plane[:, :, : self.shape.size[0], : self.shape.size[1]]


def add_lora(body: nn.Module, rank: int, seed: int) -> None:
    """Put LoRA factors (alpha = 2·rank) on every linear map of the body."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise MissingError("LoRA needs peft", where="lora_rank", fix="pip install peft, or pass 0") from error
    names = sorted(
        {name.rpartition(".")[2] for name, part in body.named_modules() if isinstance(part, nn.Linear)}
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(
            LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=names), body
        )
    body.eval()


@torch.no_grad()
def merge_lora(body: nn.Module) -> None:
    """Add the factors into the weights and take them out."""
    for parent, name, layer in _factored(body):
        layer.merge()
        setattr(parent, name, layer.get_base_layer())
    if hasattr(body, "peft_config"):
        del body.peft_config  # peft would take the next factors for further ones


def _factored(body: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    return [
        (parent, name, part)
        for parent in body.modules()
        for name, part in parent.named_children()
        if hasattr(part, "lora_A") and hasattr(part, "get_base_layer")
    ]
