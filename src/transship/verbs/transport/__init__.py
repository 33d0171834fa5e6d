"""Transport: move a fine-tune to another base model."""

from transship.verbs.transport.judge import Choice
from transship.verbs.transport.moved import LayerReport, Left, Moved
from transship.verbs.transport.result import Candidate, Result
from transship.verbs.transport.run import transport
from transship.verbs.transport.scores import Measured
from transship.verbs.transport.settings import PAPER, Roles, Settings
from transship.verbs.transport.weights import Kinship, kinship
from transship.verbs.transport.work import Work

__all__ = [
    "PAPER",
    "Candidate",
    "Choice",
    "Kinship",
    "LayerReport",
    "Left",
    "Measured",
    "Moved",
    "Result",
    "Roles",
    "Settings",
    "Work",
    "kinship",
    "transport",
]
