"""One layer of two models over the same rows."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from transship.geometry import Moments
from transship.verbs.transport.protocol import LayerPair


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer_pair(
    in_a: int, out_a: int, in_b: int, out_b: int, *, rows: int = 60, seed: int = 0
) -> tuple[LayerPair, dict[str, Tensor]]:
    """A layer of two models over the same rows, and the rows themselves for dense references."""
    widths = {"in_a": in_a, "out_a": out_a, "in_b": in_b, "out_b": out_b, "grad_a": out_a, "grad_b": out_b}
    acts = {name: gaussian(rows, width, seed=seed * 10 + i) for i, (name, width) in enumerate(widths.items())}
    square = out_a == out_b and in_a == in_b
    pair = LayerPair(
        name="text.0.mlp.in",
        shape=(out_b, in_b),
        inputs=Moments.of(acts["in_a"], acts["in_b"], name="inputs"),
        outputs=Moments.of(acts["out_a"], acts["out_b"], name="outputs"),
        gradients=Moments.of(acts["grad_a"], acts["grad_b"], name="gradients"),
        descent=gaussian(out_b, in_b, seed=seed + 77),
        input_order=torch.randperm(in_b, generator=torch.Generator().manual_seed(1)) if square else None,
        output_order=torch.randperm(out_b, generator=torch.Generator().manual_seed(2)) if square else None,
        seed=seed,
    )
    return pair, acts


def for_vector(pair: LayerPair) -> LayerPair:
    """The same layer when its bias is moved: the descent is the bias' own."""
    parts = {
        name: getattr(pair, name)
        for name in ("inputs", "outputs", "gradients", "input_order", "output_order")
    }
    return LayerPair(
        name=pair.name, shape=pair.shape, descent=gaussian(pair.shape[0], seed=5), seed=pair.seed, **parts
    )


def polar_of(cross: Tensor) -> Tensor:
    u, _, vt = torch.linalg.svd(cross, full_matrices=False)
    return u @ vt


@pytest.fixture(scope="session")
def layers() -> SimpleNamespace:
    return SimpleNamespace(gaussian=gaussian, layer_pair=layer_pair, for_vector=for_vector, polar_of=polar_of)
