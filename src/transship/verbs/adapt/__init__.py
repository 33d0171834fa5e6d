"""Take new data in: a pretrained transformer for a modality that it has never seen.

The public names are imported when they are first used: the command line reads options without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transship.doors import door

if TYPE_CHECKING:
    from transship.verbs.adapt import api, result
    from transship.verbs.adapt.adapted import Adapted, read_document
    from transship.verbs.adapt.estimator import Recraft, load_adapted
    from transship.verbs.adapt.model.source import SourceSide
    from transship.verbs.adapt.settings import Settings
else:
    __getattr__, __dir__ = door(__name__)

__all__ = [
    "Adapted",
    "Recraft",
    "Settings",
    "SourceSide",
    "api",
    "load_adapted",
    "read_document",
    "result",
]
