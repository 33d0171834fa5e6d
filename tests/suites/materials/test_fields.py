"""Every scheme against an exact solution, a conserved quantity, a steady state or its own refinement."""

import dataclasses
import math

import numpy as np
import pytest

from transship.errors import OptionError
from transship_suites.materials.fields import EQUATIONS, Advection, Burgers, waves

SMALL = {"advection": {"points": 32}, "burgers": {"points": 32, "time": 0.2}}


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
    fields = dataclasses.replace(small(name), points=20).generate(3, seed=0)
    assert len(fields) == 3
    assert set(fields.inputs.shape[2:]) == {20}


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
    fields = equation.generate(40, seed=1)
    smooth = np.abs(np.fft.rfft(fields.inputs[:, 0]))[:, 30:].max(1) < 1e-6
    assert smooth.sum() > 20
    assert gap(equation.solve(fields.inputs[smooth]), fields.outputs[smooth]) < 1e-9
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
    fields = Burgers(points=128, time=1.0).generate(8, seed=0)
    assert gap(fields.outputs.mean(-1), fields.inputs.mean(-1)) < 1e-12
    assert ((fields.outputs**2).mean(-1) < (fields.inputs**2).mean(-1)).all()


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
    fields = Burgers(points=64, viscosity=1.0).generate(3, seed=0)
    assert fields.outputs.std(-1).max() < 1e-9
