"""Checks jaxtyping's shapes at run time while these tests run."""

from __future__ import annotations

import sys

if "transship.geometry" not in sys.modules:
    # what another room's tests imported first stays as it is: its classes must not exist twice
    from jaxtyping import install_import_hook

    with install_import_hook("transship.geometry", "beartype.beartype"):
        import transship.geometry  # noqa: F401
