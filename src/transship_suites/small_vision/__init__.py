"""Small vision transformers on MNIST and Fashion-MNIST, and tasks that shift their inputs: what vision suites
share.
"""

from __future__ import annotations

from transship_suites.small_vision.networks import Network, accuracy, fine_tune, pretrain
from transship_suites.small_vision.pictures import Pictures, load_pictures
from transship_suites.small_vision.shifts import SHIFTS, shift

__all__ = ["SHIFTS", "Network", "Pictures", "accuracy", "fine_tune", "load_pictures", "pretrain", "shift"]
