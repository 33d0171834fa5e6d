"""MiniRocket's features against the definition, kernel by kernel."""

import itertools

import numpy as np
import pytest
import torch

from transship.verbs.adapt.raw.minirocket import MiniRocket, draw_minirocket


def series(rows: int = 12, channels: int = 1, length: int = 40) -> torch.Tensor:
    return torch.randn(rows, channels, length, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("channels", [1, 3])
def test_features_are_shares_of_outputs_above_the_biases(channels: int):
    rows = series(channels=channels)
    drawn = draw_minirocket(rows, seed=0)
    features = drawn.features(rows).split([part.numel() for part in drawn.biases], 1)
    for number, dilation in enumerate(drawn.dilations):
        array = features[number].reshape(len(rows), 84, -1)
        for kernel, heavy in enumerate(itertools.combinations(range(9), 3)):
            weights = torch.tensor([2.0 if tap in heavy else -1.0 for tap in range(9)])
            seen = (rows * drawn.channels[number, kernel][:, None]).sum(1, keepdim=True)
            padding = 0 if (number + kernel) % 2 else 4 * dilation
            outputs = torch.nn.functional.conv1d(
                seen, weights.view(1, 1, 9), dilation=dilation, padding=padding
            )
            expected = (outputs > drawn.biases[number][kernel].view(1, -1, 1)).float().mean(2)
            # an output on a bias may fall on either side
            assert (array[:, kernel] - expected).abs().max() <= 2.01 / outputs.shape[2]


def test_there_are_about_five_thousand_features_of_every_length():
    for length in (9, 24, 300):
        drawn = draw_minirocket(series(length=length), seed=0)
        assert drawn.features(series(length=length)).shape[1] == 84 * (5000 // 84)
        assert max(drawn.dilations) * 8 < length


def test_kernels_come_back_from_plain_arrays_and_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch):
    rows = series(channels=2)
    drawn = draw_minirocket(rows, seed=3)
    back = MiniRocket.from_state({name: np.copy(array) for name, array in drawn.state().items()})
    assert torch.equal(back.features(rows), drawn.features(rows))
    monkeypatch.setattr("transship.verbs.adapt.raw.minirocket._ELEMENTS", 1)
    torch.testing.assert_close(back.features(rows), drawn.features(rows), atol=0.06, rtol=0)
