"""The three models of a transport, opened to be read and to run."""

import copy
import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transship import parallel
from transship.activations import LoadedModel, Matching, load_model, match_sites, parameter_names, with_place
from transship.activations.loading import has_head, values_of
from transship.activations.readout import Readout
from transship.checkpoints import Adapter, Checkpoint
from transship.checkpoints import open as open_checkpoint
from transship.errors import CheckpointError, DataError, MatchError, OptionError, TransshipError
from transship.types import Depth
from transship.verbs.transport.settings import TEMPLATES, Opening
from transship.verbs.transport.weights import SourceUpdate, check_relation, not_finite

_VOCABULARY = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForMaskedLM", "ForPreTraining")


@dataclass(frozen=True, eq=False)
class Participant:
    """One model: weights at rest where it came from disk, and the module that runs.

    Attributes:
        name: as the user gave it.
        loaded: None for an adapter, which runs on its base.
        checkpoint: None for a module in memory.
        place: the same model in the class that can hold the fine-tune's head; None where it has a head of its
            own, or none is needed.
        no_place: why there is no such class, where one is needed.
    """

    name: str
    loaded: LoadedModel | None
    checkpoint: Checkpoint | None = None
    place: LoadedModel | None = None
    no_place: str = ""

    @property
    def model(self) -> LoadedModel:
        if self.loaded is None:
            raise OptionError("an adapter has no model of its own", where=self.name, fix="give it as TUNED")
        return self.loaded

    @property
    def folder(self) -> Path | None:
        """Where its files are; nowhere for a module in memory."""
        holder = self.loaded or self.checkpoint
        return None if holder is None else holder.folder

    @property
    def reading(self) -> LoadedModel:
        """The model whose features a head reads: in its place, where it has one."""
        return self.place or self.model

    def fingerprint(self) -> str:
        if self.checkpoint is not None:
            return self.checkpoint.fingerprint()
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def open_participants(
    source: Any,
    tuned: Any,
    target: Any,
    opening: Opening,
    *,
    classes: Sequence[str] = (),
    templates: Sequence[str] = TEMPLATES,
) -> tuple[Participant, Participant, Participant]:
    """Open the three models; with `classes`, each behind a zero-shot head.

    Where the fine-tune has another head than a vocabulary, language heads of the base models say nothing
    about its task: those are then opened without.
    """
    _require_device(opening.device)
    fine_tune = open_participant(tuned, opening, adapter=True)
    language = fine_tune.loaded is None or type(fine_tune.loaded.model).__name__.endswith(_VOCABULARY)
    base, new = (open_participant(model, opening, language=language) for model in (source, target))
    for participant in (base, fine_tune, new):
        _require_finite(participant)
    if classes:
        base, fine_tune, new = (_with_classes(model, classes, templates) for model in (base, fine_tune, new))
    return base, fine_tune, new


def _with_classes(participant: Participant, classes: Sequence[str], templates: Sequence[str]) -> Participant:
    if participant.loaded is None:
        return participant
    return dataclasses.replace(participant, loaded=zero_shot(participant.loaded, classes, templates))


def with_head_place(target: Participant, tuned: Readout, inputs: Sequence[Any]) -> Participant:
    """Return the target with a place for the fine-tune's head, where it has no head and the fine-tune has."""
    if Readout(target.model).head is not None or tuned.task in ("features", "language"):
        return target
    place = with_place(target.model, tuned.task, tuned.width, tuned.label_names, inputs)
    if isinstance(place, str):
        return dataclasses.replace(target, no_place=place)
    return dataclasses.replace(target, place=place)


def open_participant(
    reference: Any, opening: Opening, *, adapter: bool = False, language: bool = True
) -> Participant:
    """Open a folder, hub id, module or LoadedModel; with `adapter` a LoRA folder too, without `language` no
    head over a vocabulary.
    """
    if isinstance(reference, LoadedModel):
        return Participant(reference.name, reference)
    if isinstance(reference, nn.Module):
        loaded = load_model(reference, device=opening.device, preprocess=opening.preprocess)
        return Participant(loaded.name, loaded)
    checkpoint = reference
    if not isinstance(reference, Checkpoint):
        checkpoint = open_checkpoint(
            reference, allow_pickle=opening.allow_pickle, trust_remote_code=opening.trust_remote_code
        )
    if isinstance(checkpoint, Adapter):
        if not adapter:
            raise CheckpointError(
                "it is an adapter, not a model",
                where=checkpoint.name,
                fix="give adapters as TUNED, between SOURCE and TARGET",
            )
        return Participant(checkpoint.name, None, checkpoint)
    loaded = load_model(
        checkpoint,
        device=opening.device,
        device_map=opening.device_map,
        dtype=opening.dtype,
        head=has_head(checkpoint.config) and (language or not _over_vocabulary(checkpoint)),
        trust_remote_code=opening.trust_remote_code,
        preprocess=opening.preprocess,
        name=checkpoint.name,
    )
    return Participant(checkpoint.name, loaded, checkpoint)


def _require_device(name: str) -> None:
    try:
        torch.empty(1, device=parallel.device(name))
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # without CUDA torch asserts
        raise OptionError(
            f"torch has no device '{name}' here",
            where="--device",
            fix="choose cpu, or a device that torch lists",
        ) from error


def require_readable(model: LoadedModel, item: Any, where: str) -> None:
    """Refuse inputs of another kind than a model reads: one of them tells."""
    try:
        with torch.no_grad():
            model.run(model.preprocess([item]))
    except TransshipError as error:
        raise type(error)(f"{model.name} cannot read it: {error.what}", where=where, fix=error.fix) from error
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise DataError(
            f"{model.name} cannot run it ({' '.join(str(error).split())[:200]})",
            where=where,
            fix="give inputs of the kind that the models read, or a preprocess function",
        ) from error


def _require_finite(participant: Participant) -> None:
    """Refuse broken weights before they are run: what they touch would be lost without a word."""
    loaded, checkpoint = participant.loaded, participant.checkpoint
    if loaded is None:
        return
    for name, value in values_of(loaded.model):
        if not bool(torch.isfinite(value.detach()).all()):
            names = {} if checkpoint is None else parameter_names(loaded, checkpoint)
            raise not_finite(participant.name, names.get(name, name))


def _over_vocabulary(checkpoint: Checkpoint) -> bool:
    return str((checkpoint.config.get("architectures") or [""])[0]).endswith(_VOCABULARY)


def source_update(source: Participant, tuned: Participant, target: Participant) -> tuple[SourceUpdate, float]:
    """Return the update and its relative size; a wrong pair is named."""
    try:
        update = _update(source, tuned)
        return update, check_relation(update, source.model.model, (source.name, tuned.name))
    except CheckpointError as error:
        if tuned.loaded is None or not _related(target, tuned):
            raise
        raise CheckpointError(
            f"it is a fine-tune of TARGET ({target.name}), not of SOURCE ({source.name})",
            where=tuned.name,
            fix="swap the two: transship transport SOURCE TUNED TARGET, where TUNED was made from SOURCE",
        ) from error


def _update(source: Participant, tuned: Participant) -> SourceUpdate:
    if source.checkpoint is not None and tuned.checkpoint is not None:
        return SourceUpdate.between_checkpoints(source.checkpoint, tuned.checkpoint, source.model)
    return SourceUpdate.between_modules(source.model.model, tuned.model.model)


def _related(base: Participant, tuned: Participant) -> bool:
    try:
        check_relation(_update(base, tuned), base.model.model, (base.name, tuned.name))
    except CheckpointError:
        return False
    return True


def match_participants(source: Participant, target: Participant, depth: Depth) -> Matching:
    """Return which sites correspond; models without a common role are named."""
    try:
        return match_sites(source.model, target.model, depth=depth)
    except MatchError as error:
        raise MatchError(
            f"it and {source.name} have no linear map with the same role",
            where=target.name,
            fix="choose models that read the same kind of input",
        ) from error


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
        logits: Tensor = self.scale * self.classifier(nn.functional.normalize(features, dim=1))
        return logits


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


def _tensor(outputs: Any) -> Tensor:
    if isinstance(outputs, Tensor):
        return outputs
    pooled: Tensor = outputs["pooler_output"] if "pooler_output" in outputs else outputs[0]
    return pooled
