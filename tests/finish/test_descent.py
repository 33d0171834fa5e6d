"""Adam, and one step down the losses of several lessons."""

import numpy as np
import torch

from transship.finish.descent import Adam, follow_slope


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


def test_adam_goes_on_from_its_moments_as_if_it_had_not_stopped():
    slopes = [torch.tensor([0.3, -2.0]), torch.tensor([-1.0, 0.5]), torch.tensor([0.2, 0.2])]
    whole, halted = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0])
    first, second = Adam([whole], 0.1), Adam([halted], 0.1)
    for slope in slopes:
        first.step([slope])
    second.step([slopes[0]])
    later = Adam([halted], 0.1)
    later.restore(second.moments())
    for slope in slopes[1:]:
        later.step([slope])
    assert torch.equal(whole, halted)


def test_a_step_follows_the_slope_of_the_sum_of_all_losses_through_what_builds_the_weights():
    strength = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    change = torch.tensor([2.0, -1.0], dtype=torch.float64)
    losses = [lambda weights: (weights["w"] - 3.0).square().sum(), lambda weights: 4 * weights["w"].sum()]
    optimiser = Adam([strength], 0.0)
    loss = follow_slope([strength], lambda: {"w": strength * change}, losses, optimiser)
    weight = 0.5 * change
    assert loss == float((weight - 3).square().sum() + 4 * weight.sum())
    expected = float(((2 * (weight - 3) + 4) * change).sum())
    assert strength.grad is not None
    np.testing.assert_allclose(strength.grad.numpy(), [expected], rtol=1e-12)
