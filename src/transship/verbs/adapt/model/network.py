"""The adapted model as one module: φ, body, head."""

from collections.abc import Iterator
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transship.verbs.adapt.model.backbone import Body, Theta
from transship.verbs.adapt.model.embedders import Embedder, Shape

Part = Literal["embedder", "body", "head"]
PARTS: tuple[Part, ...] = ("embedder", "body", "head")


class Network(nn.Module):
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

    def states(self, tokens: Float[Tensor, "inputs tokens width"]) -> Float[Tensor, "inputs states out"]:
        """Return the body's states of embedded tokens."""
        states: Tensor = self.body(tokens, None, self.embedder.shape.grid)
        return states

    def forward(self, values: Tensor) -> Tensor:
        """Return logits or values for a batch of inputs."""
        made: Tensor = self.head(self.states(self.embedder(values)))
        return made

    def train_only(self, parts: frozenset[Part] | set[Part]) -> list[nn.Parameter]:
        """Let only these parts learn; return their parameters."""
        for part in PARTS:
            for parameter in getattr(self, part).parameters():
                parameter.requires_grad_(False)
        return [parameter for part in PARTS if part in parts for parameter in self._open(part)]

    def _open(self, part: Part) -> Iterator[nn.Parameter]:
        adapters = [p for name, p in self.body.named_parameters() if "lora_" in name]
        found = adapters if part == "body" and adapters else list(getattr(self, part).parameters())
        for parameter in found:
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
        made = Embedder(shape, theta.norm_epsilon)
        if not pretrained:
            made.draw()
            return made
    made.start(theta)
    return made
