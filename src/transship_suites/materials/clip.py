"""CLIP from its files (of transformers or of open_clip), with zero-shot heads; fine-tuned and measured."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

from transship.activations import LoadedModel, load_model
from transship.activations.loading import preprocessors, quiet
from transship.data import Dataset, find_model
from transship.errors import CheckpointError
from transship.verbs.transport.models import ZeroShotClassifier, zero_shot_head
from transship_suites.materials.image_sets import IMAGE_SETS, class_names

OPEN_CONFIG, OPEN_WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
_MEAN, _STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_NORMS = {"ln_1": "layer_norm1", "ln_2": "layer_norm2"}
_LINEARS = {"attn.out_proj": "self_attn.out_proj", "mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2"}


def load_clip(name: str, *, device: str = "cpu") -> LoadedModel:
    """Return a CLIP model by hub id; a folder of open_clip becomes the same model of transformers."""
    folder = find_model(name)
    if not (folder / OPEN_CONFIG).is_file():
        return load_model(str(folder), device=device, name=name)
    return _from_open_clip(folder, name, device)


def _from_open_clip(folder: Path, name: str, device: str) -> LoadedModel:
    if not (folder / OPEN_WEIGHTS).is_file():
        raise CheckpointError(
            f"its folder has no {OPEN_WEIGHTS}",
            where=name,
            fix="fetch that file; pickled weights are not read",
        )
    about = json.loads((folder / OPEN_CONFIG).read_text(encoding="utf-8"))
    config = _config(about["model_cfg"])
    with quiet():
        model: nn.Module = CLIPModel(CLIPConfig(**config))
    missing = model.load_state_dict(_renamed(load_file(folder / OPEN_WEIGHTS)), strict=False)
    wrong = [*missing.unexpected_keys, *(key for key in missing.missing_keys if "position_ids" not in key)]
    if wrong:
        raise CheckpointError(
            f"'{wrong[0]}' of its weights does not fit its {OPEN_CONFIG}",
            where=name,
            fix="give a CLIP model of open_clip with its own two towers",
        )
    tokenizer, _ = preprocessors(str(folder), {"local_files_only": True})
    if tokenizer is None:
        raise CheckpointError("its folder has no tokenizer", where=name, fix="fetch its tokenizer.json too")
    size = int(about["model_cfg"]["vision_cfg"]["image_size"])
    shown = about.get("preprocess_cfg", {})
    with quiet():
        processor = CLIPImageProcessor(
            size={"shortest_edge": size},
            crop_size={"height": size, "width": size},
            image_mean=list(shown.get("mean", _MEAN)),
            image_std=list(shown.get("std", _STD)),
        )
    where, positions = torch.device(device), config["text_config"]["max_position_embeddings"]
    module = model.to(where).eval()
    return LoadedModel(
        name,
        module,
        getattr(module, "config", None),
        tokenizer,
        processor,
        folder,
        max_length=positions,
        device=where,
    )


def _config(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of transformers for open_clip's `model_cfg`."""
    vision, text = about["vision_cfg"], about["text_cfg"]
    act = "quick_gelu" if about.get("quick_gelu") else "gelu"

    def tower(own: Mapping[str, Any], heads: int) -> dict[str, Any]:
        width = int(own["width"])
        return {
            "hidden_size": width,
            "intermediate_size": int(width * own.get("mlp_ratio", 4.0)),
            "num_hidden_layers": int(own["layers"]),
            "num_attention_heads": heads,
            "hidden_act": act,
        }

    # open_clip pools the token of the highest id, which is the last: transformers does so for an id of 2
    words = {"vocab_size": int(text["vocab_size"]), "eos_token_id": 2}
    length = int(text.get("context_length", 77))
    return {
        "projection_dim": int(about["embed_dim"]),
        "text_config": {**tower(text, int(text["heads"])), **words, "max_position_embeddings": length},
        "vision_config": {
            **tower(vision, int(vision["width"]) // int(vision.get("head_width", 64))),
            "image_size": int(vision["image_size"]),
            "patch_size": int(vision["patch_size"]),
        },
    }


def _renamed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return open_clip's tensors by the names of transformers; q, k and v apart, projections transposed."""
    plain = {
        "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
        "positional_embedding": "text_model.embeddings.position_embedding.weight",
        "visual.class_embedding": "vision_model.embeddings.class_embedding",
        "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
        "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
        "logit_scale": "logit_scale",
        **{
            f"{theirs}.{part}": f"{ours}.{part}"
            for theirs, ours in (
                ("ln_final", "text_model.final_layer_norm"),
                ("visual.ln_pre", "vision_model.pre_layrnorm"),
                ("visual.ln_post", "vision_model.post_layernorm"),
            )
            for part in ("weight", "bias")
        },
    }
    named: dict[str, Tensor] = {}
    for key, tensor in weights.items():
        if key in plain:
            named[plain[key]] = tensor
        elif key in ("visual.proj", "text_projection"):
            name = "visual_projection" if key == "visual.proj" else key
            named[f"{name}.weight"] = tensor.T.contiguous()
        elif "transformer.resblocks." in key:
            named |= dict(_block(key, tensor))
        elif key != "attn_mask":
            named[key] = tensor
    return named


def _block(key: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    head, _, rest = key.partition("transformer.resblocks.")
    number, _, inner = rest.partition(".")
    place = f"{'vision_model' if head else 'text_model'}.encoder.layers.{number}"
    if inner.startswith("attn.in_proj_"):
        part = inner.removeprefix("attn.in_proj_")
        for name, rows in zip("qkv", tensor.chunk(3), strict=True):
            yield f"{place}.self_attn.{name}_proj.{part}", rows.contiguous()
        return
    module, _, part = inner.rpartition(".")
    yield f"{place}.{(_NORMS | _LINEARS).get(module, module)}.{part}", tensor


class ImageTower(nn.Module):
    """CLIP's image tower with its projection, under the names that CLIP gives them."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.vision_model, self.visual_projection = model.vision_model, model.visual_projection

    def get_image_features(self, pixel_values: Tensor) -> Tensor:
        """Return the embeddings [images, embedding] of pixels [images, 3, height, width]."""
        embeddings: Tensor = self.visual_projection(
            self.vision_model(pixel_values=pixel_values).pooler_output
        )
        return embeddings

    def forward(self, pixel_values: Tensor) -> Tensor:
        return nn.functional.normalize(self.get_image_features(pixel_values), dim=1)


class Towers(ImageTower):
    """The image tower beside the text tower, which never runs.

    With one stack only, TransFusion takes the zero-shot head for one that reads the residual stream and not
    the projection; and it has no place for CLIP's logit scale, a single number.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.text_model = model.text_model


def zero_shot_task(clip: LoadedModel, task: str) -> LoadedModel:
    """Return the image tower as the classifier of an image set; its head is of prompts and stays."""
    head = zero_shot_head(clip, class_names(task), IMAGE_SETS[task].templates)
    return like(clip, ZeroShotClassifier(copy.deepcopy(Towers(clip.model)), head))


def like(clip: LoadedModel, module: nn.Module) -> LoadedModel:
    """Return a classifier that reads images as `clip` does; its config is the image tower's."""
    return LoadedModel(
        clip.name,
        module.to(clip.device).eval(),
        getattr(clip.config, "vision_config", clip.config),
        None,
        clip.image_processor,
        clip.folder,
        custom=clip.custom,
        device=clip.device,
    )


def image_accuracy(classifier: LoadedModel, rows: Dataset, *, batch: int = 128) -> float:
    """Return the accuracy on all rows, which are decoded batch by batch."""
    hits = 0
    with torch.no_grad():
        for images, labels in rows.labelled_batches(batch):
            logits = classifier.run(classifier.preprocess(images))
            hits += int((logits.argmax(1).cpu().numpy() == labels).sum())
    return hits / len(rows)


def tuned_state(
    classifier: LoadedModel,
    rows: Dataset,
    *,
    steps: int,
    batch: int,
    rate: float,
    decay: float,
    warmup: int,
    seed: int,
) -> dict[str, Any]:
    """Fine-tune the image tower under its frozen head; return the changed tensors as arrays.

    AdamW, linear warm-up, cosine decay, as Appendix D of THESEUS says; gradients are cut at norm 1, as the
    protocol that it follows does.
    """
    module = copy.deepcopy(classifier.model)
    trained = dict(_tower(module))
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in trained)
    optimiser = torch.optim.AdamW(trained.values(), lr=rate, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _cosine(step, steps, warmup))
    draws, runner = np.random.default_rng(seed), like(classifier, module)
    labels = np.asarray(rows.labels)
    for _ in range(steps):
        chosen = draws.choice(len(rows), size=min(batch, len(rows)), replace=False)
        wanted = torch.from_numpy(labels[chosen]).to(classifier.device)
        optimiser.zero_grad(set_to_none=True)
        logits = runner.run(runner.preprocess([rows.inputs[int(row)] for row in chosen]))
        nn.functional.cross_entropy(logits, wanted).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(list(trained.values()), 1.0)
        optimiser.step()
        schedule.step()
    return {name: parameter.detach().cpu().numpy() for name, parameter in trained.items()}


def with_state(classifier: LoadedModel, arrays: Mapping[str, Any]) -> LoadedModel:
    """Return a copy with some tensors replaced."""
    module = copy.deepcopy(classifier.model)
    module.load_state_dict(
        {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}, strict=False
    )
    return like(classifier, module)


def _tower(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, parameter in module.named_parameters():
        if name.startswith(("clip.vision_model.", "clip.visual_projection.")):
            yield name, parameter


def _cosine(step: int, steps: int, warmup: int) -> float:
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
