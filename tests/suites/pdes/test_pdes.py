"""Every scheme against an exact solution, a conserved quantity, a steady state or its own refinement."""

import dataclasses
import math

import numpy as np
import pytest

from transship.errors import OptionError
from transship_suites.pdes import (
    EQUATIONS,
    Advection,
    Burgers,
    Compressible,
    Darcy,
    DiffusionReaction,
    DiffusionSorption,
    ShallowWater,
)
from transship_suites.pdes.equation import waves
from transship_suites.pdes.sorption import tridiagonal

SMALL = {
    "advection": {"points": 32},
    "burgers": {"points": 32, "time": 0.2},
    "diffusion-reaction": {"points": 32},
    "diffusion-sorption": {"points": 32, "steps": 10},
    "darcy": {"points": 12},
    "shallow-water": {"points": 16, "time": 0.2},
    "compressible": {"points": 32, "time": 0.1},
}


def small(name: str):
    return EQUATIONS[name](**SMALL[name])


def sine(points: int, number: int = 1) -> np.ndarray:
    return np.sin(2 * np.pi * number * (np.arange(points) + 0.5) / points)[None, None]


def gap(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max())


@pytest.mark.parametrize("name", EQUATIONS)
def test_the_same_seed_makes_the_same_bytes_and_rows_do_not_depend_on_their_number(name: str):
    first, again, fewer = (small(name).generate(count, seed=3) for count in (5, 5, 2))
    assert first.outputs.tobytes() == again.outputs.tobytes()
    np.testing.assert_allclose(fewer.inputs, first.inputs[:2], rtol=0, atol=0)
    np.testing.assert_allclose(fewer.outputs, first.outputs[:2], atol=1e-12)
    assert gap(small(name).generate(2, seed=4).inputs, fewer.inputs) > 0
    assert first.inputs.shape == first.outputs.shape
    assert np.isfinite(first.outputs).all()


@pytest.mark.parametrize("name", EQUATIONS)
def test_points_and_rows_are_options(name: str):
    made = dataclasses.replace(small(name), points=20).generate(3, seed=0)
    assert len(made) == 3
    assert set(made.inputs.shape[2:]) == {20}


def test_nonsense_is_refused():
    with pytest.raises(OptionError, match="0 fields"):
        Advection().generate(0)
    with pytest.raises(OptionError, match="2 points"):
        Burgers(points=2).generate(1)


def test_random_waves_are_periodic_and_some_are_cut_or_folded():
    places = np.linspace(0, 1, 50)
    kinds = []
    for seed in range(300):
        wave = waves(places, np.random.default_rng(seed))
        assert gap(wave, waves(places + 1, np.random.default_rng(seed))) < 1e-9
        assert np.abs(wave).max() <= 2
        kinds.append((bool((wave >= 0).all() or (wave <= 0).all()), bool(np.abs(wave[:3]).max() < 1e-6)))
    folded, cut = np.mean(kinds, 0)
    assert 0.05 < folded < 0.3
    assert 0.03 < cut < 0.2


# -- advection ---------------------------------------------------------------------------------------------


def test_advection_moves_a_sine_exactly():
    equation = Advection(points=64)
    expected = np.sin(2 * np.pi * (equation.centres - 0.8))[None, None]
    assert gap(equation.solve(sine(64)), expected) < 1e-12


def test_generated_waves_are_the_moved_ones_and_agree_with_the_shift_where_resolved():
    equation = Advection(points=256)
    made = equation.generate(40, seed=1)
    smooth = np.abs(np.fft.rfft(made.inputs[:, 0]))[:, 30:].max(1) < 1e-6
    assert smooth.sum() > 20
    assert gap(equation.solve(made.inputs[smooth]), made.outputs[smooth]) < 1e-9
    # a whole period later everything is back
    once = dataclasses.replace(equation, speed=0.5).generate(10, seed=1)
    assert gap(once.inputs, once.outputs) < 1e-9


# -- Burgers -----------------------------------------------------------------------------------------------


def test_burgers_agrees_with_the_solution_of_cole_and_hopf():
    equation = Burgers(points=256, time=0.5, viscosity=0.1)
    diffusion = equation.viscosity / math.pi
    # u = −2D (log φ)_x with φ heated from exp(cos(2πx) / (4πD))
    fine = (np.arange(4096) + 0.5) / 4096
    start = np.exp(np.cos(2 * np.pi * fine) / (4 * np.pi * diffusion))
    numbers = 2j * np.pi * np.arange(2049)
    heated = np.fft.rfft(start) * np.exp(-diffusion * equation.time * np.abs(numbers) ** 2)
    exact = -2 * diffusion * np.fft.irfft(numbers * heated) / np.fft.irfft(heated)
    places = equation.centres
    assert gap(equation.solve(sine(256))[0, 0], np.interp(places, fine, exact)) < 2e-4


def test_burgers_keeps_the_mean_and_loses_energy():
    made = Burgers(points=128, time=1.0).generate(8, seed=0)
    assert gap(made.outputs.mean(-1), made.inputs.mean(-1)) < 1e-12
    assert ((made.outputs**2).mean(-1) < (made.inputs**2).mean(-1)).all()


def test_burgers_hardly_changes_when_the_step_is_halved():
    coarse, fine = (Burgers(points=128, time=1.0, step=step).solve(sine(128)) for step in (2e-3, 1e-3))
    assert gap(coarse, fine) < 1e-6


def test_burgers_converges_with_its_points():
    exact = Burgers(points=512, time=0.5).solve(sine(512))[0, 0]
    errors = [
        gap(
            Burgers(points=points, time=0.5).solve(sine(points))[0, 0],
            np.interp((np.arange(points) + 0.5) / points, (np.arange(512) + 0.5) / 512, exact),
        )
        for points in (64, 128, 256)
    ]
    assert errors[0] > 3 * errors[1] > 3 * errors[2]


def test_a_viscosity_of_one_leaves_a_constant():
    made = Burgers(points=64, viscosity=1.0).generate(3, seed=0)
    assert made.outputs.std(-1).max() < 1e-9


# -- diffusion and reaction --------------------------------------------------------------------------------


def test_without_growth_a_wave_decays_as_heat_does():
    equation = DiffusionReaction(points=64, growth=0.0, time=0.05)
    decay = math.exp(-equation.diffusivity * (2 * math.pi) ** 2 * equation.time)
    assert gap(equation.solve(sine(64)), decay * sine(64)) < 1e-12


def test_a_constant_state_grows_logistically():
    equation = DiffusionReaction(points=32)
    grown = 0.3 * math.exp(equation.time) / (1 + 0.3 * (math.exp(equation.time) - 1))
    assert gap(equation.solve(np.full((1, 1, 32), 0.3)), np.full((1, 1, 32), grown)) < 1e-12


def test_zero_and_one_are_steady_and_splitting_is_of_second_order():
    equation = DiffusionReaction(points=32)
    for level in (0.0, 1.0):
        assert gap(equation.solve(np.full((1, 1, 32), level)), np.full((1, 1, 32), level)) < 1e-12
    start = 0.5 + 0.4 * sine(64)
    steps = [
        DiffusionReaction(points=64, diffusivity=0.02, growth=4.0, step=step).solve(start)
        for step in (0.0725, 0.03625, 0.001)
    ]
    assert gap(steps[0], steps[2]) > 3 * gap(steps[1], steps[2])


# -- diffusion and sorption --------------------------------------------------------------------------------


def test_the_sweep_solves_tridiagonal_systems():
    generator = np.random.default_rng(0)
    lower, middle, upper, right = generator.normal(size=(4, 3, 9))
    middle += 4
    made = tridiagonal(lower, middle, upper, right)
    for row in range(3):
        matrix = np.diag(middle[row]) + np.diag(lower[row, 1:], -1) + np.diag(upper[row, :-1], 1)
        np.testing.assert_allclose(made[row], np.linalg.solve(matrix, right[row]))


def test_sorption_ends_in_a_straight_line():
    equation = DiffusionSorption(points=40, time=1e6, steps=40)
    exact = 1 - equation.centres / (1 + equation.diffusivity)
    assert gap(equation.generate(2, seed=0).outputs, np.broadcast_to(exact, (2, 1, 40))) < 1e-6


def test_sorption_stays_between_its_ends_falls_along_the_way_and_is_slower_than_diffusion():
    equation = DiffusionSorption(points=64)
    made = equation.generate(6, seed=0)
    assert (made.outputs <= 1).all()
    # the right end is drained, so only the left half must have gained
    assert (made.outputs[..., :32] >= made.inputs[..., :32] - 1e-9).all()
    assert (np.diff(made.outputs, axis=-1) <= 1e-12).all()
    free = dataclasses.replace(equation, freundlich=0.0).solve(made.inputs)
    assert (free[..., 10] > made.outputs[..., 10]).all()


def test_sorption_converges_with_its_steps_and_points():
    start = DiffusionSorption(points=64).generate(2, seed=1).inputs
    states = [DiffusionSorption(points=64, steps=steps).solve(start) for steps in (50, 100, 800)]
    assert gap(states[0], states[2]) > 1.7 * gap(states[1], states[2])
    assert gap(states[1], states[2]) < 5e-3
    fine = DiffusionSorption(points=192).solve(np.repeat(start, 3, -1))[..., 1::3]
    assert gap(states[1], fine) < 2e-3


# -- Darcy flow --------------------------------------------------------------------------------------------


def poisson(points: int) -> np.ndarray:
    """The series of −Δu = 1 on the unit square."""
    line = (np.arange(points) + 0.5) / points
    odd = np.arange(1, 200, 2)
    sines = np.sin(np.pi * odd[:, None] * line)
    weights = 16 / (np.pi**4 * np.outer(odd, odd) * (odd[:, None] ** 2 + odd**2))
    return np.einsum("mn,mi,nj->ij", weights, sines, sines)


def test_darcy_flow_of_one_coefficient_is_the_series_of_poisson_to_second_order():
    errors = [
        gap(Darcy(points=points).solve(np.ones((1, 1, points, points)))[0, 0], poisson(points))
        for points in (16, 32, 64)
    ]
    assert errors[2] < 2e-4
    assert errors[0] > 3.3 * errors[1] > 3.3**2 * errors[2]


def test_darcy_flow_scales_turns_and_balances_what_flows_in_and_out():
    equation = Darcy(points=24)
    made = equation.generate(3, seed=0)
    assert gap(equation.solve(2 * made.inputs), made.outputs / 2) < 1e-12
    turned = np.ascontiguousarray(np.rot90(made.inputs, axes=(2, 3)))
    assert gap(equation.solve(turned), np.rot90(made.outputs, axes=(2, 3))) < 1e-12
    assert (made.outputs > 0).all()
    edges = [
        np.moveaxis(field, axis, -1)[..., end]
        for field in (made.inputs, made.outputs)
        for axis in (2, 3)
        for end in (0, -1)
    ]
    outflow = sum((2 * a * u).sum(-1) for a, u in zip(edges[:4], edges[4:], strict=True))
    np.testing.assert_allclose(outflow, equation.force)
    assert set(np.unique(made.inputs)) == {0.1, 1.0}


# -- shallow water -----------------------------------------------------------------------------------------


def test_flat_water_stays_and_mass_is_kept_until_a_wave_reaches_the_edge():
    equation = ShallowWater(points=24)
    assert gap(equation.solve(np.full((1, 1, 24, 24), 1.3)), np.full((1, 1, 24, 24), 1.3)) < 1e-12
    made = equation.generate(3, seed=0)
    assert gap(made.outputs.sum((1, 2, 3)) / made.inputs.sum((1, 2, 3)), np.ones(3)) < 1e-4


def test_a_round_dam_breaks_symmetrically():
    states = ShallowWater(points=24).states(ShallowWater(points=24).generate(1, seed=0).inputs)[0]
    height, across, along = states
    assert gap(height, height.T) < 1e-10
    assert gap(height, height[::-1]) < 1e-10
    assert gap(across, along.T) < 1e-10
    assert abs(across.sum()) < 1e-8
    assert height.max() < 2


def test_shallow_water_converges_with_its_cells():
    radius = 0.6

    def ended(points: int) -> np.ndarray:
        line = 5 * ((np.arange(points) + 0.5) / points - 0.5)
        # a smooth hill, so that refinement is of the scheme and not of the circle's edge
        hill = 1 + np.exp(-(line[:, None] ** 2 + line**2) / radius**2)
        return ShallowWater(points=points, time=0.5).solve(hill[None, None])[0, 0]

    def coarse(field: np.ndarray) -> np.ndarray:
        side = len(field) // 16
        return field.reshape(16, side, 16, side).mean((1, 3))

    fields = [coarse(ended(points)) for points in (16, 32, 64, 96)]
    errors = [gap(field, fields[3]) for field in fields[:3]]
    assert errors[0] > 2.5 * errors[1] > 2.5 * errors[2]


# -- compressible flow -------------------------------------------------------------------------------------


def test_compressible_flow_keeps_mass_momentum_and_energy():
    equation = Compressible(points=64, time=0.5)
    made = equation.generate(4, seed=0)

    def sums(plain: np.ndarray) -> np.ndarray:
        density, velocity, pressure = np.moveaxis(plain, 1, 0)
        energy = pressure / (equation.gamma - 1) + 0.5 * density * velocity**2
        return np.stack([density.mean(-1), (density * velocity).mean(-1), energy.mean(-1)])

    assert gap(sums(made.inputs), sums(made.outputs)) < 1e-12
    assert made.outputs[:, [0, 2]].min() > 0


def test_uniform_flow_is_steady():
    state = np.broadcast_to(np.array([1.2, 0.7, 0.9])[:, None], (3, 32))[None].copy()
    assert gap(Compressible(points=32).solve(state), state) < 1e-12


def test_a_density_wave_is_carried_along_without_pressure_or_velocity_waves():
    def ended(points: int) -> tuple[np.ndarray, np.ndarray]:
        line = (np.arange(points) + 0.5) / points
        state = np.ones((1, 3, points))
        state[0, 0] = 1 + 0.2 * np.sin(2 * np.pi * line)
        expected = 1 + 0.2 * np.sin(2 * np.pi * (line - 0.5))
        made = Compressible(points=points, time=0.5, shear=0.0, bulk=0.0).solve(state)[0]
        return made, expected

    errors = []
    for points in (32, 64, 128):
        made, expected = ended(points)
        errors.append(float(np.abs(made[0] - expected).mean()))
        assert np.abs(made[1:] - 1).max() < 1e-10
    assert errors[0] > 2.5 * errors[1] > 2.5**2 * errors[2]


def test_viscosity_damps_a_sound_wave_as_linear_theory_says():
    points = 64
    line = (np.arange(points) + 0.5) / points
    state = np.ones((1, 3, points))
    state[0, 1] = 1e-3 * np.sin(2 * np.pi * line)
    period = 1 / math.sqrt(5 / 3)
    sizes = [
        np.abs(Compressible(points=points, time=period, shear=shear, bulk=0.0).solve(state)[0, 1]).max()
        for shear in (0.0, 0.03)
    ]
    # a linear wave decays by exp(−μ k² t / 2ρ)
    assert sizes[1] / sizes[0] == pytest.approx(math.exp(-0.04 * (2 * math.pi) ** 2 * period / 2), rel=0.05)
