"""What holds exactly in a whole transport: isometries, kept norms, and one result whatever the threads."""

import numpy as np
import pytest
import torch
from torch import Tensor

from transship.geometry import LinearMap
from transship.verbs.transport import Request, Settings, make_plan, prepare, transport
from transship.verbs.transport.maps import Maps
from transship.verbs.transport.methods.theseus import Theseus
from transship.verbs.transport.protocol import move_matrix

WIDTHS = [(32, 48), (48, 32), (32, 32)]


def fitted_maps(kit, widths: tuple[int, int], images: int = 256) -> dict[str, tuple[LinearMap, LinearMap]]:
    """The maps (T_in, T_out) of every linear layer of two float64 models, collected from the inputs on."""
    source, target = kit.tiny_vit(widths[0]).double(), kit.tiny_vit(widths[1], seed=4).double()
    data = kit.pictures(images).astype(np.float64)
    settings = Settings(strength=1.0, batches=images // 32, tokens_per_input=0)
    request = Request(source=source, tuned=kit.nudge(source), target=target, data=data, settings=settings)
    plan = make_plan(request)
    method = Theseus()
    maps = Maps(prepare(plan, method).statistics, method, seed=0)
    by_name = {}
    for pair in plan.matching.pairs:
        if pair.target.kind == "linear" and pair.target.role != "head":
            layer = maps.layer(pair, False)
            assert not isinstance(layer, str), layer
            by_name[pair.name] = maps.map(pair, layer, "input"), maps.map(pair, layer, "output")
    assert len(by_name) == 12
    return by_name


def off_identity(matrix: Tensor) -> float:
    """How far the shorter side's vectors are from an orthonormal set."""
    rows = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    return float((rows @ rows.T - torch.eye(len(rows), dtype=matrix.dtype)).abs().max())


@pytest.mark.parametrize("widths", WIDTHS)
def test_every_map_between_two_models_has_orthonormal_rows_or_columns(kit, widths):
    for name, sides in fitted_maps(kit, widths).items():
        for side in sides:
            assert side.full_rank, name
            assert off_identity(side.matrix) < 1e-10, name


def test_maps_between_two_models_keep_the_norm_of_every_wider_layer_and_no_narrower_one(kit):
    generator = torch.Generator().manual_seed(2)
    for widths in ((32, 48), (48, 32)):
        for name, (t_in, t_out) in fitted_maps(kit, widths).items():
            shape = t_out.width_source, t_in.width_source
            update = torch.randn(shape, generator=generator, dtype=torch.float64)
            kept = float(move_matrix(update, t_in, t_out).norm() / update.norm())
            if widths[0] < widths[1]:
                assert abs(kept - 1.0) < 1e-10, name
            else:
                assert kept < 0.95, name


@pytest.mark.parametrize("widths", WIDTHS[:2])
def test_one_or_two_threads_give_the_same_maps_and_ranks(kit, widths):
    """In float64: where torch itself rounds a float32 forward pass by the number of threads, maps follow."""
    before, entries = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            entries.append(fitted_maps(kit, widths, images=128))
    finally:
        torch.set_num_threads(before)
    for name, sides in entries[0].items():
        for first, other in zip(sides, entries[1][name], strict=True):
            assert first.rank == other.rank
            torch.testing.assert_close(other.matrix, first.matrix, atol=1e-8, rtol=0, msg=name)


def test_one_or_two_threads_give_the_same_update_from_inputs_to_weights(kit):
    source, target = kit.tiny_vit(96), kit.tiny_vit(128, seed=4)
    tuned, images = kit.nudge(source), kit.pictures(128)
    before, entries = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            entries.append(
                transport(source, tuned, target, data=images, method="theseus", strength=1.0, batches=4).moved
            )
    finally:
        torch.set_num_threads(before)
    for name, moved in entries[0].dense.items():
        torch.testing.assert_close(entries[1].dense[name], moved, atol=1e-8, rtol=0, msg=name)
    ranks = [[(layer.site, layer.rank_in, layer.rank_out) for layer in moved.layers] for moved in entries]
    assert ranks[0] == ranks[1]
