"""What the tokens of a batch are, and rows made of them."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, eq=False)
class TokenLayout:
    """What the tokens of one batch in one stack are.

    Attributes:
        size: inputs in the batch.
        mask: True for tokens that are no padding; None when there is no padding (and the length is not known
            yet).
        special: True for CLS, SEP, BOS and their like.
        offsets: first and last character (exclusive) of every token in its input text.
        grids: (height, width) of the patch grids, finest first; tokens beyond the grid come first and are
            special.
        causal: a token's state has read the tokens before it only.
    """

    size: int
    mask: Bool[np.ndarray, "inputs tokens"] | None = None
    special: Bool[np.ndarray, "inputs tokens"] | None = None
    offsets: Int[np.ndarray, "inputs tokens 2"] | None = None
    grids: tuple[tuple[int, int], ...] = ()
    causal: bool = False

    def valid(self, length: int) -> Bool[np.ndarray, "inputs tokens"]:
        """Return the mask for activations of `length` tokens."""
        if self.mask is not None and self.mask.shape[1] == length:
            return self.mask
        return np.ones((self.size, length), dtype=bool)

    def knows(self, length: int) -> bool:
        """Return whether activations of `length` tokens are the tokens that this layout describes."""
        return self.mask is not None and self.mask.shape[1] == length

    def grid(self, length: int) -> tuple[tuple[int, int], int] | None:
        """Return ((height, width), specials in front) for activations of `length` tokens, or None."""
        for height, width in self.grids:
            if height * width == length:
                return (height, width), 0
        if self.grids and length > self.grids[0][0] * self.grids[0][1]:
            return self.grids[0], length - self.grids[0][0] * self.grids[0][1]
        return None


@dataclass(frozen=True, eq=False)
class RowOperator:
    """Rows of a flat [inputs · tokens, width] tensor, picked or mixed.

    Attributes:
        indices: rows of the tensor, one per made row, or those of all made rows one after another.
        starts: where in `indices` each made row begins; None when every row is one index.
        weights: one per index, summing to 1 over each made row; None when every row is one index.
    """

    indices: Int[Tensor, " entries"]
    starts: Int[Tensor, " rows"] | None = None
    weights: Float[Tensor, " entries"] | None = None

    @property
    def rows(self) -> int:
        return len(self.indices) if self.starts is None else len(self.starts)

    def apply(
        self, flat: Float[Tensor, "tokens width"], out: Float[Tensor, "rows width"] | None = None
    ) -> Float[Tensor, "rows width"]:
        """Return the made rows, copied (into `out` if it has their dtype); in float32 at least."""
        if flat.dtype not in (torch.float32, torch.float64):
            # half precision: convert what is used, not all tokens, where rows are only picked
            if self.starts is None:
                return self._filled(flat.index_select(0, self.indices).float(), out)
            flat = flat.float()
        if self.starts is None or self.weights is None:
            if out is not None and out.dtype == flat.dtype:
                return torch.index_select(flat, 0, self.indices, out=out)
            return flat.index_select(0, self.indices)
        mixed = functional.embedding_bag(
            self.indices, flat, self.starts, mode="sum", per_sample_weights=self.weights.to(flat.dtype)
        )
        return self._filled(mixed, out)

    @staticmethod
    def _filled(made: Tensor, out: Tensor | None) -> Tensor:
        return made if out is None or out.dtype != made.dtype else out.copy_(made)

    def through(self, places: Int[Tensor, " tokens"]) -> "RowOperator":
        """Return the operator for a tensor that holds token t in row places[t]."""
        return RowOperator(places[self.indices], self.starts, self.weights)

    def dense(self, tokens: int) -> Float[Tensor, "rows tokens"]:
        """Return the operator as a matrix, for tests and eyes."""
        matrix = torch.zeros(self.rows, tokens, dtype=torch.float64)
        if self.starts is None or self.weights is None:
            matrix[torch.arange(self.rows), self.indices.cpu()] = 1.0
            return matrix
        counts = torch.diff(torch.cat([self.starts.cpu(), torch.tensor([len(self.indices)])]))
        rows = torch.repeat_interleave(torch.arange(self.rows), counts)
        return matrix.index_put_((rows, self.indices.cpu()), self.weights.cpu().double(), accumulate=True)

    def to(self, device: torch.device) -> "RowOperator":
        """Return the operator with its tensors on `device`."""
        if device.type == "cpu":
            return self
        moved = [None if part is None else part.to(device) for part in (self.starts, self.weights)]
        return RowOperator(self.indices.to(device), *moved)


@dataclass(frozen=True, eq=False)
class Alignment:
    """The rows of one batch on both sides, in the same order, and the input that each row comes from."""

    source: RowOperator
    target: RowOperator
    inputs: Int[np.ndarray, " rows"]
