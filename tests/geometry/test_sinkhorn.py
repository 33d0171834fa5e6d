"""Entropic transport: POT's values and gradients, finite differences, and properties of the divergence."""

import inspect

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transship.errors import DataError, NumericalError, OptionError
from transship.geometry import cost_matrix, sinkhorn, sinkhorn_cost, sinkhorn_divergence

# POT is run to a fixed number of iterations, and says that it may not have converged
pytestmark = pytest.mark.filterwarnings("ignore:Sinkhorn did not converge")

POT_NAMES = {"squared_euclidean": "sqeuclidean", "euclidean": "euclidean", "cosine": "cosine"}
COSTS = tuple(POT_NAMES)
# (dtype, agreement asked for, stopping tolerance)
PRECISIONS = [(torch.float32, 1e-4, 1e-6), (torch.float64, 1e-8, 1e-13)]


def points(count, width, seed, dtype=torch.float64, shift=0.0):
    drawn = np.random.default_rng(seed).normal(size=(count, width)) + shift
    return torch.from_numpy(drawn).to(dtype).requires_grad_()


def log_domain(x, y, epsilon, iterations):
    """The iteration as it is printed, in float64 logarithms: OT_ε and the plan."""
    costs = cost_matrix(x.double(), y.double())
    (n, m), f = costs.shape, costs.new_zeros(len(x))
    for _ in range(iterations):
        g = -epsilon * torch.logsumexp((f[:, None] - costs) / epsilon - np.log(n), 0)
        f = -epsilon * torch.logsumexp((g - costs) / epsilon - np.log(m), 1)
    plan = ((f[:, None] + g - costs) / epsilon).exp() / (n * m)
    return f.mean() + g.mean() - epsilon * (plan.sum() - 1.0), plan


@pytest.mark.parametrize(("dtype", "agreement", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("cost", COSTS)
def test_value_and_gradient_agree_with_pot(dtype, agreement, tolerance, cost):
    x, y = points(40, 5, 0, dtype), points(30, 5, 1, dtype, shift=0.5)
    solution = sinkhorn(x, y, cost=cost, iterations=5000, tolerance=tolerance)
    gradient = torch.autograd.grad(solution.value, (x, y), retain_graph=True)
    # POT's own cosine has no torch gradient: it is handed a cost written out here
    most = 500 if dtype == torch.float32 else 5000
    options = {"reg": solution.epsilon, "grad": "envelope", "max_iter": most, "tol": 1e-14}
    if cost == "cosine":
        unit_x, unit_y = x / x.norm(dim=1, keepdim=True), y / y.norm(dim=1, keepdim=True)
        theirs = ot.solve(1 - unit_x @ unit_y.T, **options)
    else:
        theirs = ot.solve_sample(x, y, metric=POT_NAMES[cost], **options)
    expected = torch.autograd.grad(theirs.value, (x, y), retain_graph=True)
    scale = max(1.0, float(theirs.value.detach()))
    assert abs(float((solution.value - theirs.value).detach())) < agreement * scale
    assert abs(float((solution.cost - theirs.value_linear).detach())) < agreement * scale
    for mine, other in zip(gradient, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=agreement, atol=agreement)
    torch.testing.assert_close(torch.autograd.grad(solution.cost, (x, y)), gradient)


@pytest.mark.parametrize("cost", COSTS)
def test_gradient_agrees_with_finite_differences(cost):
    x, y, step = points(6, 3, 0), points(5, 3, 1), 1e-5
    options = {"epsilon": 0.3, "relative": False, "iterations": 5000, "tolerance": 1e-15}

    def value(x, y):
        return sinkhorn_cost(cost_matrix(x, y, cost), **options).value

    gradients = torch.autograd.grad(value(x, y), (x, y))
    for side, (place, gradient) in enumerate(zip((x, y), gradients, strict=True)):
        for index in np.ndindex(*place.shape):
            moved = torch.zeros_like(place)
            moved[index] = step
            ends = [value(*((x + s * moved, y) if side == 0 else (x, y + s * moved))) for s in (1, -1)]
            slope = float((ends[0] - ends[1]).detach()) / (2 * step)
            assert slope == pytest.approx(float(gradient[index]), abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coincident_points_have_finite_gradients(dtype):
    x = points(8, 3, 0, dtype)
    y = x.detach().clone().requires_grad_()
    for cost in COSTS:
        solution = sinkhorn(x, y, cost=cost)
        for part in torch.autograd.grad(solution.value, (x, y)):
            assert bool(torch.isfinite(part).all())
    assert bool((cost_matrix(x, x, "euclidean").diagonal() == 0).all())
    same = torch.ones(4, 3, dtype=dtype, requires_grad=True)
    solution = sinkhorn(same, same.detach(), cost="euclidean")  # every cost is zero
    assert float(solution.value.detach()) == 0.0
    assert not torch.autograd.grad(solution.value, same)[0].any()


def test_euclidean_costs_of_near_points_far_from_the_origin_keep_their_digits():
    base = points(5, 4, 0).detach() + 1e6
    near = base + 1e-3 * points(5, 4, 1).detach()
    expected = (base[:, None] - near[None]).norm(dim=-1)
    torch.testing.assert_close(cost_matrix(base, near, "euclidean"), expected, rtol=1e-9, atol=0)


def test_a_zero_vector_has_cosine_cost_one_and_no_gradient():
    x, y = torch.zeros(2, 3).double().requires_grad_(), points(4, 3, 0)
    costs = cost_matrix(x, y, "cosine")
    assert bool((costs == 1).all())
    (gradient,) = torch.autograd.grad(costs.sum(), x)
    assert not gradient.any()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("epsilon", [0.5, 0.05, 0.002])
def test_the_kernel_path_equals_the_log_domain_at_every_scale_in_float32(scale, epsilon):
    x, y = (scale * points(60, 8, s, torch.float32).detach() for s in (0, 1))
    fast = sinkhorn(x, y, epsilon=epsilon, iterations=300, tolerance=0.0)
    value, plan = log_domain(x, y, fast.epsilon, 300)
    assert fast.log_iterations < 300
    torch.testing.assert_close(fast.value.double(), value, rtol=1e-4, atol=0)
    torch.testing.assert_close(fast.plan.double(), plan, rtol=0, atol=2e-4 / 60)


def test_the_kernel_path_returns_to_the_log_domain_when_scalings_overflow():
    # far, lopsided clusters: the potentials must travel hundreds of ε from their start
    x = torch.cat([points(9, 2, 0).detach(), points(1, 2, 1).detach() + 60.0]).float()
    y = torch.cat([points(1, 2, 2).detach(), points(9, 2, 3).detach() + 60.0]).float()
    solution = sinkhorn_cost(cost_matrix(x, y), epsilon=1.0, relative=False, iterations=2000, tolerance=1e-5)
    assert 1 < solution.log_iterations < solution.iterations
    torch.testing.assert_close(solution.value.double(), log_domain(x, y, 1.0, 2000)[0], rtol=1e-4, atol=0)
    assert bool(torch.isfinite(solution.plan).all())


def test_a_warm_start_needs_fewer_iterations_for_the_same_value():
    x, y = points(50, 4, 0).detach(), points(50, 4, 1).detach()
    options = {"iterations": 5000, "tolerance": 1e-10}
    matrix = cost_matrix(x, y)
    cold = sinkhorn_cost(matrix, **options)
    again = sinkhorn_cost(matrix, start=cold.potentials, **options)
    near = sinkhorn_cost(cost_matrix(x + 1e-3, y), start=cold.potentials, **options)
    assert again.iterations <= 2
    assert near.iterations < cold.iterations
    torch.testing.assert_close(near.value, sinkhorn(x + 1e-3, y, **options).value)
    shifted = (cold.potentials[0] + 3.0, cold.potentials[1] - 3.0)  # potentials are known up to a constant
    torch.testing.assert_close(sinkhorn_cost(matrix, start=shifted, **options).plan, cold.plan)


def test_equal_iterations_give_pots_iterates_before_convergence():
    x, y = points(30, 4, 0).detach(), points(30, 4, 1).detach()
    for count in (1, 2, 7):
        solution = sinkhorn(x, y, epsilon=0.02, iterations=count, tolerance=0.0)
        theirs = ot.solve_sample(x, y, reg=solution.epsilon, max_iter=count, tol=0.0)
        torch.testing.assert_close(solution.plan, theirs.plan, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("dtype", "agreement", "tolerance"), PRECISIONS)
def test_divergence_equals_three_solutions_of_pot_with_one_epsilon(dtype, agreement, tolerance):
    x, y = points(25, 3, 0, dtype), points(30, 3, 1, dtype, shift=0.3)
    actual = sinkhorn_divergence(x, y, iterations=5000, tolerance=tolerance)
    gradient = torch.autograd.grad(actual, (x, y))
    epsilon = sinkhorn(x, y).epsilon

    def theirs(a, b):
        most = 500 if dtype == torch.float32 else 10000
        options = {"reg": epsilon, "grad": "envelope", "max_iter": most, "tol": 1e-14}
        return ot.solve_sample(a, b, **options).value

    expected = theirs(x, y) - 0.5 * theirs(x, x) - 0.5 * theirs(y, y)
    torch.testing.assert_close(actual, expected, rtol=0, atol=agreement * 10)
    for mine, other in zip(gradient, torch.autograd.grad(expected, (x, y)), strict=True):
        torch.testing.assert_close(mine, other, rtol=agreement, atol=agreement)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 12),
    m=st.integers(1, 12),
    cost=st.sampled_from(["squared_euclidean", "euclidean"]),
)
def test_divergence_is_not_negative_and_zero_at_equality(seed, n, m, cost):
    x, y = points(n, 3, [seed, 0]).detach(), points(m, 3, [seed, 1]).detach()
    options = {"cost": cost, "epsilon": 0.3, "iterations": 1000, "tolerance": 1e-12}
    assert float(sinkhorn_divergence(x, y, **options)) >= -1e-6  # what 1000 iterations may leave
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    # three iterations: the self terms already hold the potentials of the cross term
    assert float(sinkhorn_divergence(x, x[order], **options)) == pytest.approx(0.0, abs=1e-9)


def test_divergence_is_symmetric():
    x, y = points(20, 3, 0).detach(), points(25, 3, 1).detach()
    options = {"iterations": 3000, "tolerance": 1e-12}
    torch.testing.assert_close(sinkhorn_divergence(x, y, **options), sinkhorn_divergence(y, x, **options))


def test_the_plan_follows_a_rotation_of_both_sets():
    x, y = points(15, 3, 0).detach(), points(15, 3, 1).detach()
    turn = torch.linalg.qr(points(3, 3, 2).detach())[0]
    for cost in ("squared_euclidean", "euclidean", "cosine"):
        solution, two = sinkhorn(x, y, cost=cost), sinkhorn(x @ turn, y @ turn, cost=cost)
        torch.testing.assert_close(solution.plan, two.plan)


def test_half_precision_points_are_solved_in_float32():
    x, y = points(10, 3, 0, torch.bfloat16), points(10, 3, 1, torch.bfloat16)
    solution = sinkhorn(x, y)
    assert solution.value.dtype == torch.float32
    assert torch.autograd.grad(solution.value, x)[0].dtype == torch.bfloat16


def test_what_cannot_be_solved_is_refused():
    x, y = points(4, 3, 0).detach(), points(4, 3, 1).detach()
    with pytest.raises(OptionError, match="ε is 0"):
        sinkhorn(x, y, epsilon=0.0)
    with pytest.raises(OptionError, match="ε is -1"):
        sinkhorn_cost(cost_matrix(x, y), epsilon=-1.0, relative=False)
    with pytest.raises(DataError, match="no points"):
        sinkhorn(x[:0], y)
    with pytest.raises(NumericalError, match="NaN or Inf"):
        sinkhorn(x / 0, y)
    with pytest.raises(DataError, match="start potentials"):
        # without the tests' shape check
        inspect.unwrap(sinkhorn_cost)(
            cost_matrix(x, y), start=(torch.zeros(3).double(), torch.zeros(4).double())
        )


def test_a_given_cost_matrix_is_differentiable():
    costs = points(6, 7, 0).detach().square().requires_grad_()
    solution = sinkhorn_cost(costs, iterations=3000, tolerance=1e-12)
    (gradient,) = torch.autograd.grad(3.0 * solution.value, costs)
    torch.testing.assert_close(gradient, 3.0 * solution.plan)
