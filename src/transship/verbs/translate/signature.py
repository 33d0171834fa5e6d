"""Hashes that tell whether two things belong together: anchors, maps, models."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any


def anchors_hash(ids: Iterable[Any]) -> str:
    """Return a hash of the anchors' ids in their order; 1 and "1" count as the same id."""
    digest = hashlib.sha256()
    for identity in ids:
        text = str(identity).encode()
        digest.update(len(text).to_bytes(8, "big") + text)
    return digest.hexdigest()[:32]
