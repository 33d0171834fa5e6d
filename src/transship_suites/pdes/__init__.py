"""Fields of partial differential equations, made on the spot from a seed by small schemes.

The equations, constants and initial states are those of PDEBench (Takamoto et al., "PDEBench: An Extensive
Benchmark for Scientific Machine Learning") as far as two cores allow; every class says where it differs. A
task is the state at the start in, the state at the end out, as cross-modal fine-tuning uses them.
"""

from __future__ import annotations

from collections.abc import Mapping

from transship_suites.pdes.advection import Advection
from transship_suites.pdes.burgers import Burgers
from transship_suites.pdes.compressible import Compressible
from transship_suites.pdes.darcy import Darcy
from transship_suites.pdes.equation import Equation, Fields
from transship_suites.pdes.reaction import DiffusionReaction
from transship_suites.pdes.shallow_water import ShallowWater
from transship_suites.pdes.sorption import DiffusionSorption

EQUATIONS: Mapping[str, type[Equation]] = {
    "advection": Advection,
    "burgers": Burgers,
    "diffusion-reaction": DiffusionReaction,
    "diffusion-sorption": DiffusionSorption,
    "darcy": Darcy,
    "shallow-water": ShallowWater,
    "compressible": Compressible,
}

__all__ = [
    "EQUATIONS",
    "Advection",
    "Burgers",
    "Compressible",
    "Darcy",
    "DiffusionReaction",
    "DiffusionSorption",
    "Equation",
    "Fields",
    "ShallowWater",
]
