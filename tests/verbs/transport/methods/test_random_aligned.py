"""The random control fits no map twice."""

from transship.verbs.transport import transport


def test_the_random_control_fits_a_map_once_for_all_that_share_it(kit, monkeypatch):
    from transship.verbs.transport.methods import random_aligned

    fitted = []
    procrustes = random_aligned.procrustes

    def counted(moments):
        fitted.append(moments)
        return procrustes(moments)

    monkeypatch.setattr(random_aligned, "procrustes", counted)
    source, target = kit.tiny_vit(), kit.tiny_vit(48, seed=4)
    moved = transport(
        source,
        kit.nudge(source),
        target,
        data=kit.pictures(64),
        method="random-aligned",
        strength=1.0,
        batches=1,
    ).moved
    linear = [layer for layer in moved.layers if layer.tensor.endswith("weight")]
    # a layer has two sides; query, key and value read one input, and a bias leaves where its weight does
    assert len(fitted) < 2 * len(linear)
