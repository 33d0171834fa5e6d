"""Relative representations: invariant, and inverted up to length."""

from __future__ import annotations

import numpy as np
from paired_rows import pairs, rotation

from transship.verbs.translate import (
    RelativeRepresentation,
)


def test_relative_representation_is_invariant_to_rotation_scale_and_shift():
    x, _ = pairs(count=80)
    moved = 3.0 * x @ rotation(7, 1) + 5.0
    ours, theirs = (RelativeRepresentation().fit(part[:40]).transform(part[40:]) for part in (x, moved))
    np.testing.assert_allclose(ours, theirs, atol=1e-10)


def test_relative_representation_is_inverted_up_to_length():
    x, _ = pairs(count=80)
    fitted = RelativeRepresentation().fit(x[:40])
    back = fitted.inverse_transform(fitted.transform(x[40:])) - fitted.mean_
    cosines = (back * (x[40:] - fitted.mean_)).sum(1) / np.linalg.norm(back, axis=1)
    np.testing.assert_allclose(cosines, np.linalg.norm(x[40:] - fitted.mean_, axis=1), atol=1e-9)
