import pytest

from transship_suites.materials.targets import series_task
from transship_suites.recraft.measure import fourier_operator, missing

reason = missing()
pytestmark = pytest.mark.skipif(reason is not None, reason=reason or "")


@pytest.mark.slow
def test_an_operator_learns_to_advect():
    task = series_task("advection", rows=60, test=20, seed=0)
    assert fourier_operator(task, seed=1, epochs=80, width=12)["nrmse"] < 0.7


def test_the_same_seed_gives_the_same_operator():
    task = series_task("advection", rows=20, test=5, seed=0)
    first, again, other = (fourier_operator(task, seed=seed, epochs=2, width=4) for seed in (1, 1, 2))
    assert first["nrmse"] == again["nrmse"] != other["nrmse"]
