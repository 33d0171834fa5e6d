"""Take new data in: a pretrained transformer for a modality that it has never seen.

The public names are imported when they are first used: the command line reads options without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transship.doors import door

if TYPE_CHECKING:
    from transship.verbs.adapt.adapted import Adapted
    from transship.verbs.adapt.artifact import load_adapted, read_document
    from transship.verbs.adapt.estimator import Recraft
    from transship.verbs.adapt.settings import Settings
    from transship.verbs.adapt.source.model import Source
else:
    __getattr__, __dir__ = door(__name__)

__all__ = [
    "Adapted",
    "Recraft",
    "Settings",
    "Source",
    "load_adapted",
    "read_document",
]
