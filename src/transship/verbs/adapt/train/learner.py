"""The workbench of one fit: the network, both sides' data, and what objectives and logs ask of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from transship.errors import OptionError
from transship.numerics import chunks, derive_seed
from transship.verbs.adapt.model.backbone import Backbone
from transship.verbs.adapt.model.network import Network, pooled
from transship.verbs.adapt.source.model import Source
from transship.verbs.adapt.train.losses import Loss

FORWARD_BATCH = 64


@dataclass(frozen=True, eq=False)
class Rows:
    """Inputs with their targets.

    Attributes:
        inputs: scaled values.
        targets: as the loss takes them.
        codes: the classes z' of FLD.
        base: outputs of the raw model that the network corrects, or None.
    """

    inputs: Float[Tensor, "inputs channels ..."]
    targets: Tensor
    codes: Int[Tensor, " inputs"]
    base: Tensor | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.inputs)


@dataclass(eq=False)
class Bench:
    """Everything a method works with.

    Attributes:
        network: φ, body and head; while stage 1 runs, the body is the source's own and frozen.
        train: rows to learn from.
        validation: rows to choose by.
        classes: how many classes z' there are.
        loss: of stage 2.
        scale: (mean, std) of numeric targets, for losses in their own units.
        backbone: the pretrained model, untouched.
        source: features, head and ω; None for methods that need none.
        seed: of every draw.
        device: where the network is.
    """

    network: Network
    train: Rows
    validation: Rows
    classes: int
    loss: Loss
    scale: tuple[Tensor, Tensor]
    backbone: Backbone
    source: Source | None
    seed: int
    device: torch.device

    @property
    def known(self) -> Source:
        """The source, for those that cannot do without."""
        if self.source is None:
            raise OptionError("the method needs a proxy", where="proxy", fix="name labelled data")
        return self.source

    def inputs(self, index: Int[Tensor, " batch"]) -> Tensor:
        """Return training inputs on the network's device."""
        return self.train.inputs[index].to(self.device)

    def embedded(self, index: Int[Tensor, " batch"]) -> Float[Tensor, "batch tokens width"]:
        """Return φ(x) of training rows."""
        made: Tensor = self.network.embedder(self.inputs(index))
        return made

    def source_probabilities(
        self, tokens: Float[Tensor, "batch tokens width"]
    ) -> Float[Tensor, "batch labels"]:
        """Return p_s(z|u) of embedded tokens, through the body as it stands."""
        return self.known.probabilities(self.network.states(tokens))

    def target_loss(self, outputs: Tensor, index: Int[Tensor, " batch"]) -> Float[Tensor, ""]:
        """Return the task's loss for training rows of the network's outputs, on top of the base's."""
        if self.train.base is not None:
            outputs = outputs + self.train.base[index].to(outputs)
        return self.loss.compute(outputs, self.train.targets[index].to(self.device), self.scale)

    def draw(self, count: int, *keys: object) -> Int[Tensor, " count"]:
        """Return `count` training rows (all, when there are fewer) drawn by seed and keys, in order."""
        order = np.random.default_rng(derive_seed(self.seed, *keys)).permutation(len(self.train))
        return torch.from_numpy(np.sort(order[:count]))

    def source_tokens(self, items: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return (u, mask) of proxy items, through the backbone's own embedding."""
        source = self.known
        tokens, mask = self.backbone.source_tokens([source.texts[item] for item in items])
        kind = next(self.network.body.parameters()).dtype
        return tokens.clone().to(self.device, kind), mask.to(self.device)

    @torch.no_grad()
    def outputs(self, rows: Rows) -> Tensor:
        """Return outputs for rows, the base's among them, batch by batch, in float32 on the CPU."""
        made = torch.cat(
            [
                self.network(rows.inputs[part].to(self.device)).float().cpu()
                for part in chunks(len(rows), FORWARD_BATCH)
            ]
        )
        return made if rows.base is None else made + rows.base

    @torch.no_grad()
    def views(self, rows: Rows, index: Int[Tensor, " chosen"] | None = None) -> "Views":
        """Return pooled features, body features, p_s and outputs of rows, batch by batch."""
        count = len(rows) if index is None else len(index)
        parts: list[list[Tensor]] = [[], [], [], []]
        for part in chunks(count, FORWARD_BATCH):
            chosen = rows.inputs[part] if index is None else rows.inputs[index[part]]
            tokens = self.network.embedder(chosen.to(self.device))
            states = self.network.states(tokens)
            found: Iterator[Any] = iter(
                (
                    pooled(tokens),
                    states.mean(1),
                    self.source.probabilities(states) if self.source is not None else None,
                    self.network.head(states),
                )
            )
            for kept, made in zip(parts, found, strict=True):
                if made is not None:
                    kept.append(made.float().cpu())
        joined = [torch.cat(kept) if kept else None for kept in parts]
        assert joined[0] is not None
        assert joined[1] is not None
        assert joined[3] is not None
        return Views(joined[0], joined[1], joined[2], joined[3])


@dataclass(frozen=True, eq=False)
class Views:
    """What the network makes of some rows.

    Attributes:
        pooled: token means of φ(x).
        features: token means of the body's states.
        source: p_s(z|φ(x)), or None without a source.
        outputs: of the head.
    """

    pooled: Float[Tensor, "rows width"]
    features: Float[Tensor, "rows out"]
    source: Float[Tensor, "rows labels"] | None
    outputs: Tensor


__all__ = ["Bench", "Rows", "Views"]
