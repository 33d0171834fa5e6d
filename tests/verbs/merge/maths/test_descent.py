"""Adam, and the entropy that is descended."""

import numpy as np
import pytest
import torch

from transship.verbs.merge.maths.descent import Adam, entropy


def test_adam_equals_its_equations():
    value, first, second = np.array([1.0, -2.0]), np.zeros(2), np.zeros(2)
    tensor = torch.tensor([1.0, -2.0], dtype=torch.float64)
    optimiser = Adam([tensor], 0.05)
    for step in range(1, 6):
        slope = 2 * value + np.array([0.3, -0.1]) * step
        optimiser.step([torch.from_numpy(slope.copy())])
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        value = value - 0.05 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    np.testing.assert_allclose(tensor.numpy(), value, rtol=1e-12)
    optimiser.step([None])
    np.testing.assert_allclose(tensor.numpy(), value, rtol=1e-12)


def test_entropy_is_zero_when_sure_and_the_logarithm_of_the_classes_when_not():
    assert float(entropy(torch.tensor([[50.0, 0.0, 0.0]]))) == pytest.approx(0.0, abs=1e-6)
    assert float(entropy(torch.zeros(3, 5))) == pytest.approx(float(torch.tensor(5.0).log()), abs=1e-6)
