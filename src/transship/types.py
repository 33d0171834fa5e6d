"""Types that every room uses."""

from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
# what stands for a block where the depths of two models differ
Depth = Literal["interpolate", "nearest", "skip"]
# how the tokens of two models correspond
Align = Literal["auto", "same", "offsets", "ends", "grid", "linear", "mean", "cls"]
