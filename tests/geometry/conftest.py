"""Checks jaxtyping's shapes at run time while these tests run."""

from __future__ import annotations

import sys

import pytest
import torch

if "transship.geometry" not in sys.modules:
    # what another room's tests imported first stays as it is: its classes must not exist twice
    from jaxtyping import install_import_hook

    with install_import_hook("transship.geometry", "beartype.beartype"):
        import transship.geometry  # noqa: F401


@pytest.fixture
def gaussian():
    """Return a maker of reproducible Gaussian matrices in float64."""

    def make(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
            dtype
        )

    return make
