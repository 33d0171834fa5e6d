"""Every space is mapped once, whichever layers and sides share it."""

from collections import Counter

import pytest

from transship import transport
from transship.verbs.transport.methods import gradient, theseus


@pytest.mark.parametrize(("module", "name"), [(theseus, "theseus"), (gradient, "gradient")])
def test_no_map_is_fitted_twice(kit, monkeypatch, module, name):
    fitted: Counter[tuple[str, float]] = Counter()
    real = module.procrustes

    def counted(moments, **options):
        # output gradients of a site have the name of its outputs, and other moments
        fitted[moments.name, float(moments.part("ab").norm())] += 1
        return real(moments, **options)

    monkeypatch.setattr(module, "procrustes", counted)
    source, target = kit.tiny_vit(seed=0), kit.tiny_vit(width=48, seed=1)
    tuned, images = kit.nudge(source), kit.pictures(64)
    transport(source, tuned, target, data=images, method=name, batches=1, strength=1.0)
    assert fitted
    assert max(fitted.values()) == 1
