"""A stem of random convolutions: what φ sees of a patch is how often, and how far, random kernels fire in it.

After Dempster, Petitjean and Webb, "ROCKET", with the pooling over patches in place of the whole series, and
with the biases of MiniRocket, quantiles of the outputs on training rows. Nothing here is trained: φ learns
the linear map from these features to tokens.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

KERNELS, LENGTH = 256, 9
_BIAS_ROWS, _SCALE_ROWS = 64, 512  # training rows that give biases, and the scale of features
_GOLDEN = (5**0.5 - 1) / 2


class RandomStem(nn.Module):
    """Random kernels of nine taps at dilations 1, 2, 4, … up to the series, pooled in every patch.

    Weights are drawn from torch's current seed; `look_at` sets biases and the scale of features.

    Attributes:
        patch: samples per token.
        dilations: of the groups of kernels.
        outputs: features per token: of every kernel the share of positive outputs and the largest one.
    """

    def __init__(self, channels: int, length: int, patch: int) -> None:
        super().__init__()
        self.patch, self.dilations = patch, [1]
        while (LENGTH - 1) * 2 * self.dilations[-1] < length:
            self.dilations.append(2 * self.dilations[-1])
        each = KERNELS // len(self.dilations)
        self.outputs = 2 * each * len(self.dilations)
        for dilation in self.dilations:
            weights = torch.randn(each, channels, LENGTH)
            weights -= weights.mean(2, keepdim=True)
            self.register_buffer(
                f"weights{dilation}", weights / weights.flatten(1).norm(dim=1)[:, None, None]
            )
            self.register_buffer(f"biases{dilation}", torch.zeros(each))
        self.register_buffer("mean", torch.zeros(self.outputs))
        self.register_buffer("scale", torch.ones(self.outputs))

    @torch.no_grad()
    def forward(
        self, values: Float[Tensor, "inputs channels samples"]
    ) -> Float[Tensor, "inputs features tokens"]:
        """Return standardised features of every patch; the samples are a whole number of patches."""
        made = self._pooled(values)
        mean, scale = self.get_buffer("mean"), self.get_buffer("scale")
        return (made - mean[:, None]) / scale[:, None]

    @torch.no_grad()
    def look_at(self, values: Float[Tensor, "rows channels samples"]) -> None:
        """Set biases to quantiles of outputs on training rows, then the scale of the features."""
        for dilation in self.dilations:
            biases = self.get_buffer(f"biases{dilation}")
            biases.zero_()
            found = self._convolved(values[:_BIAS_ROWS], dilation).transpose(0, 1).flatten(1).sort(1).values
            levels = torch.arange(1, len(biases) + 1).mul(_GOLDEN).remainder(1.0)  # spread as MiniRocket's
            places = (levels * (found.shape[1] - 1)).long()
            biases.copy_(found[torch.arange(len(biases)), places])
        features = self._pooled(values[:_SCALE_ROWS]).transpose(1, 2).flatten(0, 1)
        deviation, mean = torch.std_mean(features, 0, correction=0)
        self.get_buffer("mean").copy_(mean)
        self.get_buffer("scale").copy_(torch.where(deviation > 1e-6, deviation, torch.ones_like(deviation)))

    def _convolved(self, values: Tensor, dilation: int) -> Tensor:
        weights, biases = self.get_buffer(f"weights{dilation}"), self.get_buffer(f"biases{dilation}")
        padding = dilation * (LENGTH // 2)
        return functional.conv1d(values.to(weights), weights, -biases, dilation=dilation, padding=padding)

    def _pooled(self, values: Tensor) -> Float[Tensor, "inputs features tokens"]:
        found = []
        for dilation in self.dilations:
            made = self._convolved(values, dilation)
            cut = made.reshape(*made.shape[:2], -1, self.patch)
            found += [(cut > 0).to(cut.dtype).mean(3), cut.amax(3)]
        return torch.cat(found, 1)


__all__ = ["RandomStem"]
