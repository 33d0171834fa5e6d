import numpy as np
import pytest
import torch

from transship.verbs.adapt.raw.convolutions import RandomConvolutions, draw_convolutions


def series(rows: int = 40, channels: int = 2, length: int = 50, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, channels, length, generator=torch.Generator().manual_seed(seed))


def test_features_are_shares_of_positive_outputs_and_maxima():
    rows = series(rows=3)
    drawn = draw_convolutions(rows, 20, seed=1)
    scaled, expected = drawn.scaled(rows).double(), []
    for group in drawn.groups:
        pad = torch.zeros(3, 2, group.padding, dtype=torch.float64)
        padded = torch.cat([pad, scaled, pad], 2)
        taps = group.dilation * torch.arange(group.weights.shape[2])
        places = padded.shape[2] - int(taps[-1])
        out = torch.stack(
            [
                torch.einsum("rct,kct->rk", padded[:, :, at + taps], group.weights.double())
                for at in range(places)
            ],
            2,
        )
        out -= group.biases.double()[:, None]
        expected += [(out > 0).double().mean(2), out.amax(2)]
    torch.testing.assert_close(drawn.features(rows).double(), torch.cat(expected, 1), atol=1e-4, rtol=1e-4)


def test_the_same_seed_draws_the_same_kernels_and_another_seed_others():
    rows = series()
    first, again, other = (draw_convolutions(rows, 30, seed=seed).features(rows) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_chunks_do_not_change_features(monkeypatch: pytest.MonkeyPatch):
    rows = series()
    drawn = draw_convolutions(rows, 30, seed=0)
    whole = drawn.features(rows)
    monkeypatch.setattr("transship.verbs.adapt.raw.convolutions._ELEMENTS", 500)
    torch.testing.assert_close(drawn.features(rows), whole)


def test_scale_and_offset_of_a_channel_do_not_matter():
    rows = series()
    stretched = rows * torch.tensor([1024.0, 1 / 1024])[:, None] + torch.tensor([50.0, 1 / 4096])[:, None]
    torch.testing.assert_close(
        draw_convolutions(rows, 50, seed=0).features(rows),
        draw_convolutions(stretched, 50, seed=0).features(stretched),
        atol=1e-3,
        rtol=1e-3,
    )


@pytest.mark.parametrize("shape", [(1,), (2,), (5,), (300,), (1, 1), (3, 7), (16, 16)])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_size_gives_finite_features_also_of_constant_rows(shape: tuple[int, ...], channels: int):
    rows = torch.randn(6, channels, *shape, generator=torch.Generator().manual_seed(0))
    rows[0] = 2.5
    features = draw_convolutions(rows, 40, seed=0).features(rows)
    assert len(features) == 6
    assert torch.isfinite(features).all()
    assert features.dtype == torch.float32


def test_series_give_two_features_per_kernel_and_images_ten():
    rows = series()
    assert draw_convolutions(rows, 60, seed=0).features(rows).shape == (40, 120)
    images = torch.rand(5, 3, 12, 12)
    assert draw_convolutions(images, 60, seed=0).features(images).shape == (5, 600)


def test_kernels_come_back_from_plain_arrays():
    rows = series()
    drawn = draw_convolutions(rows, 25, seed=2)
    back = RandomConvolutions.from_state({name: np.copy(array) for name, array in drawn.state().items()})
    assert back.kernels == 25
    assert torch.equal(back.features(rows), drawn.features(rows))


def test_fields_have_the_shape_of_the_rows_and_no_negative_value():
    rows = series(rows=10)
    drawn = draw_convolutions(rows, 15, seed=0, everywhere=True)
    assert isinstance(drawn, RandomConvolutions)
    seen = torch.cat([fields for _, fields in drawn.fields(rows)])
    assert seen.shape == (10, 15, 50)
    assert float(seen.min()) == 0.0


def test_a_random_phase_leaves_the_features_nearly_alone():
    """What ROCKET is for: a linear model of values cannot see a shape whose phase is random, these can."""
    time = torch.arange(128) / 128
    phases = torch.rand(60, 1, generator=torch.Generator().manual_seed(0))
    wave = torch.sin(2 * torch.pi * (4 * time + phases))
    rows = torch.cat([wave, wave.sign()])[:, None]
    features = draw_convolutions(rows, 200, seed=0).features(rows)
    features = (features - features.mean(0)) / features.std(0).clamp_min(1e-6)
    between = (features[:60].mean(0) - features[60:].mean(0)).norm()
    within = (features[:60] - features[:60].mean(0)).norm(dim=1).mean()
    assert between > 1.5 * within
