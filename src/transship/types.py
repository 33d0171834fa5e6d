"""Types that every room uses."""

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
else:
    Array = Any  # start-up: the options of commands need no numpy
# what stands for a block where the depths of two models differ
Depth = Literal["interpolate", "nearest", "skip"]
# how the tokens of two models correspond
Align = Literal["auto", "same", "offsets", "ends", "grid", "linear", "mean", "cls"]
