"""CLIP as an image classifier: class names become a head through the model's own text tower."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from transship.activations import LoadedModel
from transship.errors import OptionError

TEMPLATES: tuple[str, ...] = ("a photo of a {}.",)


def zero_shot_head(clip: LoadedModel, names: Sequence[str], templates: Sequence[str] = TEMPLATES) -> Tensor:
    """Return CLIP's zero-shot head [classes, embedding]: unit text features, averaged over templates per
    class.

    Images are classified by the largest cosine with these rows, as the paper's vision experiments do.
    """
    if not hasattr(clip.model, "get_text_features"):
        raise OptionError("it has no text tower", where=clip.name, fix="give a CLIP model")
    rows = []
    with torch.no_grad():
        for name in names:
            batch = clip.preprocess([template.replace("{}", name) for template in templates])
            features = nn.functional.normalize(_tensor(clip.run(batch)), dim=1).mean(0)
            rows.append(nn.functional.normalize(features, dim=0))
    return torch.stack(rows)


class ZeroShotClassifier(nn.Module):
    """CLIP's image tower with a frozen zero-shot head: 100 cos(image, class)."""

    def __init__(self, clip: nn.Module, head: Tensor, scale: float = 100.0) -> None:
        super().__init__()
        self.clip = clip
        self.scale = scale
        self.classifier = nn.Linear(head.shape[1], head.shape[0], bias=False)
        with torch.no_grad():
            self.classifier.weight.copy_(head)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return the logits [images, classes]."""
        features = _tensor(self.clip.get_image_features(pixel_values=pixel_values))  # type: ignore[operator]
        made: Tensor = self.scale * self.classifier(nn.functional.normalize(features, dim=1))
        return made


def zero_shot(clip: LoadedModel, names: Sequence[str], templates: Sequence[str] = TEMPLATES) -> LoadedModel:
    """Return the CLIP model as an image classifier over `names`, ready to be transported to or from."""
    head = zero_shot_head(clip, names, templates)
    module = ZeroShotClassifier(clip.model, head).eval()
    module.classifier.to(head)
    config = copy.deepcopy(clip.config)
    if config is not None:
        config.id2label = dict(enumerate(names))
    return LoadedModel(
        clip.name,
        module,
        config,
        None,
        clip.image_processor,
        clip.folder,
        custom=clip.custom,
        device=clip.device,
    )


def _tensor(made: Any) -> Tensor:
    found: Tensor = (
        made if isinstance(made, Tensor) else made["pooler_output"] if "pooler_output" in made else made[0]
    )
    return found
