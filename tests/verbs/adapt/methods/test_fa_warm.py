"""FA, then a supervised warm-up: the honest control of FLD."""

from __future__ import annotations

from transship.registry import build_method


def test_it_is_recraft_with_supervision_in_the_place_of_fld():
    method, recraft, warm = (build_method("adapt", name) for name in ("fa-warm", "recraft", "warm"))
    first, second = method.phases()
    aligned, distortion = recraft.phases()
    assert (first.name, first.steps, first.rate, first.batch, first.objective) == (
        aligned.name,
        aligned.steps,
        aligned.rate,
        aligned.batch,
        aligned.objective,
    )
    assert (second.steps, second.rate, second.batch) == (distortion.steps, distortion.rate, distortion.batch)
    assert second.objective is warm.phases()[0].objective
