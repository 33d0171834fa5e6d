"""Types that every room uses."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
