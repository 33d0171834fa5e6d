"""Task arithmetic: weighted updates on top of the base."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from transship.verbs.merge.methods._updates import UpdateMethod


@dataclass(frozen=True, kw_only=True)
class TaskArithmetic(UpdateMethod):
    """Add the weighted updates of all models to the base.

    b + λ Σ_i w_i (x_i − b), after Ilharco et al., "Editing Models with Task Arithmetic".

    Attributes:
        density: accepted for recipes that set it; all entries are kept.
        rescale: accepted for recipes that set it; nothing is dropped, so nothing is made up for.
    """

    paper: ClassVar[str] = "Ilharco et al., 2023"
    elementwise: ClassVar[bool] = True
    parity: ClassVar[bool] = True
