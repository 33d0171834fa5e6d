"""Transport: move a fine-tune to another base model.

The public names are imported when they are first used: the command line reads the settings without torch.
"""

from typing import TYPE_CHECKING

from transship.doors import door

if TYPE_CHECKING:
    from transship.verbs.transport.account import Account, Candidate, Choice
    from transship.verbs.transport.api import as_method, carry_out, default_prepared, transport
    from transship.verbs.transport.finishing import check_finish, cost_of, finish_transport
    from transship.verbs.transport.move import LayerReport, Left, Moved
    from transship.verbs.transport.plan import Plan
    from transship.verbs.transport.protocol import (
        LayerPair,
        MappedMethod,
        Needs,
        SidedMethod,
        TransportMethod,
    )
    from transship.verbs.transport.request import Request, make_plan
    from transship.verbs.transport.result import Result, require_folder
    from transship.verbs.transport.runner import apply
    from transship.verbs.transport.scores import Scores
    from transship.verbs.transport.settings import PAPER, Opening, Roles, Settings
    from transship.verbs.transport.statistics import Prepared, prepare
    from transship.verbs.transport.weights import Kinship, kinship, shifted
else:
    __getattr__, __dir__ = door(__name__)

__all__ = [
    "PAPER",
    "Account",
    "Candidate",
    "Choice",
    "Kinship",
    "LayerPair",
    "LayerReport",
    "Left",
    "MappedMethod",
    "Moved",
    "Needs",
    "Opening",
    "Plan",
    "Prepared",
    "Request",
    "Result",
    "Roles",
    "Scores",
    "Settings",
    "SidedMethod",
    "TransportMethod",
    "apply",
    "as_method",
    "carry_out",
    "check_finish",
    "cost_of",
    "default_prepared",
    "finish_transport",
    "kinship",
    "make_plan",
    "prepare",
    "require_folder",
    "shifted",
    "transport",
]
